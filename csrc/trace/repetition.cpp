#include "repetition.h"

#include <algorithm>
#include <numeric>

namespace torch_tpu {
namespace {

constexpr uint64_t kBase = 0x9E3779B97F4A7C15ull | 1;
// Shorter iterations are joined until a chunk is worth a launch.
constexpr size_t kMinChunk = 128;
constexpr size_t kMaxChunks = 64;
// A stream that the host waits for goes in up to four pieces of at least 12 nodes. Not if its results are large: a
// device that works on each node longer than the host records it gains nothing. Nor if they are tiny: launching costs
// more.
constexpr size_t kMaxPieces = 4;
constexpr size_t kMinPiece = 12;
constexpr size_t kLargeNode = size_t{256} << 10;
constexpr size_t kTinyNode = size_t{32} << 10;
constexpr size_t kRememberedWaits = 16;
// Longer streams are forgotten: a period beyond half of it is not looked for.
constexpr size_t kMaxStream = size_t{1} << 17;

}  // namespace

void Repetition::restart(bool idle) {
  idle_ = idle;
  origin_ += size();
  hashes_.resize(1);
  anchors_.clear();
  candidate_ = 0;
  begin_ = 0;
}

uint64_t Repetition::window(size_t begin, size_t end) {
  while (powers_.size() <= end - begin) powers_.push_back(powers_.back() * kBase);
  return hashes_[end] - hashes_[begin] * powers_[end - begin];
}

void Repetition::add(const Trace& trace) {
  if (size() >= kMaxStream) {
    const size_t pending = trace.nodes.size();
    restart(false);
    if (pending > 1) return;  // goes on at the next hand-over
  }
  const Node& node = trace.nodes.back();
  const uint64_t position = origin_ + size();
  for (const ValuePtr& value : node.outputs) {
    if (value) value->position = position;
  }
  uint64_t hash = node.signature->id + 1;
  for (size_t r = node.first_ref; r < trace.refs.size(); ++r) {
    const Value& input = *trace.at(trace.refs[r]);
    const bool inside = input.position >= origin_;
    hash = hash * kBase + (inside ? position - input.position + 1 : 1);
  }
  hashes_.push_back(hashes_.back() * kBase + hash * 0xD6E8FEB86659FD93ull);
  const uint32_t here = static_cast<uint32_t>(size());
  for (size_t r = node.first_ref; r < trace.refs.size(); ++r) {
    const Value& input = *trace.at(trace.refs[r]);
    if (input.position >= origin_) continue;
    const uint64_t anchor = (input.serial << 20) ^ (node.signature->id * 8 + (r - node.first_ref));
    auto [place, fresh] = anchors_.emplace(anchor, here);
    if (fresh) continue;
    const size_t distance = here - place->second;
    place->second = here;
    const size_t period = (kMinChunk + distance - 1) / distance * distance;
    if (candidate_ == 0 && here >= 2 * period && repeats(here, period)) candidate_ = period;
  }
}

// How many bytes of values that nobody holds pass each place: computed before it, read behind it. Of the nodes from
// `begin` on.
std::vector<int64_t> passing_bytes(const Trace& trace, size_t begin) {
  const size_t n = trace.nodes.size();
  std::vector<size_t> last_use(n, 0);
  for (size_t i = begin; i < n; ++i) {
    for (size_t r = trace.nodes[i].first_ref; r < trace.refs_end(i); ++r) {
      if (trace.refs[r].node != 0) last_use[trace.refs[r].node - 1] = i;
    }
  }
  std::vector<int64_t> passing(n + 1, 0);  // at first the differences from place to place
  for (size_t i = begin; i < n; ++i) {
    int64_t bytes = 0;
    for (const ValuePtr& value : trace.nodes[i].outputs) {
      if (value && value->holders.load(std::memory_order_relaxed) == 0) bytes += static_cast<int64_t>(value->nbytes());
    }
    if (last_use[i] <= i) continue;
    passing[i + 1] += bytes;
    passing[std::min(last_use[i] + 1, n)] -= bytes;
  }
  std::partial_sum(passing.begin(), passing.end(), passing.begin());
  return passing;
}

// The place in the last period that the fewest bytes pass. Looked up one period earlier, where all their readers are
// known.
size_t Repetition::best_cut(const Trace& trace, size_t period) const {
  const size_t n = trace.nodes.size();
  const size_t window_begin = n > 2 * period ? n - 2 * period : 0;
  const std::vector<int64_t> passing = passing_bytes(trace, window_begin);
  size_t best = n;
  for (size_t i = window_begin + 1; i + period <= n; ++i) {
    if (trace.nodes[i].starts_op && (best == n || passing[i] <= passing[best - period])) best = i + period;
  }
  return best;
}

void Repetition::waited(const Trace& trace) {
  const size_t n = size();
  if (begin_ != 0 || trace.nodes.size() != n || n < 2 * kMinPiece) return;
  if (trace.bytes > n * kLargeNode || trace.bytes < n * kTinyNode) return;
  const uint64_t hash = window(0, n);
  if (std::find(waits_.begin(), waits_.end(), hash) != waits_.end()) return learn_pieces(trace);
  if (waits_.size() == kRememberedWaits) waits_.pop_front();
  waits_.push_back(hash);
}

// About equally long pieces, cut where the fewest bytes pass.
void Repetition::learn_pieces(const Trace& trace) {
  const size_t n = size();
  const size_t length = n / std::min(kMaxPieces, n / kMinPiece);
  const std::vector<int64_t> passing = passing_bytes(trace, 0);
  size_t begin = 0;
  for (size_t ideal = length; ideal + length <= n; ideal += length) {
    size_t cut = 0;
    for (size_t i = ideal - length / 4; i <= ideal + length / 4; ++i) {
      if (trace.nodes[i].starts_op && (cut == 0 || passing[i] < passing[cut])) cut = i;
    }
    if (cut == 0) continue;
    learn(cut - begin, window(begin, cut), true);
    begin = cut;
  }
}

std::vector<size_t> Repetition::cuts(const Trace& trace) {
  const size_t end = size();
  const size_t pending = trace.nodes.size();
  if (end != begin_ + pending) {  // forgotten in the middle of a trace
    candidate_ = 0;
    return {};
  }
  for (Chunk& chunk : chunks_) {
    if (pending < chunk.length || (chunk.piece && !idle_)) continue;
    if (window(end - chunk.length, end) != chunk.hash) continue;
    chunk.used = ++clock_;
    candidate_ = 0;
    if (pending == chunk.length) return {pending};
    return {pending - chunk.length, chunk.length};
  }
  const size_t period = std::exchange(candidate_, 0);
  if (period == 0 || end < 2 * period || !repeats(end, period) || pending < period) return {};
  const size_t cut = best_cut(trace, period);
  if (cut > pending || (cut < pending && !trace.nodes[cut].starts_op)) return {};
  learn(period, window(begin_ + cut - period, begin_ + cut), false);
  if (cut <= period) return {cut};
  return {cut - period, period};
}

void Repetition::learn(size_t length, uint64_t hash, bool piece) {
  if (chunks_.size() >= kMaxChunks) {
    chunks_.erase(std::min_element(chunks_.begin(), chunks_.end(),
                                   [](const Chunk& a, const Chunk& b) { return a.used < b.used; }));
  }
  chunks_.push_back({length, hash, ++clock_, piece});
}

}  // namespace torch_tpu
