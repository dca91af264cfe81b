// An immutable device value: a buffer, or the output of a node that has not run yet.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "../pjrt/pjrt.h"

namespace torch_tpu {

using Dims = c10::SmallVector<int64_t, 5>;

// Why a value will never be ready; shared by all values that depend on the failed program.
struct Failure {
  std::string message;
  bool out_of_memory = false;
  std::atomic<bool> reported{false};
};

struct Value final : c10::intrusive_ptr_target {
  enum class State : uint8_t { kPending, kQueued, kReady, kFailed };

  Value(c10::ScalarType dtype, c10::IntArrayRef dims, c10::DeviceIndex device)
      : dtype(dtype), device(device), dims(dims.begin(), dims.end()) {}

  size_t nbytes() const {
    size_t n = c10::elementSize(dtype);
    for (int64_t d : dims) n *= static_cast<size_t>(d);
    return n;
  }

  const c10::ScalarType dtype;
  const c10::DeviceIndex device;
  const Dims dims;

  std::atomic<State> state{State::kPending};
  // Storages (and readers in flight) that can still see the value; only a value that nobody holds may be donated,
  // and only one that somebody holds is an output of its program.
  std::atomic<int32_t> holders{0};
  pjrt::Buffer buffer;  // set before state becomes kReady
  // The same elements under other dims (of a padded program): the buffer is copied from it by the first launch that
  // needs it, so that what only another padded program reads is never copied.
  c10::intrusive_ptr<Value> source;
  std::shared_ptr<Failure> failure;  // set before state becomes kFailed

  // Numbering scratch of the recorder, guarded by its lock: the value's Ref in trace `epoch`.
  uint64_t epoch = 0;
  uint32_t producer = 0;
  uint32_t number = 0;
  // The Ref word, in that trace, of the value whose place in a storage this one took: its buffer may be donated.
  static constexpr uint64_t kNothing = ~uint64_t{0};
  uint64_t replaces = kNothing;
  const uint64_t serial = next_serial();  // tells values apart where addresses are reused
  uint64_t position = 0;                  // of its node in the device's op stream; 0: it came from elsewhere

 private:
  static uint64_t next_serial() {
    static std::atomic<uint64_t> next{0};
    return next.fetch_add(1, std::memory_order_relaxed);
  }
};

using ValuePtr = c10::intrusive_ptr<Value>;

// Keeps a value visible: a storage binds its value with one, a host reader holds one while it waits.
class Holder {
 public:
  Holder() = default;
  explicit Holder(ValuePtr value) : value_(std::move(value)) {
    if (value_) value_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  Holder(Holder&& other) noexcept : value_(std::move(other.value_)) {}
  Holder& operator=(Holder&& other) noexcept {
    if (this != &other) {
      release();
      value_ = std::move(other.value_);
    }
    return *this;
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() { release(); }

  const ValuePtr& get() const { return value_; }
  Value* operator->() const { return value_.get(); }
  explicit operator bool() const { return static_cast<bool>(value_); }

 private:
  void release() {
    if (value_) value_->holders.fetch_sub(1, std::memory_order_release);
    value_.reset();
  }
  ValuePtr value_;
};

}  // namespace torch_tpu
