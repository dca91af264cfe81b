#include "refusal.h"

#include <ATen/ATen.h>

#include "../trace/bind.h"
#include "arguments.h"

namespace torch_tpu {
namespace {

uint32_t words_of(const Argument& argument) {
  if (argument.kind == Argument::Kind::kScalar) return scalar_words(argument.scalar);
  uint32_t words = 0;
  for (const Argument& item : argument.items) words += words_of(item);
  return words;
}

// Lowers the op by itself, so that arguments which its rule refuses are refused at the call, in PyTorch's words, or run
// on the CPU where PyTorch has a kernel for them.
void try_lowering(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, Signature& s) {
  ProgramDescription description;
  description.inputs = s.inputs;
  NodeDescription node{&s, {}, 0};
  for (uint32_t i = 0; i < s.inputs.size(); ++i) node.inputs.push_back({0, i});
  description.nodes.push_back(std::move(node));
  for (const Argument& argument : s.arguments) description.scalar_words += words_of(argument);
  if (entry.random) description.scalar_words += 2 * scalar_words(ScalarKind::kUint64);
  for (uint32_t i = 0; i < s.outputs.size(); ++i) {
    if (s.outputs[i].dtype != c10::ScalarType::Undefined) description.outputs.push_back({1, i});
  }
  const std::string refusal = why_not_lowered(description);
  if (refusal.empty()) return;
  throw_as_on_cpu(entry, arguments, kLargeZeros);
  s.fallback = true;
  s.fallback_reason = "its rule refuses these arguments: " + refusal;
}

// Whether an in-place or out argument has another dtype than the op's result: not every dtype can be cast to it.
bool targets_change_dtype(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, const Signature& s) {
  if (!entry.returns_targets) return false;
  size_t output = 0;
  bool change = false;
  for (size_t target : entry.targets) {
    for_each_tensor(arguments[target], [&](const at::Tensor& tensor) {
      const OutputMeta& meta = s.outputs[output++];
      change |= tensor.defined() && tensor.scalar_type() != meta.dtype;
    });
  }
  return change;
}

}  // namespace

void throw_as_on_cpu(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, int64_t largest) {
  int64_t elements = 0;
  const auto zeros = [&](const at::Tensor& t) {
    if (!t.defined() || t.device().is_cpu()) return t;
    elements += t.numel();
    return at::zeros(elements > largest ? at::IntArrayRef{0} : t.sizes(), t.options().device(at::kCPU));
  };
  torch::jit::Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    stack.push_back(elsewhere(arguments[i], entry.parameters[i], c10::DeviceType::CPU, zeros));
  }
  if (elements > largest) return;
  at::AutoDispatchBelowADInplaceOrView guard;
  entry.op.callBoxed(&stack);
}

void refuse_as_on_cpu(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, int64_t largest) {
  if (entry.random || !entry.cpu_takes_zeros) return;
  try {
    throw_as_on_cpu(entry, arguments, largest);
  } catch (const c10::LinAlgError&) {
  } catch (const c10::Error& error) {
    if (error.msg().find("ZeroDivisionError") == std::string::npos) throw;
  }
}

void check_arguments(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, Signature& s) {
  bool any_float = false, any_complex = false, any_float8 = false, any_empty = false;
  for (const InputMeta& input : s.inputs) {
    any_float |= c10::isFloatingType(input.dtype);
    any_float8 |= c10::isFloat8Type(input.dtype);
    any_complex |= c10::isComplexType(input.dtype);
    any_empty |= std::count(input.sizes.begin(), input.sizes.end(), 0) > 0;
  }
  int64_t results = 0;
  for (const OutputMeta& output : s.outputs) results = std::max(results, c10::multiply_integers(output.sizes));
  const bool usual = any_float && !any_complex && !any_empty;
  const int64_t largest = usual ? kSmallZeros : kLargeZeros;
  if (!s.inputs.empty() && !any_float8 && results <= largest) refuse_as_on_cpu(entry, arguments, largest);
  if (any_float8 || any_complex || any_empty) try_lowering(entry, arguments, s);
}

void check_targets(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, const Signature& s) {
  if (targets_change_dtype(entry, arguments, s)) refuse_as_on_cpu(entry, arguments, kLargeZeros);
}

void check_fits(const c10::Scalar& number, c10::ScalarType dtype) {
  if (number.isBoolean() || c10::isComplexType(dtype)) return;
  if (c10::isFloatingType(dtype) && !number.isComplex()) return;
  if (number.isIntegral(false) && number.toLong() >= 0 && number.toLong() <= INT8_MAX) return;
  at::empty({}, at::TensorOptions().dtype(dtype)).fill_(number);
}

}  // namespace torch_tpu
