// The programs of the process by what was recorded, and the log of why each was launched or compiled.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "program.h"
#include "trace.h"

namespace torch_tpu {

// One hand-over, for torch.tpu.explain().
struct LaunchRecord {
  const char* reason;
  std::shared_ptr<const ProgramSummary> summary;
  std::weak_ptr<const Program> program;
  bool known;  // the program was there already
  size_t donated_bytes;
};

// Guarded by the recorder's lock, but for the capacity.
class ProgramTable {
 public:
  // The trace's program; a new one starts to compile. `outputs` gets those of the program, which may be a few more than
  // are alive: when garbage is collected must not decide what is compiled.
  // With `may_pad`, programs that differ only in sizes may share one of a bucket of sizes.
  std::shared_ptr<Program> find_or_compile(const Trace& trace, Outputs& outputs, c10::DeviceIndex device,
                                           const char* reason, bool may_pad);

  const std::deque<LaunchRecord>& log() const { return log_; }

  // Beyond so many programs, or where memory mappings get scarce, the quarter that was not launched for longest is
  // forgotten; the disk cache still has it.
  std::atomic<size_t> capacity{2048};

  // The buckets: each so many times larger than the one before, and the smallest.
  std::atomic<double> bucket_growth{2};
  std::atomic<int64_t> bucket_minimum{8};

 private:
  using Bucket = std::vector<std::shared_ptr<Program>>;
  std::shared_ptr<Program> find(const Bucket& bucket, const std::vector<uint64_t>& key, const Trace& trace,
                                Outputs& outputs) const;
  std::unique_ptr<const Padding> padding_for(const std::shared_ptr<Program>& program,
                                             const std::vector<int32_t>& scalars);
  std::shared_ptr<Program> exact_if_often(std::shared_ptr<Program> program);
  void make_room();
  // What differs from the known program that is most like this one.
  std::string difference(const ProgramDescription& description) const;

  std::unordered_map<uint64_t, Bucket> programs_;
  std::vector<Program*> in_order_;
  std::unordered_map<uint64_t, std::weak_ptr<const Program>> families_;  // the first of each
  uint64_t clock_ = 0;
  std::deque<LaunchRecord> log_;
};

}  // namespace torch_tpu
