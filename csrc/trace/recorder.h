// Records ops as nodes over values and hands them over as programs.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "../device/runtime.h"
#include "gil.h"
#include "metrics.h"
#include "program_table.h"
#include "repetition.h"
#include "signature.h"
#include "storage.h"
#include "strided.h"
#include "trace.h"
#include "value.h"

namespace torch_tpu {

enum class EagerMode : uint8_t { kDebug, kStrict, kFused };

// Why recorded nodes were handed over.
enum class FlushReason : uint8_t {
  kOp,
  kHostRead,
  kSynchronize,
  kStep,
  kRepetition,
  kNodeCap,
  kByteCap,
  kModeChange,
  kCompiledCall,  // a program of torch.compile is next
  kCount
};

const char* flush_reason_name(FlushReason reason);

class Recorder {
 public:
  static Recorder& get();

  // Guards everything below and every DeviceStorage. Recursive, as PyTorch code run while recording may record.
  std::unique_lock<std::recursive_mutex> lock() {
    check_fork();
    return lock_without_gil(mutex_);
  }

  EagerMode mode() const { return mode_.load(std::memory_order_relaxed); }
  // A mode change is a boundary: what is recorded runs under the old mode.
  void set_mode(EagerMode mode);

  // The dense value of a tpu tensor, its view resolved.
  ValuePtr read(const c10::TensorImpl* tensor);
  // Makes `value` (of the tensor's sizes and dtype) the contents of a tpu tensor; all its aliases see it.
  void write(const c10::TensorImpl* tensor, ValuePtr value);
  // The value in another dtype, as Tensor.to does it.
  ValuePtr convert(ValuePtr value, c10::ScalarType dtype);
  // Keeps the first bytes of a storage whose size changes to `nbytes`; the new ones are zero.
  void resize(DeviceStorage* storage, size_t nbytes);

  // Appends a node; its results are one value per signature output, nullptr for an undefined one.
  Values emit(const Signature& signature, c10::ArrayRef<ValuePtr> inputs, c10::ArrayRef<int32_t> scalars,
              c10::DeviceIndex device);

  // The end of one aten op: where strict and debug mode hand over, and fused mode looks at its caps.
  void boundary(c10::DeviceIndex device);
  std::shared_ptr<Program> flush(c10::DeviceIndex device, FlushReason reason);  // nullptr if there was nothing to run
  void flush_all(FlushReason reason);
  bool empty(c10::DeviceIndex device) { return streams_[device].trace.nodes.empty(); }
  // The optimizer has stepped: a boundary, once the next op is recorded. By then the gradients, dead, are no outputs.
  void step_done();
  ProgramTable& programs() { return programs_; }

  SignatureTable signatures;
  // What debug mode looks at after each op, on request.
  std::atomic<bool> debug_check_nan{false};
  std::atomic<bool> debug_check_index{false};
  std::atomic<bool> debug_check_memory{false};
  // Caps of a fused program: beyond them compiling gets slower faster than running gets faster.
  std::atomic<size_t> max_nodes{8192};
  std::atomic<size_t> max_bytes{size_t{16} << 30};
  // Whether fused programs that differ only in sizes share one of a bucket of sizes.
  std::atomic<bool> dynamic_shapes{true};

 private:
  // What is recorded for one device.
  struct Stream {
    Trace trace;
    Repetition repetition;
    std::vector<size_t> cuts;  // node counts of the pieces that go at the next op
    bool step_done = false;
    std::chrono::steady_clock::time_point step_time;
    int idle_steps = 0;
    bool flush_steps = false;  // at once, not at the next op: gradients become outputs, but the device is not idle
  };
  using Clock = std::chrono::steady_clock;

  Recorder();
  ValuePtr base_value(DeviceStorage* storage, c10::ScalarType dtype);
  ValuePtr strided_read(DeviceStorage* storage, const c10::TensorImpl* tensor);
  void strided_write(DeviceStorage* storage, const c10::TensorImpl* tensor, ValuePtr value);
  void replace(DeviceStorage* storage, ValuePtr value, c10::IntArrayRef strides);
  const Signature& strided_signature(bool write, const Value& base, c10::IntArrayRef base_strides,
                                     const c10::TensorImpl* tensor, const StridedPlan& plan, bool dynamic_start);
  const Signature& convert_signature(const Value& value, c10::ScalarType dtype);
  const Signature& zeros_signature(c10::ScalarType dtype, c10::IntArrayRef sizes);
  const Signature& resize_signature(const Value& base, c10::IntArrayRef base_strides, size_t count);
  void flush_and_check(c10::DeviceIndex device);
  void hand_over(c10::DeviceIndex device, size_t count, FlushReason reason);
  std::shared_ptr<Program> launch(Trace piece, c10::DeviceIndex device, FlushReason reason);

  std::recursive_mutex mutex_;
  std::atomic<EagerMode> mode_{EagerMode::kFused};
  std::vector<Stream> streams_;  // by device
  ProgramTable programs_;
  Counter* flushes_[static_cast<size_t>(FlushReason::kCount)];
};

}  // namespace torch_tpu
