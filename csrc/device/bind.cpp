// What torch_tpu.tpu needs of the device layer and torch.accelerator does not offer.
#include "bind.h"

#include <pybind11/stl.h>
#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "generator.h"
#include "memory.h"
#include "runtime.h"
#include "stream.h"

namespace py = pybind11;

namespace torch_tpu {

namespace {

c10::DeviceIndex checked(int64_t index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "invalid tpu device index ", index, ": there are ",
              static_cast<int>(device_count()), " tpu devices");
  return static_cast<c10::DeviceIndex>(index);
}

}  // namespace

void bind_device(py::module_& m) {
  // Translates c10's errors to PyTorch's exceptions, which plain pybind11 does not.
  const auto def = [&m](const char* name, auto function) {
    m.def(name, torch::wrap_pybind_function(std::move(function)));
  };

  def("_device_count", [] { return static_cast<int>(device_count()); });
  def("_initialized", [] { return initialized(); });
  def("_init", [] { ensure_initialized(); });
  def("_in_bad_fork", [] { return in_bad_fork(); });
  def("_current_device", [] { return static_cast<int>(current_device()); });
  def("_set_device", [](int64_t index) { set_current_device(checked(index)); });

  def("_memory_limit", [](int64_t index) { return memory::limit(checked(index)); });
  def("_set_memory_limit", [](int64_t index, std::optional<size_t> nbytes) {
    if (index >= 0) return memory::set_limit(checked(index), nbytes);
    for (int i = 0; i < memory::kMaxDevices; ++i) memory::set_limit(static_cast<c10::DeviceIndex>(i), nbytes);
  });
  def("_memory_capacity", [](int64_t index) { return memory::capacity(checked(index)); });
  def("_memory_report", [](int64_t index, size_t lines) { return memory::report(checked(index), lines); });
  def("_parse_size", [](const std::string& text) { return memory::parse_size(text); });

  def("_default_generator", [](int64_t index) { return default_generator(checked(index)); });
  def("_manual_seed_all", [](uint64_t seed) { manual_seed_all(seed); });
  // Event.elapsed_time() of torch takes no subclass of Event as its argument.
  def("_elapsed_time", [](const py::handle& start, const py::handle& end) {
    const auto event = [](const py::handle& object) -> const c10::Event& {
      TORCH_CHECK_TYPE(PyObject_IsInstance(object.ptr(), reinterpret_cast<PyObject*>(THPEventClass)) == 1,
                       "expected a torch.Event");
      return reinterpret_cast<THPEvent*>(object.ptr())->event;
    };
    return event(start).elapsedTime(event(end));
  });
  def("_stream_priority", [](const c10::Stream& s) { return stream::priority(s); });
}

}  // namespace torch_tpu
