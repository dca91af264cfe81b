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
  std::shared_ptr<Program> find_or_compile(const Trace& trace, Outputs& outputs, c10::DeviceIndex device,
                                           const char* reason);

  const std::deque<LaunchRecord>& log() const { return log_; }

  // Beyond so many programs the quarter that was not launched for longest is forgotten; the disk cache still has it.
  std::atomic<size_t> capacity{2048};

 private:
  using Bucket = std::vector<std::shared_ptr<Program>>;
  std::shared_ptr<Program> find(const Bucket& bucket, const std::vector<uint64_t>& key, const Trace& trace,
                                Outputs& outputs) const;
  void make_room();
  // What differs from the known program that is most like this one.
  std::string difference(const ProgramDescription& description) const;

  std::unordered_map<uint64_t, Bucket> programs_;
  std::vector<Program*> in_order_;
  uint64_t clock_ = 0;
  std::deque<LaunchRecord> log_;
};

}  // namespace torch_tpu
