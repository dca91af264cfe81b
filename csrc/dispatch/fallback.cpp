#include <ATen/native/CPUFallback.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <unordered_set>

#include "../trace/metrics.h"
#include "op_entry.h"

namespace torch_tpu {
namespace {

std::atomic<FallbackPolicy> policy{FallbackPolicy::kWarn};

bool first_time(const std::string& name) {
  static std::mutex mutex;
  static auto* seen = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  return seen->insert(name).second;
}

}  // namespace

void set_fallback_policy(FallbackPolicy value) { policy.store(value); }

void note_fallback(const c10::OperatorHandle& op, const std::string& reason) {
  const auto& schema = op.schema();
  const std::string name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  TORCH_CHECK_NOT_IMPLEMENTED(policy.load() != FallbackPolicy::kError, name, " would run on the CPU (", reason,
                              "), and torch.tpu.config.cpu_fallback is \"error\"; set it to \"warn\" or \"silent\" to "
                              "allow that");
  count(counter("cpu_fallback." + name));
  static Counter& total = counter("cpu_fallbacks");
  count(total);
  if (policy.load() == FallbackPolicy::kWarn && first_time(name)) {
    TORCH_WARN(name, " runs on the CPU: ", reason,
               ". Its inputs and results are copied at each call. (Said once an op; torch.tpu.config.cpu_fallback "
               "silences or forbids it, torch.tpu.metrics() counts it.)");
  }
}

void run_on_cpu(OpEntry& entry, torch::jit::Stack* stack, const std::string& reason) {
  note_fallback(entry.op, reason);
  at::native::cpu_fallback(entry.op, stack, /*error_on_views=*/true);
}

}  // namespace torch_tpu
