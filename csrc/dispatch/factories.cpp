// Tensors that nobody has written yet.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <torch/library.h>

#include "../device/runtime.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

c10::DeviceIndex index_of(std::optional<at::Device> device) {
  ensure_initialized();
  return device.has_value() && device->has_index() ? device->index() : current_device();
}

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "only strided tensors can be made on tpu, not ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  for (int64_t s : size) TORCH_CHECK(s >= 0, "Trying to create tensor with negative dimension ", s, ": ", size);
  return empty_tensor(size, stride, dtype.value_or(c10::get_default_dtype_as_scalartype()), index_of(device));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  at::Tensor tensor = empty_strided(size, c10::contiguous_strides(size), dtype, layout, device, pin_memory);
  if (format.value_or(at::MemoryFormat::Contiguous) != at::MemoryFormat::Contiguous) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return tensor;
}

at::Tensor new_empty_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                             std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                             std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return at::empty_strided(size, stride, dtype.value_or(self.scalar_type()), layout, device.value_or(self.device()),
                           pin_memory);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("new_empty_strided",
         TORCH_FN(new_empty_strided));  // recorded results are dense, whatever strides are asked for
}

}  // namespace torch_tpu
