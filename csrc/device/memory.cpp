#include "memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <vector>

namespace torch_tpu::memory {

using c10::CachingAllocator::format_size;

struct Device {
  std::mutex mutex;
  Stats stats;
  size_t capacity = std::numeric_limits<int64_t>::max();
  size_t limit = std::numeric_limits<int64_t>::max();  // the one in force, kept up to date for the hot path
  std::optional<size_t> override_limit;
  Entry* head = nullptr;

  void link(Entry* entry) {
    entry->prev_ = nullptr;
    entry->next_ = head;
    if (head != nullptr) head->prev_ = entry;
    head = entry;
  }

  void unlink(Entry* entry) {
    if (entry->prev_ != nullptr) {
      entry->prev_->next_ = entry->next_;
    } else {
      head = entry->next_;
    }
    if (entry->next_ != nullptr) entry->next_->prev_ = entry->prev_;
  }

  const Entry* find(const void* address) const {
    const Entry* entry = head;
    while (entry != nullptr && entry->address_.load(std::memory_order_acquire) != address) entry = entry->next_;
    return entry;
  }

  bool fits(size_t nbytes) const {
    const auto used = static_cast<size_t>(stats.bytes.current);
    return nbytes <= limit && used <= limit - nbytes;
  }

  static std::string describe(const Entry& entry) {
    std::ostringstream out;
    if (entry.dim_ >= 0) {
      out << c10::toString(entry.dtype_) << '[';
      for (int i = 0; i < std::min<int>(entry.dim_, Entry::kDims); ++i) out << (i != 0 ? ", " : "") << entry.sizes_[i];
      out << (entry.dim_ > Entry::kDims ? ", ...]" : "]");
    } else {
      out << "untyped";
    }
    if (entry.op_ != nullptr) out << " made by " << entry.op_;
    return out.str();
  }

  std::string report(size_t lines) const {
    struct Group {
      size_t nbytes = 0;
      size_t count = 0;
    };
    std::map<std::string, Group> groups;
    for (const Entry* entry = head; entry != nullptr; entry = entry->next_) {
      Group& group = groups[describe(*entry)];
      group.nbytes += entry->nbytes_;
      ++group.count;
    }
    std::vector<std::pair<std::string, Group>> order(groups.begin(), groups.end());
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.second.nbytes > b.second.nbytes; });
    std::ostringstream out;
    for (size_t i = 0; i < std::min(lines, order.size()); ++i) {
      const auto& [what, group] = order[i];
      out << "  " << format_size(group.nbytes) << "  " << group.count << " x " << what << '\n';
    }
    if (order.size() > lines) out << "  ... and " << order.size() - lines << " more kinds\n";
    return out.str();
  }

  [[noreturn]] void out_of_memory(size_t nbytes, c10::DeviceIndex index) {
    ++stats.num_ooms;
    const auto used = static_cast<size_t>(stats.bytes.current);
    std::ostringstream out;
    out << "TPU out of memory. Tried to allocate " << format_size(nbytes) << " on tpu:" << static_cast<int>(index)
        << ", whose limit is " << format_size(limit);
    if (limit != capacity) out << " (set by TORCH_TPU_MEMORY_LIMIT or torch.tpu.config.memory_limit)";
    out << ". " << format_size(used) << " are held by " << stats.allocations.current << " live storages, "
        << format_size(limit > used ? limit - used : 0) << " are free.";
    if (head != nullptr) out << " The largest:\n" << report(10);
    C10_THROW_ERROR(OutOfMemoryError, out.str());
  }
};

namespace {

std::array<Device, kMaxDevices>& devices() {
  static auto* all = new std::array<Device, kMaxDevices>();  // leaked: storages may outlive static destruction
  return *all;
}

Device& at(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0, "tpu device index must not be negative, got ", static_cast<int>(index));
  return devices()[index];
}

void profile(const Entry* entry, int64_t delta, size_t total) {
  if (!c10::memoryProfilingEnabled()) return;
  c10::reportMemoryUsageToProfiler(const_cast<Entry*>(entry), delta, total, total,
                                   c10::Device(c10::DeviceType::PrivateUse1, entry->device()));
}

}  // namespace

Entry::Entry(c10::DeviceIndex device, size_t nbytes) : device_(device) {
  if (nbytes != 0) resize(nbytes);
}

Entry::~Entry() {
  if (nbytes_ == 0) return;
  Device& device = devices()[device_];
  size_t total = 0;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    device.unlink(this);
    device.stats.bytes.decrease(nbytes_);
    device.stats.allocations.decrease(1);
    total = static_cast<size_t>(device.stats.bytes.current);
  }
  profile(this, -static_cast<int64_t>(nbytes_), total);
}

void Entry::resize(size_t nbytes) {
  Device& device = at(device_);
  const auto delta = static_cast<int64_t>(nbytes) - static_cast<int64_t>(nbytes_);
  size_t total = 0;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    if (nbytes > nbytes_) {
      const size_t more = nbytes - nbytes_;
      if (C10_UNLIKELY(!device.fits(more))) device.out_of_memory(more, device_);
      device.stats.bytes.increase(more);
    } else {
      device.stats.bytes.decrease(nbytes_ - nbytes);
    }
    if (nbytes_ == 0 && nbytes != 0) {
      device.stats.allocations.increase(1);
      device.link(this);
    } else if (nbytes_ != 0 && nbytes == 0) {
      device.stats.allocations.decrease(1);
      device.unlink(this);
    }
    nbytes_ = nbytes;
    total = static_cast<size_t>(device.stats.bytes.current);
  }
  profile(this, delta, total);
}

void Entry::label(const char* op, c10::ScalarType dtype, c10::IntArrayRef sizes) {
  std::lock_guard<std::mutex> lock(at(device_).mutex);
  op_ = op;
  dtype_ = dtype;
  dim_ = static_cast<int8_t>(std::min<size_t>(sizes.size(), std::numeric_limits<int8_t>::max()));
  std::copy_n(sizes.begin(), std::min<size_t>(sizes.size(), kDims), sizes_);
}

Stats stats(c10::DeviceIndex index) {
  Device& device = at(index);
  std::lock_guard<std::mutex> lock(device.mutex);
  return device.stats;
}

void reset_peak(c10::DeviceIndex index) {
  Device& device = at(index);
  std::lock_guard<std::mutex> lock(device.mutex);
  device.stats.bytes.reset_peak();
  device.stats.allocations.reset_peak();
}

void reset_accumulated(c10::DeviceIndex index) {
  Device& device = at(index);
  std::lock_guard<std::mutex> lock(device.mutex);
  device.stats.bytes.reset_accumulated();
  device.stats.allocations.reset_accumulated();
  device.stats.num_ooms = 0;
}

size_t limit(c10::DeviceIndex index) {
  Device& device = at(index);
  std::lock_guard<std::mutex> lock(device.mutex);
  return device.limit;
}

void set_limit(c10::DeviceIndex index, std::optional<size_t> nbytes) {
  Device& device = at(index);
  std::lock_guard<std::mutex> lock(device.mutex);
  device.override_limit = nbytes;
  device.limit = nbytes.value_or(device.capacity);
}

void set_capacity(c10::DeviceIndex index, size_t nbytes) {
  Device& device = at(index);
  std::lock_guard<std::mutex> lock(device.mutex);
  device.capacity = nbytes;
  device.limit = device.override_limit.value_or(nbytes);
}

size_t capacity(c10::DeviceIndex index) {
  Device& device = at(index);
  std::lock_guard<std::mutex> lock(device.mutex);
  return device.capacity;
}

std::string report(c10::DeviceIndex index, size_t lines) {
  Device& device = at(index);
  std::lock_guard<std::mutex> lock(device.mutex);
  return device.report(lines);
}

const Entry* find(c10::DeviceIndex index, const void* address) {
  Device& device = at(index);
  std::lock_guard<std::mutex> lock(device.mutex);
  return device.find(address);
}

size_t parse_size(const std::string& text) {
  static const std::map<std::string, double> units = {{"", 1},
                                                      {"b", 1},
                                                      {"k", 1e3},
                                                      {"kb", 1e3},
                                                      {"m", 1e6},
                                                      {"mb", 1e6},
                                                      {"g", 1e9},
                                                      {"gb", 1e9},
                                                      {"t", 1e12},
                                                      {"tb", 1e12},
                                                      {"kib", 1024.0},
                                                      {"mib", 1048576.0},
                                                      {"gib", 1073741824.0},
                                                      {"tib", 1099511627776.0}};
  const char* begin = text.c_str();
  char* end = nullptr;
  const double number = std::strtod(begin, &end);
  std::string unit;
  for (const char* c = end; *c != '\0'; ++c) {
    if (std::isspace(static_cast<unsigned char>(*c)) == 0) {
      unit.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(*c))));
    }
  }
  const auto found = units.find(unit);
  const double nbytes = found == units.end() ? -1 : number * found->second;
  TORCH_CHECK_VALUE(end != begin && std::isfinite(nbytes) && nbytes > 0 && nbytes < 9e18, "not a memory size: '", text,
                    "'; write a number of bytes or a number with a unit such as 16GB or 16GiB");
  return static_cast<size_t>(nbytes);
}

}  // namespace torch_tpu::memory
