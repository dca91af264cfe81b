// Streams and events. Every stream of a device feeds the device's one queue, in the order of the calls, so that work
// on a stream never overtakes work on another; streams keep an identity for the programs that manage them.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "../trace/queue.h"

namespace torch_tpu::stream {

c10::Stream current(c10::DeviceIndex device) noexcept;      // of the calling thread
c10::Stream exchange(c10::Stream stream);                   // returns the previous one of the same device
c10::Stream create(c10::DeviceIndex device, int priority);  // priorities: 0 normal, negative high
int priority(c10::Stream stream) noexcept;

// What an event has recorded: the end of the work before it, also of other devices that its device waited for.
struct Point {
  c10::DeviceIndex device = -1;
  std::vector<std::shared_ptr<Marker>> markers;
};

Point record(c10::DeviceIndex device);
// Work given to `device` from now on counts as done only after `point`.
void wait_for(c10::DeviceIndex device, const Point& point);
bool done(const Point& point);
void wait(const Point& point);
int64_t time_ns(const Point& point);  // valid once done

bool idle(c10::DeviceIndex device);
void synchronize(c10::DeviceIndex device);

}  // namespace torch_tpu::stream
