#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <mutex>

#include "pjrt.h"

namespace py = pybind11;

namespace torch_tpu::pjrt {

namespace {
std::atomic<const std::shared_ptr<Client>*> the_client{nullptr};
std::mutex creation;
}  // namespace

bool default_client_exists() { return the_client.load(std::memory_order_acquire) != nullptr; }

const std::shared_ptr<Client>& default_client() {
  if (const auto* client = the_client.load(std::memory_order_acquire)) return *client;

  std::string path;
  Attributes options;
  {
    const py::gil_scoped_acquire gil;
    const py::object choice = py::module_::import("torch_tpu.compiler.platform").attr("select")();
    path = choice.attr("plugin_path").cast<std::string>();
    options = choice.attr("create_options").cast<Attributes>();
  }
  // Not under the GIL: another thread may need it to finish what this one waits for.
  std::optional<py::gil_scoped_release> release;
  if (PyGILState_Check()) release.emplace();
  const std::lock_guard<std::mutex> lock(creation);
  if (!default_client_exists()) {
    the_client.store(new std::shared_ptr<Client>(Client::create(Plugin::load(path), options)),
                     std::memory_order_release);
  }
  return *the_client.load(std::memory_order_acquire);
}

}  // namespace torch_tpu::pjrt
