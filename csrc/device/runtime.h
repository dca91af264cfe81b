// The process's one runtime: which devices there are, and the client behind them, made at first use.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "../pjrt/pjrt.h"

namespace torch_tpu {

// The number of devices; 0 when there is none or the choice of platform fails. Never throws. It may load the plugin,
// as only the client knows, but never in a forked child.
c10::DeviceIndex device_count() noexcept;
// The number that the environment alone tells, or -1: for callers that must not initialise anything.
c10::DeviceIndex device_count_without_init() noexcept;

// True once the client exists.
bool initialized() noexcept;
// Makes the client at its first call; throws what went wrong, and again at every later call. Throws in a forked child
// of a process that had a client, as neither XLA's threads nor a TPU survive a fork.
void ensure_initialized();
bool in_bad_fork() noexcept;

// Initialises if need be.
const pjrt::Client& client();
const pjrt::Device& device(c10::DeviceIndex index);
bool is_cpu();  // the platform is XLA's CPU plugin

// The calling thread's current device.
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index);                    // throws on an index that does not exist
c10::DeviceIndex exchange_device(c10::DeviceIndex index) noexcept;  // unchecked

}  // namespace torch_tpu
