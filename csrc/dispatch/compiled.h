// Programs of torch.compile: from the call to the dispatch queue without Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "../trace/program.h"
#include "../trace/signature.h"

namespace torch_tpu {

// What a parameter of the call is.
enum class ParameterUse : uint8_t {
  kTensor,  // a tpu tensor
  kScalar,  // a Python number or a host tensor of one element, in the words of the scalar parameter
  kUnused,
};

struct CompiledParameter {
  ParameterUse use = ParameterUse::kTensor;
  ScalarKind scalar = ScalarKind::kFloat32;
  bool donated = false;         // compiled so that its buffer may be taken, where nobody else sees it
  std::vector<int64_t> padded;  // the dims of the program's parameter, where they are not the tensor's sizes
};

// Where an item of the returned list comes from.
struct CompiledOutput {
  enum class Kind : uint8_t { kResult, kArgument, kConstant };
  Kind kind = Kind::kResult;
  uint32_t index = 0;         // of the result, or of the argument that is returned as it is
  pybind11::object constant;  // None or a Python number
};

// Result `result` of the executable becomes the contents of argument `argument`.
struct WriteBack {
  uint32_t result;
  uint32_t argument;
};

// What a padded program is told of one set of true sizes.
struct CompiledExtents {
  std::vector<int32_t> sizes;       // words of the scalar parameter, after all others
  std::vector<OutputMeta> logical;  // what the results look like from outside
  std::vector<uint64_t> draws;      // how many random numbers each random op takes, in order
};

class CompiledProgram {
 public:
  CompiledProgram(std::shared_ptr<pjrt::Executable> executable, c10::DeviceIndex device, std::string name,
                  std::vector<CompiledParameter> parameters, std::vector<OutputMeta> results,
                  std::vector<WriteBack> writes, std::vector<CompiledOutput> outputs, std::vector<uint64_t> draws);

  // Runs the program on the arguments. A list is emptied on the way, so that what only the call holds can be donated.
  // A padded program gets its true sizes too.
  pybind11::list call(pybind11::list arguments, const CompiledExtents* extents);

  const std::shared_ptr<pjrt::Executable>& executable() const { return program_->executable; }

 private:
  std::shared_ptr<Program> program_;
  c10::DeviceIndex device_;
  std::string name_;
  std::vector<CompiledParameter> parameters_;
  std::vector<OutputMeta> results_;
  std::vector<WriteBack> writes_;
  std::vector<CompiledOutput> outputs_;
  std::vector<uint64_t> draws_;        // how many random numbers each random op takes, in order
  std::vector<uint32_t> new_results_;  // results that become new tensors
};

void bind_compiled(pybind11::module_& m);

}  // namespace torch_tpu
