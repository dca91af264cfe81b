#include "runtime.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>

#include "memory.h"

namespace torch_tpu {

namespace {

enum class State { kUnused, kReady, kFailed, kForked };

std::atomic<State> state{State::kUnused};
thread_local c10::DeviceIndex current = 0;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string first_word(const std::filesystem::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

// How many XLA devices the TPU chips on this machine's PCI bus are.
int tpu_devices_on_bus() {
  static const std::map<std::string, int> devices_per_chip = {
      {"0x0027", 2},  // v2, v3
      {"0x005e", 1},  // v4
      {"0x0062", 1},  // v5p
      {"0x0063", 1},  // v5e
      {"0x006f", 1},  // v6e
      {"0x0076", 2},  // tpu7x
  };
  int count = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", none)) {
    if (first_word(entry.path() / "vendor") != "0x1ae0") continue;
    const auto chip = devices_per_chip.find(first_word(entry.path() / "device"));
    if (chip != devices_per_chip.end()) count += chip->second;
  }
  return count;
}

int expected_devices() {
  const std::string platform = environment("TORCH_TPU_PLATFORM");
  if (platform != "cpu") {
    const int count = tpu_devices_on_bus();
    if (count > 0 || platform == "tpu") {
      const std::string visible = environment("TPU_VISIBLE_CHIPS");
      return visible.empty() ? count : 1 + static_cast<int>(std::count(visible.begin(), visible.end(), ','));
    }
  }
  const std::string devices = environment("TORCH_TPU_CPU_DEVICES");
  return devices.empty() ? 1 : std::atoi(devices.c_str());
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

[[noreturn]] void throw_forked() {
  TORCH_CHECK(false,
              "Cannot use tpu in a forked child process: its parent had already initialised the device, which does not "
              "survive a fork. Start the process with the 'spawn' method (torch.multiprocessing.set_start_method"
              "('spawn')), or make the first use of tpu after the fork.");
  std::abort();  // not reached
}

void initialize() {
  static const bool watching = [] {
    pthread_atfork(nullptr, nullptr, [] {
      if (state.load() == State::kReady) state.store(State::kForked);
    });
    return true;
  }();
  (void)watching;
  try {
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
  return clamp(static_cast<size_t>(std::max(expected_devices(), 0)));
}

bool initialized() noexcept { return state.load(std::memory_order_acquire) == State::kReady; }

bool in_bad_fork() noexcept { return state.load(std::memory_order_acquire) == State::kForked; }

void ensure_initialized() {
  if (C10_LIKELY(initialized())) return;
  if (in_bad_fork()) throw_forked();
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
