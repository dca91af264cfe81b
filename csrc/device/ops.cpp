// The few aten ops that are about the device itself and compute nothing.
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/library.h>

namespace torch_tpu {

namespace {

// Tensor.data may be set from a tensor of another backend (Module.to): this keeps a Parameter's identity.
bool has_compatible_shallow_copy_type(const at::Tensor& /*self*/, const at::Tensor& /*from*/) { return true; }

// All streams of a device share one queue, and what is queued keeps its buffers alive by itself.
void record_stream(at::Tensor& /*self*/, c10::Stream /*stream*/) {}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  m.impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace torch_tpu
