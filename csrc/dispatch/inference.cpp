#include "inference.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/strides.h>

#include <unordered_set>

#include "../trace/strided.h"

namespace torch_tpu {
namespace {

// The functional form of a structured op computes its shapes, allocates its results and calls its out form. While a
// probe is set, the out form only notes the results.
struct Probe {
  const std::string& name;
  std::vector<OutputMeta> outputs;
  bool answered = false;
};

thread_local Probe* current_probe = nullptr;

std::optional<c10::OperatorHandle> functional_form(const OpEntry& entry) {
  if (!entry.returns_targets) return entry.targets.empty() ? std::optional(entry.op) : std::nullopt;
  return c10::Dispatcher::singleton().findOp({entry.functional, entry.functional_overload});
}

std::optional<std::vector<OutputMeta>> probe(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  const auto op = functional_form(entry);
  constexpr auto kStructured = c10::DispatchKey::CompositeExplicitAutogradNonFunctional;
  if (!op || !op->hasKernelForDispatchKey(kStructured)) return std::nullopt;
  // bernoulli has such a kernel too, which is no structured one: it calls bernoulli_.
  if (entry.random) return std::nullopt;
  torch::jit::Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!entry.parameters[i].out) stack.push_back(arguments[i]);
  }
  Probe probe{op->schema().name(), {}};
  Probe* const outer = std::exchange(current_probe, &probe);
  try {
    op->callBoxedForDispatchKey(kStructured, stack);
  } catch (...) {
    current_probe = outer;
    throw;
  }
  current_probe = outer;
  if (!probe.answered) return std::nullopt;
  return std::move(probe.outputs);
}

template <typename Visit>
void for_each_target(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, Visit visit) {
  for (size_t target : entry.targets) {
    const c10::IValue& value = arguments[target];
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    }
  }
}

// The results go into existing tensors: only the plain case, where they have its very shape and dtype, is decided
// here.
std::optional<Inferred> into_targets(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                                     const std::vector<OutputMeta>& results) {
  Inferred inferred;
  bool plain = true;
  size_t next = 0;
  for_each_target(entry, arguments, [&](const at::Tensor& tensor) {
    plain = plain && next < results.size() && tensor.defined() &&
            tensor.sizes() == at::IntArrayRef(results[next].sizes) && results[next].dtype == tensor.scalar_type() &&
            is_dense(tensor.sizes(), tensor.strides());
    ++next;
    if (plain) inferred.outputs.push_back(output_meta(tensor));
  });
  if (!plain || next != results.size()) return std::nullopt;
  for (size_t target : entry.targets) {
    if (entry.parameters[target].out) inferred.resized = inferred.outputs;
  }
  return inferred;
}

// A foreach op over lists of equal tensors does to each what it does to itself.
std::optional<Inferred> foreach (const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  const std::string& name = entry.op.schema().name();
  const bool fused = name.rfind("aten::_fused_adam", 0) == 0 || name.rfind("aten::_fused_sgd", 0) == 0;
  static const std::unordered_set<std::string> others{"aten::_foreach_norm", "aten::_foreach_max",
                                                      "aten::_foreach_powsum"};
  if (!fused && (name.rfind("aten::_foreach_", 0) != 0 || others.count(name) != 0)) return std::nullopt;
  if (fused && !entry.returns_targets) return std::nullopt;
  if (arguments.empty() || !arguments[0].isTensorList()) return std::nullopt;
  const std::vector<at::Tensor> first = arguments[0].toTensorVector();
  for (const at::Tensor& tensor : first) {
    if (!c10::isFloatingType(tensor.scalar_type()) || !is_dense(tensor.sizes(), tensor.strides())) return std::nullopt;
  }
  if (!fused) {
    for (size_t i = 1; i < arguments.size(); ++i) {
      if (arguments[i].isTensor()) return std::nullopt;
      if (!arguments[i].isTensorList()) continue;
      const std::vector<at::Tensor> other = arguments[i].toTensorVector();
      if (other.size() != first.size()) return std::nullopt;
      for (size_t t = 0; t < first.size(); ++t) {
        if (other[t].sizes() != first[t].sizes() || other[t].scalar_type() != first[t].scalar_type() ||
            other[t].strides() != first[t].strides()) {
          return std::nullopt;
        }
      }
    }
  }
  Inferred inferred;
  if (entry.returns_targets) {
    for_each_target(entry, arguments, [&](const at::Tensor& t) { inferred.outputs.push_back(output_meta(t)); });
  } else if (entry.targets.empty()) {
    for (const at::Tensor& tensor : first) inferred.outputs.push_back(output_meta(tensor));
    inferred.list_sizes.push_back(first.size());
  } else {
    return std::nullopt;
  }
  return inferred;
}

}  // namespace

OutputMeta output_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return {c10::ScalarType::Undefined, {}, {}};
  OutputMeta meta{tensor.scalar_type(), Dims(tensor.sizes().begin(), tensor.sizes().end()),
                  Dims(tensor.strides().begin(), tensor.strides().end())};
  if (!is_dense(meta.sizes, meta.strides)) {
    const auto contiguous = c10::contiguous_strides(tensor.sizes());
    meta.strides.assign(contiguous.begin(), contiguous.end());
  }
  return meta;
}

std::optional<Inferred> infer(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  if (auto inferred = foreach (entry, arguments)) return inferred;
  auto results = probe(entry, arguments);
  if (!results) return std::nullopt;
  if (entry.returns_targets) return into_targets(entry, arguments, *results);
  return Inferred{std::move(*results), {}};
}

bool answer_probe(const OpEntry& entry, torch::jit::Stack* stack) {
  if (current_probe == nullptr || entry.op.schema().name() != current_probe->name) return false;
  const size_t nargs = entry.parameters.size();
  const c10::ArrayRef<c10::IValue> arguments(stack->data() + stack->size() - nargs, nargs);
  torch::jit::Stack returns;
  for (size_t i = 0; i < nargs; ++i) {
    if (!entry.parameters[i].out || !arguments[i].isTensor()) continue;
    current_probe->outputs.push_back(output_meta(arguments[i].toTensor()));
    returns.push_back(arguments[i]);
  }
  if (returns.empty()) return false;
  current_probe->answered = true;
  torch::jit::drop(*stack, nargs);
  for (c10::IValue& value : returns) stack->push_back(std::move(value));
  return true;
}

}  // namespace torch_tpu
