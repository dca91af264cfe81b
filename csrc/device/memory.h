// Accounting of device memory: what is live, who made it, and the limit that nothing may pass.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace torch_tpu::memory {

constexpr int kMaxDevices = 128;  // what c10::DeviceIndex can count

// The hook that a DeviceStorage embeds: constructing it reserves, destroying it releases. Never moves: the registry of
// live storages is a list through it.
class Entry {
 public:
  // Throws c10::OutOfMemoryError at once when the device's limit would be passed; nothing is then counted.
  Entry(c10::DeviceIndex device, size_t nbytes);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // Grows or shrinks what is counted (Tensor.resize_); throws as the constructor does and then changes nothing.
  void resize(size_t nbytes);
  // What an out-of-memory report says of this storage. `op` must live as long as the process (an operator's name).
  void label(const char* op, c10::ScalarType dtype, c10::IntArrayRef sizes);

  // Where in the device's opaque address space the storage lies, and whose entry this is: for find().
  void place(const void* address, void* owner) {
    owner_ = owner;
    address_.store(address, std::memory_order_release);
  }
  void* owner() const { return owner_; }

  c10::DeviceIndex device() const { return device_; }
  size_t nbytes() const { return nbytes_; }

 private:
  friend struct Device;
  static constexpr int kDims = 6;

  Entry* prev_ = nullptr;
  Entry* next_ = nullptr;
  size_t nbytes_ = 0;
  std::atomic<const void*> address_{nullptr};
  void* owner_ = nullptr;
  const char* op_ = nullptr;
  int64_t sizes_[kDims];
  int8_t dim_ = -1;  // -1: no label; more than kDims: only the first kDims sizes are known
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  c10::DeviceIndex device_;
};

struct Stats {
  c10::CachingAllocator::Stat bytes;        // of live storages
  c10::CachingAllocator::Stat allocations;  // live storages that hold any bytes
  int64_t num_ooms = 0;
};

Stats stats(c10::DeviceIndex device);
void reset_peak(c10::DeviceIndex device);
void reset_accumulated(c10::DeviceIndex device);

// The limit in force on a device: what set_limit() gave it, else the device's own memory.
size_t limit(c10::DeviceIndex device);
void set_limit(c10::DeviceIndex device, std::optional<size_t> nbytes);
// The device's own memory, which the runtime learns from the plugin. Unlimited until then.
void set_capacity(c10::DeviceIndex device, size_t nbytes);
size_t capacity(c10::DeviceIndex device);

// The largest live storages of a device, equal ones counted together, a line each.
std::string report(c10::DeviceIndex device, size_t lines = 10);

// The entry of the live storage that starts at this address, or nullptr. Looks at all of them.
const Entry* find(c10::DeviceIndex device, const void* address);

// "16GB" -> 16e9, "16GiB" -> 2^34, "1048576" -> itself. Throws c10::ValueError on anything else.
size_t parse_size(const std::string& text);

}  // namespace torch_tpu::memory
