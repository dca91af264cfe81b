#include "runtime.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <mutex>

#include "../trace/gil.h"
#include "memory.h"

namespace py = pybind11;

namespace torch_tpu {

namespace {

enum class State { kUnused, kReady, kFailed, kForked };

std::atomic<State> state{State::kUnused};
thread_local c10::DeviceIndex current = 0;

// Counting devices is the platform module's business; what goes wrong there is reported by ensure_initialized().
int expected_devices() noexcept {
  if (!Py_IsInitialized()) return 0;
  const py::gil_scoped_acquire gil;
  try {
    return py::module_::import("torch_tpu.compiler.platform").attr("device_count")().cast<int>();
  } catch (const std::exception&) {
    return 0;
  }
}

c10::DeviceIndex clamp(size_t count) {
  return static_cast<c10::DeviceIndex>(std::min<size_t>(count, std::numeric_limits<c10::DeviceIndex>::max()));
}

// The machine's memory, or what a container may use of it.
size_t host_memory() {
  const size_t total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  size_t allowed = 0;
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (std::ifstream(file) >> allowed && allowed > 0) return std::min(total, allowed);
  }
  return total;
}

size_t capacity_of(const pjrt::Device& device) {
  const auto stats = device.memory_stats();
  const auto limit = stats.find("bytes_limit");
  return limit != stats.end() && limit->second > 0 ? static_cast<size_t>(limit->second) : host_memory();
}

void initialize() {
  static auto* mutex = new std::mutex();
  const auto lock = lock_without_gil(*mutex);
  if (initialized()) return;
  static const int watching = pthread_atfork(nullptr, nullptr, [] {
    if (initialized()) state.store(State::kForked);
  });
  TORCH_CHECK(watching == 0, "pthread_atfork failed");
  try {
    {
      const py::gil_scoped_acquire gil;
      py::module_::import("torch_tpu.tpu").attr("_before_first_use")();
    }
    const auto& devices = pjrt::default_client()->devices();
    for (c10::DeviceIndex i = 0; i < clamp(devices.size()); ++i) memory::set_capacity(i, capacity_of(devices[i]));
  } catch (...) {
    state.store(State::kFailed);
    throw;
  }
  state.store(State::kReady, std::memory_order_release);
}

}  // namespace

c10::DeviceIndex device_count() noexcept {
  switch (state.load(std::memory_order_acquire)) {
    case State::kReady:
    case State::kForked:
      return clamp(pjrt::default_client()->devices().size());
    case State::kFailed:
      return 0;
    case State::kUnused:
      break;
  }
  return clamp(static_cast<size_t>(expected_devices()));
}

bool initialized() noexcept { return state.load(std::memory_order_acquire) == State::kReady; }

bool in_bad_fork() noexcept { return state.load(std::memory_order_acquire) == State::kForked; }

void check_fork() {
  if (C10_LIKELY(!in_bad_fork())) return;
  C10_THROW_ERROR(
      Error,
      "Cannot use tpu in a forked child process: its parent had already initialised the device, which does not "
      "survive a fork. Start the process with the 'spawn' method (torch.multiprocessing.set_start_method"
      "('spawn')), or make the first use of tpu after the fork.");
}

void ensure_initialized() {
  if (C10_LIKELY(initialized())) return;
  check_fork();
  initialize();
}

const pjrt::Client& client() {
  ensure_initialized();
  return *pjrt::default_client();
}

const pjrt::Device& device(c10::DeviceIndex index) {
  const auto& devices = client().devices();
  TORCH_CHECK(index >= 0 && static_cast<size_t>(index) < devices.size(), "invalid tpu device index ",
              static_cast<int>(index), ": there are ", devices.size(), " tpu devices");
  return devices[index];
}

bool is_cpu() { return client().platform_name() == "cpu"; }

c10::DeviceIndex current_device() noexcept { return current; }

void set_current_device(c10::DeviceIndex index) {
  if (index == current) return;
  const c10::DeviceIndex count = device_count();
  TORCH_CHECK(index >= 0 && index < count, "invalid tpu device index ", static_cast<int>(index), ": there are ",
              static_cast<int>(count), " tpu devices");
  current = index;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) noexcept { return std::exchange(current, index); }

}  // namespace torch_tpu
