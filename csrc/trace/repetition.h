// Finds the period of an op stream that has no boundary of its own, and cuts at the same place in every iteration.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <deque>
#include <optional>
#include <vector>

#include "trace.h"

namespace torch_tpu {

// Watches the stream of one device between two natural boundaries (a host read, a step). An iteration is recognised by
// an op that reads the same external value as before, at a distance p, while the last p nodes are those of the p
// before: repeated layers read different weights and do not look like iterations. Nodes are the same if they have the
// same signature and read results from the same distances back, whether or not a cut lies between.
class Repetition {
 public:
  // To be called for each node, after it was appended.
  void add(const Trace& trace);
  // To be called at the end of an op: how many of the trace's first nodes are to be handed over, piece by piece.
  std::vector<size_t> cuts(const Trace& trace);
  // The host waits for the whole trace. At the second time for the same stream its pieces become known chunks: from the
  // third on the device works on the first ones while the host still records.
  void waited(const Trace& trace);
  // A cap cut the stream: it goes on.
  void handed_over(size_t nodes) { begin_ += nodes; }
  // A natural boundary: the stream starts anew. Known chunks stay known; pieces are cut only if the device is idle, as
  // the host has waited.
  void restart(bool idle);

 private:
  struct Chunk {
    size_t length;
    uint64_t hash;
    uint64_t used;
    bool piece;  // of a stream that the host waited for
  };
  size_t size() const { return hashes_.size() - 1; }
  uint64_t window(size_t begin, size_t end);
  bool repeats(size_t end, size_t period) {
    return window(end - period, end) == window(end - 2 * period, end - period);
  }
  size_t best_cut(const Trace& trace, size_t period) const;
  void learn_pieces(const Trace& trace);
  void learn(size_t length, uint64_t hash, bool piece);

  std::vector<uint64_t> hashes_{0};  // of all prefixes of the stream
  uint64_t origin_ = 1;              // the position of the stream's first node; positions are never reused
  std::vector<uint64_t> powers_{1};
  ska::flat_hash_map<uint64_t, uint32_t> anchors_;  // (signature, external value) -> where in the stream
  size_t candidate_ = 0;                            // a distance at which an anchor came again
  size_t begin_ = 0;                                // where in the stream the trace begins
  bool idle_ = false;
  std::vector<Chunk> chunks_;
  std::deque<uint64_t> waits_;  // the hashes of the streams that the host waited for lately
  uint64_t clock_ = 0;
};

}  // namespace torch_tpu
