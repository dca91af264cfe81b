// The dispatch thread: owns execution, so that the recording thread never waits before a sync point.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "value.h"

namespace torch_tpu {

class Program;

// A point in the queue; done when all work enqueued before it has finished on the device.
struct Marker {
  bool done() const { return finished.load(std::memory_order_acquire); }
  void wait() const;    // releases the GIL while it waits
  int64_t time_ns = 0;  // steady clock, valid once done
  std::atomic<bool> finished{false};
};

// Flushes what is recorded and marks the end of it.
std::shared_ptr<Marker> enqueue_marker(c10::DeviceIndex device);

// Flushes, waits for everything, and throws the first failure that nobody has seen yet.
void synchronize(c10::DeviceIndex device);

// True when nothing is recorded, queued or running.
bool idle(c10::DeviceIndex device);

// Blocks until the value is ready; throws its failure. The caller holds neither the recorder's lock nor a need for the
// GIL.
void wait(const Value& value);

// One execution of a program.
struct Launch {
  std::shared_ptr<Program> program;
  c10::SmallVector<ValuePtr, 6> inputs;
  c10::SmallVector<ValuePtr, 4> outputs;
  std::vector<int32_t> scalars;
  std::vector<int32_t> replaced;      // by output: the input whose place it took in a storage, or -1
  c10::SmallVector<int64_t, 4> keep;  // inputs that stay although the program could take their buffers
};

// The value, which has been handed over, under other dims of as many elements or padding; the copy is made when a
// program that takes it is launched, if there must be one.
ValuePtr under_dims(ValuePtr value, c10::IntArrayRef dims);

// Copies a ready value to the host under the dims of `value`, whose source it may be.
void read_to_host(const Value& value, void* host);

void enqueue_launch(std::unique_ptr<Launch> launch);

// Stops the dispatch and compile threads; called once at interpreter exit.
void shutdown_queue();

}  // namespace torch_tpu
