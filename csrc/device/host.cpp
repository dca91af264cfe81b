#include "host.h"

#include <cstdlib>
#include <map>
#include <shared_mutex>

#include "runtime.h"
#include "stream.h"

namespace torch_tpu::host {

namespace {

// Address ranges [begin, end) of all blocks, by begin.
struct Ranges {
  std::shared_mutex mutex;
  std::map<uintptr_t, uintptr_t> ends;

  bool contains(uintptr_t address) {
    std::shared_lock<std::shared_mutex> lock(mutex);
    const auto after = ends.upper_bound(address);
    return after != ends.begin() && address < std::prev(after)->second;
  }
};

Ranges& ranges() {
  static auto* all = new Ranges();  // leaked, like the allocator
  return *all;
}

class Blocks final : public at::CachingHostAllocatorImpl<c10::Stream, stream::Point> {
  void allocate_host_memory(size_t size, void** block) override {
    const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
    *block = std::aligned_alloc(kAlignment, rounded);
    TORCH_CHECK_WITH(OutOfMemoryError, *block != nullptr, "cannot allocate ", size, " bytes of pinned host memory");
    const auto begin = reinterpret_cast<uintptr_t>(*block);
    std::unique_lock<std::shared_mutex> lock(ranges().mutex);
    ranges().ends[begin] = begin + rounded;
  }

  void free_block(at::HostBlock<c10::Stream>* block) override {
    {
      std::unique_lock<std::shared_mutex> lock(ranges().mutex);
      ranges().ends.erase(reinterpret_cast<uintptr_t>(block->ptr_));
    }
    std::free(block->ptr_);
  }

  void record_stream(std::optional<std::vector<stream::Point>>& events, c10::Stream stream) override {
    events->push_back(in_bad_fork() ? stream::Point() : stream::record(stream.device_index()));
  }

  bool query_event(stream::Point& event) override { return stream::done(event); }

  c10::Stream get_current_stream() const override { return stream::current(current_device()); }

  bool stream_is_capturing(c10::Stream /*stream*/) const override { return false; }
};

void free_memory(void* context);

struct HostAllocator final : public at::CachingHostAllocatorInterface<Blocks, free_memory> {
  void copy_data(void* dest, const void* src, std::size_t count) const override { default_copy_data(dest, src, count); }
};

HostAllocator& instance() {
  static auto* allocator = new HostAllocator();  // leaked: pinned tensors may outlive static destruction
  return *allocator;
}

void free_memory(void* context) { instance().free(context); }

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, allocator())

}  // namespace

at::HostAllocator* allocator() { return &instance(); }

bool is_pinned(const void* address) { return ranges().contains(reinterpret_cast<uintptr_t>(address)); }

}  // namespace torch_tpu::host
