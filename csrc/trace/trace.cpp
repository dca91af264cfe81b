#include "trace.h"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace torch_tpu {

uint64_t next_epoch() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

Ref Trace::number(const ValuePtr& value) {
  if (value->epoch != epoch) {  // seen for the first time by this trace: an external input
    value->epoch = epoch;
    value->producer = 0;
    value->number = static_cast<uint32_t>(inputs.size());
    inputs.push_back(value);
  }
  return Ref{value->producer, value->number};
}

void Trace::append_node(const Signature& signature, c10::ArrayRef<ValuePtr> node_inputs, c10::ArrayRef<int32_t> words,
                        Values outputs, bool starts_op) {
  Node node{&signature,
            std::move(outputs),
            static_cast<uint32_t>(refs.size()),
            static_cast<uint32_t>(scalars.size()),
            static_cast<uint32_t>(key.size()),
            starts_op};
  key.push_back(signature.id);
  for (const ValuePtr& input : node_inputs) {
    refs.push_back(number(input));
    key.push_back(refs.back().word());
  }
  scalars.insert(scalars.end(), words.begin(), words.end());
  const uint32_t producer = static_cast<uint32_t>(nodes.size()) + 1;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (!node.outputs[i]) continue;
    node.outputs[i]->epoch = epoch;
    node.outputs[i]->producer = producer;
    node.outputs[i]->number = static_cast<uint32_t>(i);
    bytes += node.outputs[i]->nbytes();
  }
  nodes.push_back(std::move(node));
}

const Values& Trace::append(const Signature& signature, c10::ArrayRef<ValuePtr> node_inputs,
                            c10::ArrayRef<int32_t> words, c10::DeviceIndex device) {
  Values outputs;
  for (const OutputMeta& meta : signature.outputs) {
    const bool defined = meta.dtype != c10::ScalarType::Undefined;
    outputs.push_back(defined ? c10::make_intrusive<Value>(meta.dtype, meta.sizes, device) : ValuePtr());
  }
  append_node(signature, node_inputs, words, std::move(outputs), std::exchange(next_starts_op, false));
  return nodes.back().outputs;
}

void Trace::replaced(Value& value, const Value& old) const {
  // A value that is put back where it was before replaces nothing: the chain leads from younger to older ones.
  if (old.epoch == epoch && value.epoch == epoch && value.producer > old.producer) {
    value.replaces = Ref{old.producer, old.number}.word();
  }
}

void Trace::append_from(const Trace& other, size_t n) {
  Values node_inputs;
  for (size_t r = other.nodes[n].first_ref; r < other.refs_end(n); ++r) node_inputs.push_back(other.at(other.refs[r]));
  const size_t end = n + 1 < other.nodes.size() ? other.nodes[n + 1].first_scalar : other.scalars.size();
  const c10::ArrayRef<int32_t> words(other.scalars.data() + other.nodes[n].first_scalar, other.scalars.data() + end);
  append_node(*other.nodes[n].signature, node_inputs, words, other.nodes[n].outputs, other.nodes[n].starts_op);
}

// The nodes came from `other`, in whose numbers their values still name what they replaced.
void Trace::renumber_replaced(const Trace& other) {
  for (const Node& node : nodes) {
    for (const ValuePtr& value : node.outputs) {
      if (!value || value->replaces == Value::kNothing) continue;
      const ValuePtr& old = other.at(Ref::of(value->replaces));
      value->replaces = old->epoch == epoch ? Ref{old->producer, old->number}.word() : Value::kNothing;
    }
  }
}

Trace Trace::extract(const std::vector<bool>& marked) {
  Trace moved, rest;
  rest.next_starts_op = next_starts_op;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (marked[n]) moved.append_from(*this, n);
  }
  moved.renumber_replaced(*this);
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!marked[n]) rest.append_from(*this, n);
  }
  rest.renumber_replaced(*this);
  *this = std::move(rest);
  return moved;
}

Outputs live_outputs(const Trace& trace) {
  Outputs outputs;
  for (size_t n = 0; n < trace.nodes.size(); ++n) {
    const Values& values = trace.nodes[n].outputs;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i]) continue;
      // Another epoch: what was split off this trace reads it.
      const bool seen = values[i]->holders.load(std::memory_order_acquire) > 0 || values[i]->epoch != trace.epoch;
      if (!seen) continue;
      outputs.refs.push_back(Ref{static_cast<uint32_t>(n + 1), static_cast<uint32_t>(i)});
      outputs.values.push_back(values[i]);
    }
  }
  std::vector<bool> taken(trace.inputs.size()), given(outputs.refs.size());
  const auto may_take = [&](uint32_t index, const Value& output) {
    const Value& input = *trace.inputs[index];
    const bool unseen = input.holders.load(std::memory_order_acquire) == 0 && input.epoch == trace.epoch;
    return unseen && !taken[index] && input.dtype == output.dtype && input.dims == output.dims;
  };
  const auto donate = [&](uint32_t index, size_t output) {
    taken[index] = given[output] = true;
    outputs.donations.emplace_back(index, static_cast<uint32_t>(output));
  };
  for (size_t o = 0; o < outputs.refs.size(); ++o) {
    uint64_t word = outputs.values[o]->epoch == trace.epoch ? outputs.values[o]->replaces : Value::kNothing;
    while (word != Value::kNothing && Ref::of(word).node != 0) {
      const Ref root = Ref::of(word);
      word = trace.at(root)->replaces;
      if (word == Value::kNothing) outputs.initial.push_back(root.node - 1);
    }
    outputs.replaced.push_back(word == Value::kNothing ? -1 : static_cast<int32_t>(Ref::of(word).index));
    if (word == Value::kNothing) continue;
    if (may_take(Ref::of(word).index, *outputs.values[o])) donate(Ref::of(word).index, o);
  }
  // What nobody sees any more gives its buffer to a result of its shape: a state updated by functional ops.
  for (uint32_t i = 0; i < trace.inputs.size(); ++i) {
    if (taken[i] || trace.inputs[i]->holders.load(std::memory_order_acquire) > 0) continue;
    for (size_t o = 0; o < outputs.refs.size(); ++o) {
      if (outputs.replaced[o] >= 0 || given[o] || !may_take(i, *outputs.values[o])) continue;
      donate(i, o);
      break;
    }
  }
  return outputs;
}

std::vector<bool> initialisations(const Trace& trace, const Outputs& outputs) {
  static const std::unordered_set<std::string> constant{"aten::zeros_like", "aten::ones_like", "aten::full_like",
                                                        "aten::zeros",      "aten::ones",      "aten::full",
                                                        "aten::zero",       "aten::fill",      "torch_tpu::zeros"};
  std::vector<bool> marked;
  for (uint32_t n : outputs.initial) {
    if (constant.count(trace.nodes[n].signature->op) == 0) continue;
    bool apart = true;
    for (size_t r = trace.nodes[n].first_ref; r < trace.refs_end(n); ++r) apart &= trace.refs[r].node == 0;
    if (!apart) continue;
    marked.resize(trace.nodes.size());
    marked[n] = true;
  }
  return marked;
}

}  // namespace torch_tpu
