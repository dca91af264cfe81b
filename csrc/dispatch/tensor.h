// Tensors over values.
#pragma once

#include <ATen/core/Tensor.h>

#include "../trace/signature.h"

namespace torch_tpu {

// A new tensor of the meta's sizes and (dense) strides whose contents are `value`. `op` is a literal or lives forever.
at::Tensor tensor_of(ValuePtr value, const OutputMeta& meta, c10::DeviceIndex device, const char* op);

// A new tensor that has not been written. The strides may be any.
at::Tensor empty_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                        c10::DeviceIndex device);

// Raises PyTorch's error if `read` and `written` are different views that overlap.
void assert_no_partial_overlap(const c10::TensorImpl* written, const c10::TensorImpl* read);

}  // namespace torch_tpu
