#include "allocator.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "../trace/recorder.h"
#include "memory.h"
#include "runtime.h"

namespace torch_tpu {

namespace {

// Bit 62 and bit 54 are set in every address: not canonical on x86-64, and not on AArch64, which ignores the top byte.
constexpr uint64_t kMark = (uint64_t{1} << 62) | (uint64_t{1} << 54);
constexpr int kDeviceShift = 55;
constexpr uint64_t kOffsetMask = (uint64_t{1} << 54) - 1;
constexpr uint64_t kAlignment = 256;

void* new_address(c10::DeviceIndex device, size_t nbytes) {
  static std::atomic<uint64_t> next{0};
  const uint64_t room = (nbytes / kAlignment + 1) * kAlignment;
  const uint64_t offset = next.fetch_add(room, std::memory_order_relaxed) & kOffsetMask;
  return reinterpret_cast<void*>(kMark | (static_cast<uint64_t>(device) << kDeviceShift) | offset);
}

// Data pointers that share a storage with its own, with what each holds on to. Whichever goes last frees the storage.
struct Aliases {
  using Held = std::unique_ptr<void, c10::DeleterFnPtr>;
  std::mutex mutex;
  std::unordered_multimap<const void*, Held> held;
  std::atomic<size_t> count{0};  // so that freeing without aliases takes no lock

  void add(const void* storage, Held what) {
    std::lock_guard<std::mutex> lock(mutex);
    held.emplace(storage, std::move(what));
    count.fetch_add(1, std::memory_order_release);
  }

  // False when the storage has no alias.
  bool remove_one(const void* storage) {
    if (count.load(std::memory_order_acquire) == 0) return false;
    Held what(nullptr, nullptr);  // freed without the lock, as that may free the storage's first pointer
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = held.find(storage);
    if (found == held.end()) return false;
    what = std::move(found->second);
    held.erase(found);
    count.fetch_sub(1, std::memory_order_release);
    return true;
  }
};

Aliases& aliases() {
  static auto* all = new Aliases();  // leaked: storages may outlive static destruction
  return *all;
}

class TpuAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    ensure_initialized();
    return make_data_ptr(new DeviceStorage(current_device(), nbytes));
  }

  // raw_allocate() needs address and context to be the same, and ours are not.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* /*dest*/, const void* /*src*/, std::size_t /*count*/) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu addresses are opaque; copy tensors with Tensor.copy_ or Tensor.clone");
  }

  bool initialized() override { return torch_tpu::initialized(); }

  // Nothing is cached: memory goes back to the plugin with the last tensor that uses it.
  void emptyCache(c10::MempoolId_t /*pool*/) override {}

  // All streams of a device share one queue, and what is queued keeps its buffers alive by itself.
  void recordStream(const c10::DataPtr& /*ptr*/, c10::Stream /*stream*/) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const memory::Stats own = memory::stats(device);
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      (*bytes)[kAll] = own.bytes;
    }
    for (auto* counts : {&stats.allocation, &stats.segment, &stats.active}) (*counts)[kAll] = own.allocations;
    stats.num_ooms = own.num_ooms;
    stats.num_device_alloc = own.allocations.allocated;
    stats.num_device_free = own.allocations.freed;
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override { memory::reset_accumulated(device); }
  void resetPeakStats(c10::DeviceIndex device) override { memory::reset_peak(device); }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const pjrt::Device& plugin_device = device(index);
    const size_t total = memory::limit(index);
    const auto used = static_cast<size_t>(memory::stats(index).bytes.current);
    size_t free = total > used ? total - used : 0;
    // The plugin also knows of programs and their temporaries.
    const auto stats = plugin_device.memory_stats();
    const auto in_use = stats.find("bytes_in_use");
    if (in_use != stats.end()) {
      const size_t capacity = memory::capacity(index);
      const auto busy = static_cast<size_t>(in_use->second);
      free = std::min(free, capacity > busy ? capacity - busy : 0);
    }
    return {free, total};
  }
};

TpuAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator)

}  // namespace

void free_storage(void* context) {
  if (in_bad_fork()) return;  // the child must not touch what belongs to its parent's device
  if (!aliases().remove_one(context)) delete static_cast<DeviceStorage*>(context);
}

c10::DataPtr make_data_ptr(DeviceStorage* storage) {
  const c10::DeviceIndex device = storage->entry.device();
  void* address = new_address(device, storage->entry.nbytes());
  storage->entry.place(address, storage);
  return {address, storage, &free_storage, c10::Device(c10::DeviceType::PrivateUse1, device)};
}

void adopt(c10::StorageImpl* storage) {
  c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  const c10::DeviceIndex device = data.device().index();
  if (storage->nbytes() == 0) {
    data = make_data_ptr(new DeviceStorage(device, 0));
    return;
  }
  const memory::Entry* entry = device_of_address(data.get()) == device ? memory::find(device, data.get()) : nullptr;
  TORCH_CHECK(entry != nullptr && storage->nbytes() <= entry->nbytes(), "the pointer ", data.get(),
              " is not where memory of a tpu tensor starts. Host memory, and views that start inside a tensor, must be "
              "copied to the device instead of being wrapped.");
  void* address = data.get();
  aliases().add(entry->owner(), data.move_context());
  data = {address, entry->owner(), &free_storage, data.device()};
}

c10::DeviceIndex device_of_address(const void* address) {
  const auto bits = reinterpret_cast<uint64_t>(address);
  if ((bits & kMark) != kMark || bits >> 63 != 0) return -1;
  return static_cast<c10::DeviceIndex>(bits >> kDeviceShift & 0x7f);
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  auto* own = static_cast<DeviceStorage*>(storage->_mutable_data_ptr_no_checks().get_context());
  {
    auto lock = Recorder::get().lock();
    if (nbytes == 0) own->value = Holder();  // frees the memory, as whoever resizes to nothing wants (FSDP)
    Recorder::get().resize(own, nbytes);
  }
  // A grown range could run into the next one, so the storage moves to a new address.
  void* context = storage->_mutable_data_ptr_no_checks().release_context();
  storage->set_data_ptr_noswap(make_data_ptr(static_cast<DeviceStorage*>(context)));
  storage->set_nbytes(nbytes);
}

}  // namespace torch_tpu
