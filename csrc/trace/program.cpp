#include "program.h"

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <thread>

#include "bind.h"
#include "gil.h"

namespace torch_tpu {

Program::Program(std::vector<uint64_t> key, ProgramDescription description, std::string site, std::string difference)
    : key(std::move(key)), description(std::move(description)) {
  summary->key = hash_words(this->key.data(), this->key.size());
  summary->nodes = this->description.nodes.size();
  summary->inputs = this->description.inputs.size();
  summary->outputs = this->description.outputs.size();
  summary->site = std::move(site);
  summary->difference = std::move(difference);
}

Program::State Program::wait() {
  if (state_.load(std::memory_order_acquire) == State::kCompiling) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return state_.load(std::memory_order_acquire) != State::kCompiling; });
  }
  return state_.load(std::memory_order_acquire);
}

void Program::finish(std::shared_ptr<pjrt::Executable> result) {
  std::lock_guard<std::mutex> lock(mutex_);
  executable = std::move(result);
  state_.store(State::kReady, std::memory_order_release);
  changed_.notify_all();
}

void Program::fail(std::shared_ptr<Failure> reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  failure = std::move(reason);
  state_.store(State::kFailed, std::memory_order_release);
  changed_.notify_all();
}

std::string describe(const ProgramDescription& description) {
  constexpr size_t kShown = 3;
  std::string text;
  size_t shown = 0;
  for (size_t i = description.nodes.size(); i-- > 0 && shown < kShown;) {
    const Signature& s = *description.nodes[i].signature;
    if (s.op.rfind("torch_tpu::", 0) == 0 && description.nodes.size() > 1) continue;
    text += (shown++ ? ", " : "") + s.op + (s.site.empty() ? "" : " (" + s.site + ")");
  }
  return text;
}

namespace {

// Two threads: XLA's CPU compiler is mostly serial, and the builder holds the GIL while it makes the module.
class CompileThreads {
 public:
  CompileThreads() {
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { run(); });
  }

  // False if the threads are gone.
  bool push(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return false;
    pending_.push_back(std::move(task));
    changed_.notify_one();
    return true;
  }

  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void run() {
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || !pending_.empty(); });
        if (pending_.empty()) return;
        task = std::move(pending_.front());
        pending_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> pending_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

CompileThreads& compile_threads() {
  static auto* instance = new CompileThreads;
  return *instance;
}

void compile(Program& program) {
  const auto start = std::chrono::steady_clock::now();
  try {
    auto executable = build_program(program.description);
    program.summary->compile_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    program.finish(std::move(executable));
  } catch (const std::exception& error) {
    auto failure = std::make_shared<Failure>();
    failure->message = std::string(error.what()) + "\nwhile compiling " + describe(program.description);
    program.fail(std::move(failure));
  }
}

}  // namespace

void compile_async(std::shared_ptr<Program> program) {
  compile_threads().push([program = std::move(program)] { compile(*program); });
}

std::unique_ptr<const Padding> pad(uint64_t family, const ProgramDescription& description,
                                   const std::vector<int32_t>& scalars, const ProgramDescription& first, double growth,
                                   int64_t minimum) {
  std::promise<std::unique_ptr<const Padding>> promise;
  const auto ask = [&] { promise.set_value(ask_padding(family, description, scalars, first, growth, minimum)); };
  if (!compile_threads().push(ask)) return nullptr;
  WithoutGil released;
  return promise.get_future().get();
}

void shutdown_compile_threads() { compile_threads().stop(); }

}  // namespace torch_tpu
