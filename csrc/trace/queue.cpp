#include "queue.h"

#include <c10/util/Exception.h>
#include <immintrin.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "../device/runtime.h"
#include "dtype.h"
#include "gil.h"
#include "metrics.h"
#include "program.h"
#include "recorder.h"

namespace torch_tpu {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough to bridge the gap between two recorded ops, short enough not to take a core from a running program.
constexpr auto kSpin = std::chrono::microseconds(50);

// How long Ctrl-C may go unnoticed.
constexpr auto kSignalPeriod = std::chrono::milliseconds(100);

// Polls `done` for a short while; false if it did not become true.
template <typename Done>
bool spin_until(Done done) {
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      _mm_pause();
    }
  } while (Clock::now() < end);
  return done();
}

// Wakes host threads that wait for values and markers.
struct Wakeups {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> sleepers{0};

  void notify() {
    if (sleepers.load(std::memory_order_seq_cst) == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    changed.notify_all();
  }

  // `help` does some of the work that is waited for, if there is any to do.
  template <typename Done, typename Help>
  void wait(Done done, Help help) {
    if (spin_until([&] { return done() || (help() && done()); })) return;
    bool finished = false;
    while (!finished) {
      {
        std::unique_lock<std::mutex> lock(mutex);
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        finished = changed.wait_for(lock, kSignalPeriod, done);
        sleepers.fetch_sub(1, std::memory_order_seq_cst);
      }
      if (!finished && Py_IsInitialized()) raise_signals();
    }
  }
};

Wakeups& wakeups() {
  static auto* instance = new Wakeups;
  return *instance;
}

// Copies the elements that both dense row-major arrays have; the rest of the target is zero.
void copy_box(const char* source, c10::IntArrayRef source_dims, char* target, c10::IntArrayRef target_dims,
              size_t item) {
  const auto bytes = [&](c10::IntArrayRef dims) { return static_cast<size_t>(c10::multiply_integers(dims)) * item; };
  if (source_dims.empty() || source_dims == target_dims) {
    std::memcpy(target, source, bytes(target_dims));
    return;
  }
  const size_t source_step = bytes(source_dims.slice(1)), target_step = bytes(target_dims.slice(1));
  const int64_t both = std::min(source_dims[0], target_dims[0]);
  if (source_step == target_step) {
    std::memcpy(target, source, static_cast<size_t>(both) * source_step);
  } else {
    for (int64_t i = 0; i < both; ++i) {
      copy_box(source + i * source_step, source_dims.slice(1), target + i * target_step, target_dims.slice(1), item);
    }
  }
  std::memset(target + both * target_step, 0, static_cast<size_t>(target_dims[0] - both) * target_step);
}

// Buffers of scalar parameters by content: a loop's constants are uploaded once.
class ScalarBuffers {
 public:
  PJRT_Buffer* get(const std::vector<int32_t>& words, c10::DeviceIndex device) {
    key_.assign(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int32_t));
    key_.push_back(static_cast<char>(device));
    auto found = buffers_.find(key_);
    if (found != buffers_.end()) return found->second.get();
    if (buffers_.size() >= kCapacity) buffers_.clear();
    const int64_t dim = static_cast<int64_t>(words.size());
    pjrt::Buffer buffer =
        client().buffer_from_host(words.data(), PJRT_Buffer_Type_S32, &dim, 1, torch_tpu::device(device).get());
    return buffers_.emplace(key_, std::move(buffer)).first->second.get();
  }

 private:
  static constexpr size_t kCapacity = 4096;
  std::string key_;
  std::unordered_map<std::string, pjrt::Buffer> buffers_;
};

struct Task {
  std::unique_ptr<Launch> launch;
  std::shared_ptr<Marker> marker;
};

class DispatchThread {
 public:
  DispatchThread() : thread_([this] { run(); }) {}

  void push(Task task) {
    // Bounded run-ahead: a recorder that is far in front waits, without the GIL, for the device.
    if (size_.load(std::memory_order_relaxed) >= kCapacity) {
      WithoutGil released;
      wakeups().wait([&] { return size_.load(std::memory_order_acquire) < kCapacity; }, [] { return false; });
    }
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!stopped_, "the tpu runtime has been shut down");
    tasks_.push_back(std::move(task));
    size_.fetch_add(1, std::memory_order_release);
    if (asleep_) changed_.notify_one();
  }

  // Runs the next task on the calling thread, which waits for it anyway; false if there is none or the dispatch thread
  // is at it. Saves waking a thread where the host reads after every op.
  bool help() {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    return turn.owns_lock() && run_one();
  }

  bool idle() const { return size_.load(std::memory_order_acquire) == 0; }

  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopped_) return;
      stopped_ = true;
      changed_.notify_one();
    }
    thread_.join();
  }

 private:
  static constexpr int64_t kCapacity = 4096;

  void run() {
    while (true) {
      if (spin_until([&] { return size_.load(std::memory_order_acquire) != 0; })) {
        std::unique_lock<std::mutex> turn(turn_);
        run_one();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      asleep_ = true;
      changed_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
      asleep_ = false;
      if (stopped_ && tasks_.empty()) return;
    }
  }

  // Takes the next task and runs it; false if there is none. The caller has the turn.
  bool run_one() {
    Task task;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (tasks_.empty()) return false;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (task.launch) {
      launch(*task.launch);
      task.launch.reset();  // drops the inputs before anybody is told
    } else {
      complete(std::move(task.marker));
    }
    size_.fetch_sub(1, std::memory_order_release);
    wakeups().notify();
    return true;
  }

  void launch(Launch& work) {
    Program& program = *work.program;
    std::shared_ptr<Failure> failure;
    if (program.wait() == Program::State::kFailed) {
      failure = program.failure;
    } else {
      try {
        failure = execute(work, program);
      } catch (const pjrt::Error& error) {
        failure = std::make_shared<Failure>();
        failure->out_of_memory = error.code() == PJRT_Error_Code_RESOURCE_EXHAUSTED;
        failure->message = std::string(error.what()) + "\nwhile running " + describe(program.description);
      }
    }
    if (!failure) return;
    note_failure(failure);
    for (size_t i = 0; i < work.outputs.size(); ++i) {
      if (roll_back(work, i)) continue;
      work.outputs[i]->failure = failure;
      work.outputs[i]->state.store(Value::State::kFailed, std::memory_order_release);
    }
  }

  // An in-place op of a program that failed did not happen: what it overwrote is there again.
  static bool roll_back(Launch& work, size_t output) {
    if (work.replaced.empty() || work.replaced[output] < 0) return false;
    const ValuePtr& input = work.inputs[work.replaced[output]];
    Value& value = *work.outputs[output];
    if (input->state.load(std::memory_order_acquire) != Value::State::kReady || !input->buffer) return false;
    if (input->holders.load() != 0 || input->dtype != value.dtype || input->dims != value.dims) return false;
    value.buffer = std::move(input->buffer);
    value.state.store(Value::State::kReady, std::memory_order_release);
    return true;
  }

  // Gives the value its source's elements, through the host: no program to compile for every pair of sizes.
  static void repack(Value& value) {
    static Counter& repacks = counter("repacks");
    if (value.source->state.load(std::memory_order_acquire) == Value::State::kFailed) {
      value.failure = value.source->failure;
      value.state.store(Value::State::kFailed, std::memory_order_release);
      return;
    }
    std::vector<char> host(value.nbytes());
    read_to_host(value, host.data());
    value.buffer = client().buffer_from_host(host.data(), buffer_type(value.dtype), value.dims.data(),
                                             value.dims.size(), torch_tpu::device(value.device).get());
    value.state.store(Value::State::kReady, std::memory_order_release);
    count(repacks);
  }

  // The failure of an input, or nullptr when the program was launched.
  std::shared_ptr<Failure> execute(Launch& work, Program& program) {
    arguments_.clear();
    for (const ValuePtr& value : work.inputs) {
      if (value->source && value->state.load(std::memory_order_acquire) == Value::State::kQueued) repack(*value);
      if (value->state.load(std::memory_order_acquire) == Value::State::kFailed) return value->failure;
      arguments_.push_back(value->buffer.get());
    }
    const c10::DeviceIndex device = program.description.device;
    if (!work.scalars.empty()) arguments_.push_back(scalars_.get(work.scalars, device));
    results_.resize(work.outputs.size());
    PJRT_Event* complete = nullptr;
    program.executable->execute(arguments_.data(), arguments_.size(), results_.data(), &complete, nullptr,
                                work.keep.data(), work.keep.size());
    const PJRT_Api* api = client().api();
    outstanding_.emplace_back(api, complete);
    for (size_t i = 0; i < work.outputs.size(); ++i) {
      work.outputs[i]->buffer = pjrt::Buffer(api, results_[i]);
      work.outputs[i]->state.store(Value::State::kReady, std::memory_order_release);
    }
    while (!outstanding_.empty() && outstanding_.front().ready()) outstanding_.pop_front();
    count(launches_);
    return nullptr;
  }

  // Counts the programs that a marker waits for. Markers finish in their order: a callback of the plugin may come late.
  struct Countdown {
    std::atomic<int64_t> left;
    std::shared_ptr<Marker> marker;
  };
  struct Unfinished {
    std::mutex mutex;
    std::deque<std::shared_ptr<Countdown>> markers;

    void one_less(Countdown& countdown) {
      if (countdown.left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      {
        std::lock_guard<std::mutex> lock(mutex);
        while (!markers.empty() && markers.front()->left.load(std::memory_order_acquire) == 0) {
          Marker& marker = *markers.front()->marker;
          marker.time_ns = Clock::now().time_since_epoch().count();
          marker.finished.store(true, std::memory_order_release);
          markers.pop_front();
        }
      }
      wakeups().notify();
    }
  };

  // Finishes the marker once every launched program has finished.
  void complete(std::shared_ptr<Marker> marker) {
    auto countdown = std::make_shared<Countdown>();
    countdown->left = static_cast<int64_t>(outstanding_.size()) + 1;
    countdown->marker = std::move(marker);
    {
      std::lock_guard<std::mutex> lock(unfinished_.mutex);
      unfinished_.markers.push_back(countdown);
    }
    for (const pjrt::Event& event : outstanding_) {
      event.on_ready([this, countdown](const pjrt::Error* error) {
        if (error != nullptr) {
          auto failure = std::make_shared<Failure>();
          failure->message = error->what();
          note_failure(failure);
        }
        unfinished_.one_less(*countdown);
      });
    }
    unfinished_.one_less(*countdown);
  }

 public:
  static void note_failure(const std::shared_ptr<Failure>& failure) {
    std::lock_guard<std::mutex> lock(failures_mutex());
    if (!unseen_failure()) unseen_failure() = failure;
  }

  static std::shared_ptr<Failure> take_failure() {
    std::lock_guard<std::mutex> lock(failures_mutex());
    return std::exchange(unseen_failure(), nullptr);
  }

 private:
  static std::mutex& failures_mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::shared_ptr<Failure>& unseen_failure() {
    static auto* failure = new std::shared_ptr<Failure>;
    return *failure;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::atomic<int64_t> size_{0};  // queued and running
  bool asleep_ = false;
  bool stopped_ = false;

  // Tasks run in order, one at a time: by whoever has the turn, who alone uses what follows.
  std::mutex turn_;
  std::vector<PJRT_Buffer*> arguments_;
  std::vector<PJRT_Buffer*> results_;
  std::deque<pjrt::Event> outstanding_;
  Unfinished unfinished_;
  ScalarBuffers scalars_;
  Counter& launches_ = counter("launches");

  std::thread thread_;  // last: starts when all else is there
};

DispatchThread& dispatch_thread() {
  static auto* instance = new DispatchThread;
  return *instance;
}

[[noreturn]] void throw_failure(const Failure& failure) {
  TORCH_CHECK_WITH(OutOfMemoryError, !failure.out_of_memory, failure.message);
  TORCH_CHECK(false, failure.message);
}

void throw_unseen_failure() {
  const std::shared_ptr<Failure> failure = DispatchThread::take_failure();
  if (failure && !failure->reported.exchange(true)) throw_failure(*failure);
}

}  // namespace

void Marker::wait() const {
  WithoutGil released;
  wakeups().wait([this] { return done(); }, [] { return dispatch_thread().help(); });
}

void wait(const Value& unpacked) {
  using State = Value::State;
  const Value& value = unpacked.source ? *unpacked.source : unpacked;
  const auto settled = [&] {
    const State state = value.state.load(std::memory_order_acquire);
    return state == State::kReady || state == State::kFailed;
  };
  if (!settled()) {
    WithoutGil released;
    wakeups().wait(settled, [] { return dispatch_thread().help(); });
  }
  if (value.state.load(std::memory_order_acquire) == State::kFailed) {
    value.failure->reported.store(true);
    throw_failure(*value.failure);
  }
  throw_unseen_failure();  // the value may be what a program that failed was to overwrite, or follow from it
}

ValuePtr under_dims(ValuePtr value, c10::IntArrayRef dims) {
  if (value->dims == dims) return value;
  if (value->source && value->source->dims == dims) return value->source;
  auto result = c10::make_intrusive<Value>(value->dtype, dims, value->device);
  result->source = value->source ? value->source : std::move(value);
  result->state.store(Value::State::kQueued, std::memory_order_release);
  return result;
}

void read_to_host(const Value& value, void* host) {
  if (value.nbytes() == 0) return;
  if (!value.source) return value.buffer.to_host(host, value.nbytes()).await();
  const Value& source = *value.source;
  std::vector<char> all(source.nbytes());
  if (!all.empty()) source.buffer.to_host(all.data(), all.size()).await();
  copy_box(all.data(), source.dims, static_cast<char*>(host), value.dims, c10::elementSize(value.dtype));
}

void enqueue_launch(std::unique_ptr<Launch> launch) { dispatch_thread().push(Task{std::move(launch), nullptr}); }

std::shared_ptr<Marker> enqueue_marker(c10::DeviceIndex device) {
  Recorder& recorder = Recorder::get();
  auto lock = recorder.lock();
  recorder.flush(device, FlushReason::kSynchronize);
  auto marker = std::make_shared<Marker>();
  dispatch_thread().push(Task{nullptr, marker});
  return marker;
}

void synchronize(c10::DeviceIndex device) {
  enqueue_marker(device)->wait();
  throw_unseen_failure();
}

bool idle(c10::DeviceIndex device) { return Recorder::get().empty(device) && dispatch_thread().idle(); }

void shutdown_queue() {
  WithoutGil released;
  dispatch_thread().stop();
  shutdown_compile_threads();
}

}  // namespace torch_tpu
