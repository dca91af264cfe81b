// Devices, streams and events as c10 sees them.
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "runtime.h"
#include "stream.h"

namespace torch_tpu {

namespace {

stream::Point& point_of(void* event) { return *static_cast<stream::Point*>(event); }

struct TpuGuardImpl final : public c10::impl::DeviceGuardImplInterface {
  static c10::Device at(c10::DeviceIndex index) { return c10::Device(c10::DeviceType::PrivateUse1, index); }

  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device();
  }

  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::DeviceIndex previous = current_device();
    set_current_device(index_of(device));
    return at(previous);
  }
  c10::Device getDevice() const override { return at(current_device()); }
  void setDevice(c10::Device device) const override { set_current_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchange_device(index_of(device)); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::DeviceCapability getDeviceCapability(c10::Device /*device*/) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (const auto dtype :
         {c10::kIndex_Bool, c10::kIndex_Byte, c10::kIndex_Char, c10::kIndex_Short, c10::kIndex_Int, c10::kIndex_Long,
          c10::kIndex_UInt16, c10::kIndex_UInt32, c10::kIndex_UInt64, c10::kIndex_Half, c10::kIndex_BFloat16,
          c10::kIndex_Float, c10::kIndex_Double, c10::kIndex_ComplexFloat, c10::kIndex_ComplexDouble,
          c10::kIndex_Float8_e4m3fn, c10::kIndex_Float8_e5m2}) {
      capability.capability_data.capability_bits |= uint64_t{1} << dtype;
    }
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override { return stream::current(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, at(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool isHighPriority) const override {
    return stream::create(index_of(device), isHighPriority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream::create(index_of(device), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream::exchange(stream); }
  bool queryStream(const c10::Stream& stream) const override { return stream::idle(stream.device_index()); }
  void synchronizeStream(const c10::Stream& stream) const override { stream::synchronize(stream.device_index()); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { stream::synchronize(device); }
  // What is queued keeps its buffers alive by itself, on whichever stream.
  void recordDataPtrOnStream(const c10::DataPtr& /*ptr*/, const c10::Stream& /*stream*/) const override {}

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag /*flag*/) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ", static_cast<int>(device),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) *event = new stream::Point();
    point_of(*event) = stream::record(stream.device_index());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) stream::wait_for(stream.device_index(), point_of(event));
  }
  bool queryEvent(void* event) const override { return event == nullptr || stream::done(point_of(event)); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) stream::wait(point_of(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<stream::Point*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex /*device*/) const override {
    constexpr double kNanosecondsPerMillisecond = 1e6;
    return static_cast<double>(stream::time_ns(point_of(end)) - stream::time_ns(point_of(start))) /
           kNanosecondsPerMillisecond;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, TpuGuardImpl)

}  // namespace

}  // namespace torch_tpu
