// The allocator of tpu storages.
#pragma once

#include <c10/core/Allocator.h>

#include "../trace/storage.h"

namespace torch_tpu {

// A data pointer that owns `storage`. Its address is opaque: ranges of live storages never overlap, a range tells its
// device, and reading or writing there faults, because no such address is ever mapped.
c10::DataPtr make_data_ptr(DeviceStorage* storage);
// The device of such an address, or -1.
c10::DeviceIndex device_of_address(const void* address);
// Tensor.resize_ and UntypedStorage.resize_: keeps the content that fits.
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

}  // namespace torch_tpu
