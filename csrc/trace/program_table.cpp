#include "program_table.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>

#include "metrics.h"

namespace torch_tpu {
namespace {

constexpr size_t kLogSize = 4096;
// After so many new programs it is looked whether the process has memory mappings left.
constexpr size_t kMappingsLook = 64;
// How many programs back the search for the most similar one goes.
constexpr size_t kCompared = 256;
// Sizes that came so often in a bucket's program, where padding takes time at every launch, get a program of their own.
constexpr uint32_t kOften = 32;

// Whether more than half of the memory mappings that Linux allows a process are in use. A program of the CPU plugin
// takes up to a hundred of them, and where there are none left, LLVM ends the process.
bool mappings_are_scarce() {
  std::ifstream limit("/proc/sys/vm/max_map_count"), mappings("/proc/self/maps");
  size_t allowed = 0;
  if (!(limit >> allowed)) return false;
  using Chars = std::istreambuf_iterator<char>;
  return static_cast<size_t>(std::count(Chars(mappings), Chars(), '\n')) > allowed / 2;
}

ProgramDescription describe(const Trace& trace, const Outputs& outputs, c10::DeviceIndex device) {
  ProgramDescription description;
  description.device = device;
  for (const ValuePtr& input : trace.inputs) description.inputs.push_back({input->dtype, input->dims});
  for (size_t n = 0; n < trace.nodes.size(); ++n) {
    const Node& node = trace.nodes[n];
    description.nodes.push_back({node.signature,
                                 {trace.refs.begin() + node.first_ref, trace.refs.begin() + trace.refs_end(n)},
                                 node.first_scalar});
  }
  description.outputs = outputs.refs;
  description.donations = outputs.donations;
  description.scalar_words = static_cast<uint32_t>(trace.scalars.size());
  return description;
}

// Equal for programs that differ in nothing but integers.
uint64_t family_of(const ProgramDescription& description) {
  std::vector<uint64_t> words{static_cast<uint64_t>(description.device), description.inputs.size()};
  for (const NodeDescription& node : description.nodes) {
    words.push_back(node.signature->family);
    for (const Ref& ref : node.inputs) words.push_back(ref.word());
  }
  for (const Ref& ref : description.outputs) words.push_back(ref.word());
  for (const auto& [input, output] : description.donations) words.push_back(Ref{input, output}.word());
  return hash_words(words.data(), words.size());
}

bool may_run(const Program& program, const std::vector<int32_t>& scalars) {
  if (program.padding == nullptr) return true;
  const auto& fixed = program.padding->fixed;
  return std::all_of(fixed.begin(), fixed.end(), [&](const auto& word) { return scalars[word.first] == word.second; });
}

size_t bytes_of(const std::vector<ValuePtr>& values) {
  size_t bytes = 0;
  for (const ValuePtr& value : values) bytes += value->nbytes();
  return bytes;
}

std::string at_site(const Signature& signature) {
  return signature.op + (signature.site.empty() ? "" : " at " + signature.site);
}

// Why two nodes at the same place are not the same.
std::string node_difference(const Signature& now, const Signature& before) {
  std::ostringstream text;
  if (now.op != before.op || now.overload != before.overload) {
    text << at_site(now) << ", was " << at_site(before);
    return text.str();
  }
  for (size_t i = 0; i < std::min(now.inputs.size(), before.inputs.size()); ++i) {
    if (now.inputs[i].dtype != before.inputs[i].dtype) {
      text << "input " << i << " of " << at_site(now) << ": dtype " << now.inputs[i].dtype << ", was "
           << before.inputs[i].dtype;
      return text.str();
    }
    if (now.inputs[i].sizes != before.inputs[i].sizes) {
      text << "input " << i << " of " << at_site(now) << ": size " << c10::IntArrayRef(now.inputs[i].sizes) << ", was "
           << c10::IntArrayRef(before.inputs[i].sizes);
      return text.str();
    }
  }
  for (size_t i = 0; i < std::min(now.outputs.size(), before.outputs.size()); ++i) {
    if (now.outputs[i].sizes != before.outputs[i].sizes) {
      text << "result " << i << " of " << at_site(now) << ": size " << c10::IntArrayRef(now.outputs[i].sizes)
           << ", was " << c10::IntArrayRef(before.outputs[i].sizes);
      return text.str();
    }
  }
  text << "a static argument of " << at_site(now);
  return text.str();
}

}  // namespace

std::shared_ptr<Program> ProgramTable::find_or_compile(const Trace& trace, Outputs& outputs, c10::DeviceIndex device,
                                                       const char* reason, bool may_pad) {
  static Counter& programs = counter("programs");
  static Counter& padded = counter("padded_programs");
  std::vector<uint64_t> key = trace.key;
  key.push_back(~static_cast<uint64_t>(device));
  const uint64_t hash = hash_words(key.data(), key.size());
  std::shared_ptr<Program> program = find(programs_[hash], key, trace, outputs);
  bool known = program != nullptr;
  if (!known) {
    make_room();
    ProgramDescription description = describe(trace, outputs, device);
    std::string why = difference(description);
    program = std::make_shared<Program>(std::move(key), std::move(description), user_site(), std::move(why));
    programs_[hash].push_back(program);
    in_order_.push_back(program.get());
    const auto start = std::chrono::steady_clock::now();
    program->padding = may_pad ? padding_for(program, trace.scalars) : nullptr;
    if (program->padding == nullptr) {
      compile_async(program);
    } else {
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      program->summary->compile_seconds = seconds.count();
      known = !program->padding->fresh;
      count(padded);
      program->finish(program->padding->executable);
    }
    if (!known) count(programs);
  }
  if (program->padding != nullptr) program = exact_if_often(std::move(program));
  program->used = ++clock_;
  size_t donated = 0;
  for (const auto& donation : outputs.donations) donated += trace.inputs[donation.first]->nbytes();
  if (log_.size() == kLogSize) log_.pop_front();
  log_.push_back({reason, program->summary, program, known, donated});
  return program;
}

std::unique_ptr<const Padding> ProgramTable::padding_for(const std::shared_ptr<Program>& program,
                                                         const std::vector<int32_t>& scalars) {
  const uint64_t family = family_of(program->description);
  std::weak_ptr<const Program>& entry = families_[family];
  const std::shared_ptr<const Program> first = entry.lock();
  if (first == nullptr) {
    entry = program;
    return nullptr;
  }
  return pad(family, program->description, scalars, first->description, bucket_growth, bucket_minimum);
}

// Compiled in the background: until it is ready the bucket's program goes on.
std::shared_ptr<Program> ProgramTable::exact_if_often(std::shared_ptr<Program> program) {
  static Counter& programs = counter("programs");
  if (++program->padded_launches == kOften) {
    count(programs);
    program->exact = std::make_shared<Program>(program->key, program->description, program->summary->site,
                                               "its sizes came often in a program of their bucket");
    compile_async(program->exact);
  }
  if (program->exact == nullptr || program->exact->state() != Program::State::kReady) return program;
  Bucket& bucket = programs_[hash_words(program->key.data(), program->key.size())];
  std::replace(bucket.begin(), bucket.end(), program, program->exact);
  std::replace(in_order_.begin(), in_order_.end(), program.get(), program->exact.get());
  return program->exact;
}

void ProgramTable::make_room() {
  static Counter& evictions = counter("program_evictions");
  const bool looks = in_order_.size() % kMappingsLook == kMappingsLook - 1;
  if (in_order_.size() < capacity && !(looks && mappings_are_scarce())) return;
  std::vector<uint64_t> used;
  for (const Program* program : in_order_) used.push_back(program->used);
  const auto oldest = used.begin() + used.size() / 4;
  std::nth_element(used.begin(), oldest, used.end());
  const auto kept = [&](const Program* program) { return program->used > *oldest; };
  const auto forgotten = std::stable_partition(in_order_.begin(), in_order_.end(), kept);
  count(evictions, in_order_.end() - forgotten);
  in_order_.erase(forgotten, in_order_.end());
  for (auto entry = programs_.begin(); entry != programs_.end();) {
    Bucket& bucket = entry->second;
    bucket.erase(
        std::remove_if(bucket.begin(), bucket.end(), [&](const auto& program) { return !kept(program.get()); }),
        bucket.end());
    entry = bucket.empty() ? programs_.erase(entry) : std::next(entry);
  }
  for (auto entry = families_.begin(); entry != families_.end();) {
    entry = entry->second.expired() ? families_.erase(entry) : std::next(entry);
  }
}

std::shared_ptr<Program> ProgramTable::find(const Bucket& bucket, const std::vector<uint64_t>& key, const Trace& trace,
                                            Outputs& outputs) const {
  const auto same = [](const Ref& a, const Ref& b) { return a.word() == b.word(); };
  const auto less = [](const Ref& a, const Ref& b) { return a.word() < b.word(); };
  std::shared_ptr<Program> superset;
  for (const auto& program : bucket) {
    if (program->key != key || !may_run(*program, trace.scalars)) continue;
    const ProgramDescription& known = program->description;
    const bool may_donate = std::all_of(known.donations.begin(), known.donations.end(), [&](const auto& donation) {
      return std::any_of(outputs.donations.begin(), outputs.donations.end(),
                         [&](const auto& d) { return d.first == donation.first; });
    });
    if (!may_donate) continue;
    if (known.outputs.size() == outputs.refs.size() && known.donations.size() == outputs.donations.size() &&
        std::equal(known.outputs.begin(), known.outputs.end(), outputs.refs.begin(), same)) {
      return program;
    }
    if (std::includes(known.outputs.begin(), known.outputs.end(), outputs.refs.begin(), outputs.refs.end(), less)) {
      superset = program;
    }
  }
  if (superset == nullptr) return nullptr;
  Outputs wider;
  wider.refs = superset->description.outputs;
  wider.donations = superset->description.donations;
  for (const Ref& ref : wider.refs) {
    wider.values.push_back(trace.at(ref));
    const auto here = std::lower_bound(outputs.refs.begin(), outputs.refs.end(), ref, less);
    const bool alive = here != outputs.refs.end() && same(*here, ref);
    wider.replaced.push_back(alive ? outputs.replaced[here - outputs.refs.begin()] : -1);
  }
  // Results that nobody sees cost memory and time: a few may be computed for nothing, not many.
  if (bytes_of(wider.values) > bytes_of(outputs.values) + bytes_of(outputs.values) / 8) return nullptr;
  outputs = std::move(wider);
  return superset;
}

std::string ProgramTable::difference(const ProgramDescription& description) const {
  const Program* nearest = nullptr;
  size_t longest = 0;
  const size_t first = in_order_.size() > kCompared ? in_order_.size() - kCompared : 0;
  for (size_t i = first; i < in_order_.size(); ++i) {
    const auto& nodes = in_order_[i]->description.nodes;
    size_t common = 0;
    while (common < nodes.size() && common < description.nodes.size() &&
           nodes[common].signature == description.nodes[common].signature) {
      ++common;
    }
    // The same op with other sizes at the first place is nearer than a program that has nothing in common.
    const bool same_start =
        !nodes.empty() && !description.nodes.empty() && nodes[0].signature->op == description.nodes[0].signature->op;
    if (common + same_start >= longest && common + same_start > 0) {
      nearest = in_order_[i];
      longest = common + same_start;
    }
  }
  if (nearest == nullptr) return "the first of its kind";
  const auto& nodes = nearest->description.nodes;
  for (size_t n = 0; n < std::min(nodes.size(), description.nodes.size()); ++n) {
    if (nodes[n].signature != description.nodes[n].signature) {
      return node_difference(*description.nodes[n].signature, *nodes[n].signature);
    }
  }
  if (nodes.size() != description.nodes.size()) {
    return std::to_string(description.nodes.size()) + " nodes, was " + std::to_string(nodes.size());
  }
  if (nearest->description.donations.size() != description.donations.size()) {
    return std::to_string(description.donations.size()) + " donated inputs, was " +
           std::to_string(nearest->description.donations.size());
  }
  return std::to_string(description.outputs.size()) + " results alive, was " +
         std::to_string(nearest->description.outputs.size());
}

}  // namespace torch_tpu
