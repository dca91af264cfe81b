// The lock order between Python's GIL and our own locks: nobody blocks on a lock of ours while holding the GIL.
#pragma once

#include <pybind11/gil.h>

#include <mutex>
#include <optional>

namespace torch_tpu {

inline bool holds_gil() { return Py_IsInitialized() && PyGILState_Check(); }

// Releases the GIL for the scope if this thread holds it.
class WithoutGil {
 public:
  WithoutGil() {
    if (holds_gil()) release_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> release_;
};

// Locks `mutex`; if that has to wait, it waits without the GIL.
template <typename Mutex>
std::unique_lock<Mutex> lock_without_gil(Mutex& mutex) {
  std::unique_lock<Mutex> lock(mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    WithoutGil released;
    lock.lock();
  }
  return lock;
}

// Runs Python's pending signal handlers; throws what they raise, such as KeyboardInterrupt. Takes the GIL.
void raise_signals();

}  // namespace torch_tpu
