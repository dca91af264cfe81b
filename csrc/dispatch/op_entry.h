// What the core knows of one operator overload.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace torch_tpu {

// How the record kernel treats a parameter of a schema.
enum class ParameterKind : uint8_t { kTensor, kTensorList, kNumber, kNumberList, kGenerator, kDevice, kDtype, kStatic };

struct Parameter {
  ParameterKind kind = ParameterKind::kStatic;
  bool written = false;  // an in-place or out argument
  bool out = false;
  bool dynamic = false;  // its numbers are runtime parameters
};

enum class OpKind : uint8_t { kUnresolved, kRecord, kPython, kComposite, kFallback };

struct OpEntry {
  explicit OpEntry(const c10::OperatorHandle& op);

  // Asks the lowering registry at first use. Takes the GIL.
  void resolve();

  const c10::OperatorHandle op;
  const uint32_t id;
  std::vector<Parameter> parameters;
  bool cpu_takes_zeros = false;  // there is a kernel for the CPU, which may be asked about zeros
  std::atomic<OpKind> kind{OpKind::kUnresolved};

  // Set by resolve().
  std::string functional;           // "aten::add"
  std::string functional_overload;  // "Tensor"
  std::vector<size_t> targets;      // parameters that receive results, in order
  bool returns_targets = false;     // in-place and out ops: the results go to the targets alone
  bool random = false;
  int probability = -1;                          // the parameter whose zero means that nothing is drawn
  std::vector<std::pair<size_t, size_t>> keeps;  // the first, a target, stays as it is unless the second is given
  bool wide = false;                             // its scalars travel in double precision
  bool products = false;                         // it may multiply matrices, in the precision that the user has set
  bool fills = false;                            // every element that it writes becomes its number
  bool counted = false;                          // the size of its result follows from its numbers
  bool cpu_tensors_allowed = false;              // index tensors may live on the host
  c10::DispatchKey composite = c10::DispatchKey::Undefined;
  PyObject* python = nullptr;  // a function over tensors; lives as long as the process
  PyObject* when = nullptr;    // says of a recorded op's arguments, as meta tensors, whether to call that instead
  std::string reason;          // of a fallback

 private:
  std::mutex mutex_;
};

// The boxed kernel behind nearly every aten op.
void record(OpEntry& entry, torch::jit::Stack* stack);

// Counts that an op runs on the CPU; by torch.tpu.config.cpu_fallback it warns once an op, is silent, or refuses.
void note_fallback(const c10::OperatorHandle& op, const std::string& reason);

// Runs an op on the CPU, and notes it.
void run_on_cpu(OpEntry& entry, torch::jit::Stack* stack, const std::string& reason);

enum class FallbackPolicy : uint8_t { kWarn, kSilent, kError };
void set_fallback_policy(FallbackPolicy policy);

}  // namespace torch_tpu
