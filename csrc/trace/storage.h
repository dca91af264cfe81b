// What stands behind the data pointer of every tpu storage.
#pragma once

#include <c10/core/TensorImpl.h>

#include "../device/memory.h"
#include "value.h"

namespace torch_tpu {

// Holds the storage's current value and its base layout: the dense strides with which the value's dims were written.
// Element (i, j, ...) of the value lies at element offset i * strides[0] + j * strides[1] + ... of the storage.
struct DeviceStorage {
  DeviceStorage(c10::DeviceIndex device, size_t nbytes) : entry(device, nbytes) {}
  DeviceStorage(const DeviceStorage&) = delete;
  DeviceStorage& operator=(const DeviceStorage&) = delete;

  // Binds a new value whose dims lie at `base_strides`.
  void bind(ValuePtr new_value, c10::IntArrayRef base_strides) {
    value = Holder(std::move(new_value));
    strides.assign(base_strides.begin(), base_strides.end());
  }

  Holder value;  // empty: never written
  Dims strides;
  memory::Entry entry;  // accounting: reserves when constructed (throws OutOfMemoryError), releases when destroyed
};

// The deleter of every tpu data pointer.
void free_storage(void* storage);
// Finds what is behind a data pointer that PyTorch made from a bare address (DLPack), or throws.
void adopt(c10::StorageImpl* storage);

// The storage behind a tpu tensor. The tensor must be on the tpu device and have storage.
inline DeviceStorage* storage_of(const c10::TensorImpl* tensor) {
  c10::StorageImpl* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (C10_UNLIKELY(data.get_deleter() != &free_storage)) adopt(storage);
  return static_cast<DeviceStorage*>(data.get_context());
}

}  // namespace torch_tpu
