// What the parameters of random ops may be.
#pragma once

#include <ATen/core/stack.h>

namespace torch_tpu {

// Throws PyTorch's error for parameters that the distribution does not have.
void check_distribution(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_tpu
