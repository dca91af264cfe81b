// The nodes recorded since the last hand-over, numbered as the program they will be.
#pragma once

#include <vector>

#include "program.h"
#include "signature.h"
#include "value.h"

namespace torch_tpu {

using Values = c10::SmallVector<ValuePtr, 4>;

struct Node {
  const Signature* signature;
  Values outputs;
  uint32_t first_ref;     // in Trace::refs
  uint32_t first_scalar;  // in Trace::scalars
  uint32_t first_word;    // in Trace::key
  bool starts_op;         // the first node of an aten op: a program may begin here
};

// A number that no other trace of the process has had or will have.
uint64_t next_epoch();

struct Trace {
  // Appends a node; its results are one value per signature output, nullptr for an undefined one.
  const Values& append(const Signature& signature, c10::ArrayRef<ValuePtr> inputs, c10::ArrayRef<int32_t> scalars,
                       c10::DeviceIndex device);
  // Moves the marked nodes, which read no result of the others, into a trace of their own, to run before the rest.
  Trace extract(const std::vector<bool>& marked);
  // Remembers that `value`, a result of this trace, took the place of `old` in a storage.
  void replaced(Value& value, const Value& old) const;
  // The value behind a reference.
  const ValuePtr& at(const Ref& ref) const {
    return ref.node == 0 ? inputs[ref.index] : nodes[ref.node - 1].outputs[ref.index];
  }
  size_t refs_end(size_t node) const { return node + 1 < nodes.size() ? nodes[node + 1].first_ref : refs.size(); }

  uint64_t epoch = next_epoch();
  std::vector<Node> nodes;
  std::vector<Ref> refs;
  std::vector<ValuePtr> inputs;  // external ones, in order of first use
  std::vector<int32_t> scalars;
  std::vector<uint64_t> key;  // what tells its program from all others, but for outputs and donations
  size_t bytes = 0;           // of all results
  bool next_starts_op = true;

 private:
  Ref number(const ValuePtr& value);
  void append_node(const Signature& signature, c10::ArrayRef<ValuePtr> node_inputs, c10::ArrayRef<int32_t> words,
                   Values outputs, bool starts_op);
  void append_from(const Trace& other, size_t node);
  void renumber_replaced(const Trace& other);
};

// What a trace hands over: results that somebody can still see, and inputs whose buffers they may take.
struct Outputs {
  std::vector<Ref> refs;
  std::vector<ValuePtr> values;
  std::vector<int32_t> replaced;                         // by output: the input whose place it took, or -1
  std::vector<std::pair<uint32_t, uint32_t>> donations;  // (input, output)
  std::vector<uint32_t> initial;                         // nodes whose result's place some output took
};

Outputs live_outputs(const Trace& trace);

// Marks the nodes that only initialise a state which the trace goes on to update (an optimizer's first step): run
// apart, they leave the same program as every later step. Empty if there are none.
std::vector<bool> initialisations(const Trace& trace, const Outputs& outputs);

}  // namespace torch_tpu
