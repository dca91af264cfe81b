// The process's one runtime: which devices there are, and the client behind them, made at first use.
#pragma once

#include <c10/core/Device.h>

#include "../pjrt/pjrt.h"

namespace torch_tpu {

// The number of devices. Never throws and never initialises: until the client exists it is what the environment and the
// machine tell, because autograd asks for it in programs that use no tpu. 0 after a failed initialisation.
c10::DeviceIndex device_count() noexcept;

// True once the client exists.
bool initialized() noexcept;
// Makes the client at its first call, or throws what went wrong. Also throws in a child forked from a process that had
// a client: neither XLA's threads nor a TPU survive a fork.
void ensure_initialized();
// True in such a child.
bool in_bad_fork() noexcept;
// Throws in such a child: for what works on tensors that exist, and so never initialises.
void check_fork();

// These initialise if need be.
const pjrt::Client& client();
const pjrt::Device& device(c10::DeviceIndex index);  // throws on an index that does not exist
bool is_cpu();                                       // the platform is an XLA CPU plugin

// The calling thread's current device.
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index);                    // throws on an index that does not exist
c10::DeviceIndex exchange_device(c10::DeviceIndex index) noexcept;  // unchecked; returns the previous one

}  // namespace torch_tpu
