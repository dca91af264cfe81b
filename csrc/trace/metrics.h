// Named process-wide counts behind torch.tpu.metrics().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace torch_tpu {

using Counter = std::atomic<int64_t>;

// The counter of that name, made at first use; the reference stays valid for the life of the process.
Counter& counter(const std::string& name);

inline void count(Counter& c, int64_t n = 1) { c.fetch_add(n, std::memory_order_relaxed); }

std::map<std::string, int64_t> counters();

}  // namespace torch_tpu
