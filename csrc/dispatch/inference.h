// What an op returns, found out in C++ where that is possible: PyTorch's Python meta functions cost milliseconds, and
// the first of them a second.
#pragma once

#include <optional>
#include <vector>

#include "../trace/signature.h"
#include "op_entry.h"

namespace torch_tpu {

OutputMeta output_meta(const at::Tensor& tensor);

// The node's outputs, and the shapes of the out arguments; nullopt where PyTorch's meta function must be asked. Throws
// PyTorch's own shape and dtype errors.
struct Inferred {
  std::vector<OutputMeta> outputs;
  std::vector<OutputMeta> resized;
  std::vector<size_t> list_sizes;  // of returned lists
};
std::optional<Inferred> infer(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments);

// True if `record` was called from inside infer(): the out arguments are what was asked for, and nothing is to be done.
bool answer_probe(const OpEntry& entry, torch::jit::Stack* stack);

}  // namespace torch_tpu
