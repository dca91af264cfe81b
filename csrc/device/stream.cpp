#include "stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "memory.h"
#include "runtime.h"

namespace torch_tpu::stream {

namespace {

// A stream id is a serial number and, in its lowest bit, the priority; 0 is the default stream.
thread_local std::array<c10::StreamId, memory::kMaxDevices> current_ids{};

c10::Stream unpack(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, device), id);
}

// Points of other devices that a device waits for. Data dependencies order the work itself; this keeps events and
// synchronize() true to what wait_event() promises.
class Waits {
 public:
  void add(const Point& point) {
    std::lock_guard<std::mutex> lock(mutex_);
    drop_done();
    for (const auto& marker : point.markers) {
      if (!marker->done()) pending_.push_back(marker);
    }
  }

  std::vector<std::shared_ptr<Marker>> pending() {
    std::lock_guard<std::mutex> lock(mutex_);
    drop_done();
    return pending_;
  }

 private:
  void drop_done() {
    pending_.erase(std::remove_if(pending_.begin(), pending_.end(), [](const auto& marker) { return marker->done(); }),
                   pending_.end());
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Marker>> pending_;
};

Waits& waits(c10::DeviceIndex device) {
  static auto* all = new std::array<Waits, memory::kMaxDevices>();  // leaked: events may outlive static destruction
  return all->at(device);
}

}  // namespace

c10::Stream current(c10::DeviceIndex device) noexcept { return unpack(device, current_ids[device]); }

c10::Stream exchange(c10::Stream stream) {
  return unpack(stream.device_index(), std::exchange(current_ids.at(stream.device_index()), stream.id()));
}

c10::Stream create(c10::DeviceIndex device, int priority) {
  static std::atomic<c10::StreamId> serial{0};
  const c10::StreamId id = ++serial * 2 + (priority < 0 ? 1 : 0);
  return unpack(device, id);
}

int priority(c10::Stream stream) noexcept { return (stream.id() & 1) != 0 ? -1 : 0; }

Point record(c10::DeviceIndex device) {
  ensure_initialized();
  Point point{device, waits(device).pending()};
  point.markers.push_back(enqueue_marker(device));
  return point;
}

void wait_for(c10::DeviceIndex device, const Point& point) {
  if (point.device != device) waits(device).add(point);  // within a device the queue's order is enough
}

bool done(const Point& point) {
  return std::all_of(point.markers.begin(), point.markers.end(), [](const auto& marker) { return marker->done(); });
}

void wait(const Point& point) {
  check_fork();
  for (const auto& marker : point.markers) marker->wait();
}

int64_t time_ns(const Point& point) {
  int64_t latest = 0;
  for (const auto& marker : point.markers) latest = std::max(latest, marker->time_ns);
  return latest;
}

bool idle(c10::DeviceIndex device) {
  return !initialized() || (waits(device).pending().empty() && torch_tpu::idle(device));
}

void synchronize(c10::DeviceIndex device) {
  ensure_initialized();
  wait({device, waits(device).pending()});
  torch_tpu::synchronize(device);
}

}  // namespace torch_tpu::stream
