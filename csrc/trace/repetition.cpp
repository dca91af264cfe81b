#include "repetition.h"

#include <algorithm>

namespace torch_tpu {
namespace {

constexpr uint64_t kBase = 0x9E3779B97F4A7C15ull | 1;
// Shorter iterations are joined until a chunk is worth a launch.
constexpr size_t kMinChunk = 128;
constexpr size_t kMaxChunks = 32;
// Longer streams are forgotten: a period beyond half of it is not looked for.
constexpr size_t kMaxStream = size_t{1} << 17;

}  // namespace

void Repetition::restart() {
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
    restart();
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

// The place in the last period where the fewest bytes of passing values cross. Looked up one period earlier, where all
// their readers are known.
size_t Repetition::best_cut(const Trace& trace, size_t period) const {
  const size_t n = trace.nodes.size();
  const size_t window_begin = n > 2 * period ? n - 2 * period : 0;
  std::vector<size_t> last_use(n, 0);
  for (size_t i = window_begin; i < n; ++i) {
    for (size_t r = trace.nodes[i].first_ref; r < trace.refs_end(i); ++r) {
      if (trace.refs[r].node != 0) last_use[trace.refs[r].node - 1] = i;
    }
  }
  std::vector<int64_t> crossing(n + 1, 0);  // difference array: bytes alive before node i
  for (size_t i = window_begin; i < n; ++i) {
    int64_t bytes = 0;
    for (const ValuePtr& value : trace.nodes[i].outputs) {
      if (value && value->holders.load(std::memory_order_relaxed) == 0) bytes += static_cast<int64_t>(value->nbytes());
    }
    if (last_use[i] <= i) continue;
    crossing[i + 1] += bytes;
    crossing[std::min(last_use[i] + 1, n)] -= bytes;
  }
  size_t best = n;
  int64_t least = -1, alive = 0;
  for (size_t i = window_begin; i < n; ++i) {
    alive += crossing[i];
    if (i + period > n || i <= window_begin || !trace.nodes[i].starts_op) continue;
    if (least < 0 || alive <= least) {
      least = alive;
      best = i + period;
    }
  }
  return best;
}

std::vector<size_t> Repetition::cuts(const Trace& trace) {
  const size_t end = size();
  const size_t pending = trace.nodes.size();
  if (end != begin_ + pending) {  // forgotten in the middle of a trace
    candidate_ = 0;
    return {};
  }
  for (Chunk& chunk : chunks_) {
    if (pending < chunk.length || window(end - chunk.length, end) != chunk.hash) continue;
    chunk.used = ++clock_;
    candidate_ = 0;
    if (pending == chunk.length) return {pending};
    return {pending - chunk.length, chunk.length};
  }
  const size_t period = std::exchange(candidate_, 0);
  if (period == 0 || end < 2 * period || !repeats(end, period) || pending < period) return {};
  const size_t cut = best_cut(trace, period);
  if (cut > pending || (cut < pending && !trace.nodes[cut].starts_op)) return {};
  learn(period, window(begin_ + cut - period, begin_ + cut));
  if (cut <= period) return {cut};
  return {cut - period, period};
}

void Repetition::learn(size_t length, uint64_t hash) {
  if (chunks_.size() >= kMaxChunks) {
    chunks_.erase(std::min_element(chunks_.begin(), chunks_.end(),
                                   [](const Chunk& a, const Chunk& b) { return a.used < b.used; }));
  }
  chunks_.push_back({length, hash, ++clock_});
}

}  // namespace torch_tpu
