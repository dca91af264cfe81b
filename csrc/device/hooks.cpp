// What PyTorch's generic code asks of the accelerator.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "allocator.h"
#include "generator.h"
#include "host.h"
#include "runtime.h"

namespace torch_tpu {

namespace {

struct TpuHooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return initialized() && index >= 0 && index < device_count();
  }
  void init() const override { ensure_initialized(); }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = current_device();
    if (index >= 0) set_current_device(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }

  at::Device getDeviceFromPtr(void* data) const override {
    const c10::DeviceIndex index = device_of_address(data);
    TORCH_CHECK(index >= 0, "the pointer does not belong to a tpu tensor");
    return at::Device(at::DeviceType::PrivateUse1, index);
  }
  bool isPinnedPtr(const void* data) const override { return host::is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return host::allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new TpuHooks());
  return true;
}();

}  // namespace

}  // namespace torch_tpu
