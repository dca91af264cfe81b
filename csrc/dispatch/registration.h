// Which kernels stand under the PrivateUse1 dispatch keys.
#pragma once

#include <torch/library.h>

namespace torch_tpu {

// Puts the record kernel under every aten op that has no kernel of its own there. Once, when the library is loaded.
void register_record_kernels();

// The same for sparse tensors: what the CPU has a sparse kernel for runs there. Once, too.
void register_sparse_kernels();

// And for nested tensors. Once, too.
void register_nested_kernels();

// Calls an op with host copies of its tensors, and moves the results and what it has written back; counted as a
// fallback.
void run_structured_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace torch_tpu
