#include "metrics.h"

#include <mutex>

namespace torch_tpu {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, Counter> counters;
};

Registry& registry() {
  static auto* instance = new Registry;  // outlives static destruction: late threads may still count
  return *instance;
}

}  // namespace

Counter& counter(const std::string& name) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  return registry().counters[name];
}

std::map<std::string, int64_t> counters() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  std::map<std::string, int64_t> result;
  for (const auto& [name, value] : registry().counters) result[name] = value.load(std::memory_order_relaxed);
  return result;
}

}  // namespace torch_tpu
