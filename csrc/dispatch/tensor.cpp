#include "tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>

#include "../device/allocator.h"
#include "../trace/dtype.h"
#include "../trace/storage.h"

namespace torch_tpu {
namespace {

at::Tensor over_new_storage(size_t nbytes, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                            c10::DeviceIndex device, DeviceStorage** created) {
  buffer_type(dtype);  // refuses what XLA does not have here, at the call
  auto* device_storage = new DeviceStorage(device, nbytes);
  if (created != nullptr) *created = device_storage;
  auto storage =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, make_data_ptr(device_storage),
                                            c10::GetAllocator(c10::DeviceType::PrivateUse1), true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                         caffe2::TypeMeta::fromScalarType(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

}  // namespace

at::Tensor tensor_of(ValuePtr value, const OutputMeta& meta, c10::DeviceIndex device, const char* op) {
  DeviceStorage* storage = nullptr;
  at::Tensor tensor = over_new_storage(value->nbytes(), meta.sizes, meta.strides, meta.dtype, device, &storage);
  storage->entry.label(op, meta.dtype, meta.sizes);
  storage->bind(std::move(value), meta.strides);
  return tensor;
}

at::Tensor empty_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                        c10::DeviceIndex device) {
  const size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  DeviceStorage* storage = nullptr;
  at::Tensor tensor = over_new_storage(nbytes, sizes, strides, dtype, device, &storage);
  storage->entry.label("aten::empty", dtype, sizes);
  return tensor;
}

void assert_no_partial_overlap(const c10::TensorImpl* written, const c10::TensorImpl* read) {
  TORCH_CHECK(at::get_overlap_status(written, read) != at::MemOverlapStatus::Partial,
              "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
              "memory location. Please clone() the tensor before performing the operation.");
}

}  // namespace torch_tpu
