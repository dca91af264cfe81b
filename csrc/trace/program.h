// A program: recorded nodes in order, compiled once for all traces of the same key.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "signature.h"
#include "value.h"

namespace torch_tpu {

// A node's input: an external input of the program (node == 0) or result `index` of node - 1.
struct Ref {
  uint32_t node = 0;
  uint32_t index = 0;
  uint64_t word() const { return static_cast<uint64_t>(node) << 32 | index; }
  static Ref of(uint64_t word) { return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)}; }
};

struct NodeDescription {
  const Signature* signature;
  std::vector<Ref> inputs;
  uint32_t scalar_begin;  // first word in the program's scalar parameter
};

// Everything the compiler needs to know of a program.
struct ProgramDescription {
  c10::DeviceIndex device = 0;
  std::vector<InputMeta> inputs;
  std::vector<NodeDescription> nodes;
  std::vector<Ref> outputs;
  std::vector<std::pair<uint32_t, uint32_t>> donations;  // (input, output) that share a buffer
  uint32_t scalar_words = 0;
};

// What torch.tpu.explain() says of a program, also when the program itself is gone.
struct ProgramSummary {
  uint64_t key = 0;
  size_t nodes = 0, inputs = 0, outputs = 0;
  std::string site;                        // the user's line that handed it over first
  std::string difference;                  // from the most similar program that was known then
  std::atomic<double> compile_seconds{0};  // loading from the cache included; set when ready
};

// How a program runs in the executable of a bucket of sizes.
struct Padding {
  std::shared_ptr<pjrt::Executable> executable;
  bool fresh = false;        // it was compiled for this program
  std::vector<Dims> inputs;  // the dims of each input where they are not the program's; else empty
  std::vector<Dims> outputs;
  std::vector<uint32_t> words;                      // which of the trace's scalar words it takes, in order
  std::vector<int32_t> sizes;                       // the words after them
  std::vector<std::pair<uint32_t, int32_t>> fixed;  // scalar words of the trace that it was made for
};

class Program {
 public:
  enum class State : uint8_t { kCompiling, kReady, kFailed };

  Program(std::vector<uint64_t> key, ProgramDescription description, std::string site = {},
          std::string difference = {});

  State state() const { return state_.load(std::memory_order_acquire); }
  // Blocks until compiled or failed. Not to be called with the GIL held.
  State wait();
  void finish(std::shared_ptr<pjrt::Executable> result);
  void fail(std::shared_ptr<Failure> reason);

  const std::vector<uint64_t> key;
  const ProgramDescription description;
  const std::shared_ptr<ProgramSummary> summary = std::make_shared<ProgramSummary>();
  uint64_t used = 0;  // when it was last launched, by the clock of the program table
  std::shared_ptr<pjrt::Executable> executable;
  std::unique_ptr<const Padding> padding;  // nullptr: compiled for its own sizes
  uint32_t padded_launches = 0;
  std::shared_ptr<Program> exact;  // of a program with padding that comes often: to take its place when it is ready
  std::shared_ptr<Failure> failure;

 private:
  std::atomic<State> state_{State::kCompiling};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// How a program can share the executable of a bucket with others of its family, of which `first` is one; nullptr if it
// is to be compiled for its own sizes. Waits for a compile thread, where none of the caller's modes (autocast, vmap, a
// default device) is on.
std::unique_ptr<const Padding> pad(uint64_t family, const ProgramDescription& description,
                                   const std::vector<int32_t>& scalars, const ProgramDescription& first, double growth,
                                   int64_t minimum);

// The first places where the program's ops were recorded, for error messages: "aten::mul (train.py:12), ...".
std::string describe(const ProgramDescription& description);

// Compiles on the compile threads; the program is kCompiling until then.
void compile_async(std::shared_ptr<Program> program);
void shutdown_compile_threads();

}  // namespace torch_tpu
