// PJRT classes for tests, tools and what happens once per program. No torch header, so that it compiles in seconds.
#include "bind.h"

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "pjrt.h"

namespace py = pybind11;

namespace torch_tpu {

namespace {

using namespace pjrt;  // NOLINT: this file is about nothing else

// A Python object that may be dropped on a thread without the GIL.
template <class T>
std::shared_ptr<T> shared_with_gil(T value) {
  return std::shared_ptr<T>(new T(std::move(value)), [](T* held) {
    const py::gil_scoped_acquire gil;
    delete held;
  });
}

// A Buffer that keeps its client alive and is destroyed without the GIL, which a done callback may need.
struct PyBuffer {
  PyBuffer(std::shared_ptr<Client> client, Buffer buffer) : client(std::move(client)), buffer(std::move(buffer)) {}
  PyBuffer(PyBuffer&&) = default;
  ~PyBuffer() {
    const py::gil_scoped_release release;
    buffer.reset();
  }
  std::shared_ptr<Client> client;
  Buffer buffer;
};

PJRT_Buffer_Type parse_type(const std::string& name) {
  for (int type = PJRT_Buffer_Type_PRED; type <= PJRT_Buffer_Type_F4E2M1FN; ++type) {
    if (type == PJRT_Buffer_Type_TOKEN) continue;
    if (name == type_name(static_cast<PJRT_Buffer_Type>(type))) return static_cast<PJRT_Buffer_Type>(type);
  }
  throw py::value_error("unknown element type '" + name + "'; types are named as in StableHLO: f32, bf16, i64, i1 ...");
}

PJRT_Device* device_at(const Client& client, size_t index) {
  if (index >= client.devices().size()) {
    throw py::index_error("device " + std::to_string(index) + " of " + std::to_string(client.devices().size()));
  }
  return client.devices()[index].get();
}

std::unique_ptr<PyBuffer> buffer_from_host(const std::shared_ptr<Client>& client, const py::buffer& data,
                                           const std::string& type_text, const Dims& dims, size_t device,
                                           HostSemantics semantics, const py::object& done) {
  auto info = shared_with_gil(data.request());
  const PJRT_Buffer_Type type = parse_type(type_text);
  if (static_cast<size_t>(info->size * info->itemsize) != bytes_of(type, dims)) {
    throw py::value_error("the data has " + std::to_string(info->size * info->itemsize) + " bytes, the shape needs " +
                          std::to_string(bytes_of(type, dims)));
  }
  auto callback = shared_with_gil(py::object(done));
  std::function<void()> finish = [info, callback] {
    const py::gil_scoped_acquire gil;
    if (!callback->is_none()) (*callback)();
  };
  PJRT_Device* const target = device_at(*client, device);
  const py::gil_scoped_release release;
  return std::make_unique<PyBuffer>(client, client->buffer_from_host(info->ptr, type, dims.data(), dims.size(), target,
                                                                     semantics, std::move(finish)));
}

py::bytes buffer_to_bytes(const PyBuffer& self) {
  std::string bytes(bytes_of(self.buffer.type(), self.buffer.dims()), '\0');
  {
    const py::gil_scoped_release release;
    self.buffer.to_host(bytes.data(), bytes.size()).await();
  }
  return py::bytes(bytes);
}

std::vector<std::unique_ptr<PyBuffer>> execute(const Executable& self, const std::vector<PyBuffer*>& args,
                                               const std::vector<int64_t>& keep, std::optional<size_t> device,
                                               bool wait) {
  std::vector<PJRT_Buffer*> inputs;
  for (const PyBuffer* arg : args) inputs.push_back(arg->buffer.get());
  std::vector<PJRT_Buffer*> outs(self.num_outputs());
  PJRT_Device* const target = device ? device_at(*self.client(), *device) : nullptr;
  {
    const py::gil_scoped_release release;
    PJRT_Event* complete = nullptr;
    self.execute(inputs.data(), inputs.size(), outs.data(), wait ? &complete : nullptr, target, keep.data(),
                 keep.size());
    if (wait) Event(self.client()->api(), complete).await();
  }
  std::vector<std::unique_ptr<PyBuffer>> results;
  for (PJRT_Buffer* out : outs) {
    results.push_back(std::make_unique<PyBuffer>(self.client(), Buffer(self.client()->api(), out)));
  }
  return results;
}

py::list shapes(const Executable& self) {
  py::list result;
  for (const Shape& shape : self.outputs())
    result.append(py::make_tuple(type_name(shape.type), py::tuple(py::cast(shape.dims))));
  return result;
}

void bind_error(py::module_& m) {
  static PyObject* const type = PyErr_NewExceptionWithDoc(
      "torch_tpu._C.PjrtError", "An error of the PJRT plugin; `code` is its absl status name.", PyExc_RuntimeError,
      nullptr);
  m.attr("PjrtError") = py::handle(type);
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const py::object instance = py::handle(type)(std::string(error.what()));
      instance.attr("code") = code_name(error.code());
      PyErr_SetObject(type, instance.ptr());
    }
  });
}

}  // namespace

void bind_pjrt(py::module_& m) {
  using release = py::call_guard<py::gil_scoped_release>;
  bind_error(m);

  py::class_<Plugin, std::unique_ptr<Plugin, py::nodelete>>(m, "Plugin", "A loaded PJRT plugin.")
      .def_static("load", &Plugin::load, py::arg("path"), py::return_value_policy::reference, release())
      .def_property_readonly("path", &Plugin::path)
      .def_property_readonly("api_version", &Plugin::api_version)
      .def_property_readonly("attributes", &Plugin::attributes)
      .def_property_readonly("extensions", &Plugin::extensions);

  py::class_<DeviceInfo>(m, "DeviceInfo", "What is known of a device without using it.")
      .def_readonly("id", &DeviceInfo::id)
      .def_readonly("process_index", &DeviceInfo::process_index)
      .def_readonly("kind", &DeviceInfo::kind)
      .def_readonly("description", &DeviceInfo::description)
      .def_readonly("attributes", &DeviceInfo::attributes);

  py::class_<Device>(m, "Device", "A device of a client; lives as long as the client.")
      .def_property_readonly("info", &Device::info)
      .def_property_readonly("local_hardware_id", &Device::local_hardware_id)
      .def("memory_stats", &Device::memory_stats);

  py::enum_<HostSemantics>(m, "HostSemantics")
      .value("COPY", HostSemantics::kCopy)
      .value("UNTIL_TRANSFERRED", HostSemantics::kUntilTransferred)
      .value("ZERO_COPY", HostSemantics::kZeroCopy)
      .value("MUTABLE_ZERO_COPY", HostSemantics::kMutableZeroCopy);

  py::class_<PyBuffer>(m, "Buffer", "A device array.")
      .def_property_readonly("type", [](const PyBuffer& self) { return type_name(self.buffer.type()); })
      .def_property_readonly("dims", [](const PyBuffer& self) { return py::tuple(py::cast(self.buffer.dims())); })
      .def_property_readonly("device_bytes", [](const PyBuffer& self) { return self.buffer.device_bytes(); })
      .def_property_readonly("is_deleted", [](const PyBuffer& self) { return self.buffer.is_deleted(); })
      .def_property_readonly("unsafe_pointer", [](const PyBuffer& self) { return self.buffer.unsafe_pointer(); })
      .def_property_readonly(
          "device_id", [](const PyBuffer& self) { return Device(self.client->api(), self.buffer.device()).info().id; })
      .def("ready", [](const PyBuffer& self) { return self.buffer.ready_event().ready(); })
      .def(
          "wait", [](const PyBuffer& self) { self.buffer.ready_event().await(); }, release())
      .def(
          "free_memory", [](PyBuffer& self) { self.buffer.free_memory(); }, release())
      .def(
          "copy_to",
          [](const PyBuffer& self, size_t device) {
            return std::make_unique<PyBuffer>(self.client, self.buffer.copy_to(device_at(*self.client, device)));
          },
          py::arg("device"))
      .def("to_bytes", &buffer_to_bytes, "The dense, row-major content; waits.");

  py::class_<Executable, std::shared_ptr<Executable>>(m, "Executable", "A compiled program.")
      .def_property_readonly("loaded", &Executable::loaded)
      .def_property_readonly("name", &Executable::name)
      .def_property_readonly("num_outputs", &Executable::num_outputs)
      .def_property_readonly("outputs", &shapes, "A list of (element type, dims).")
      .def_property_readonly("num_replicas", &Executable::num_replicas)
      .def_property_readonly("num_partitions", &Executable::num_partitions)
      .def("execute", &execute, py::arg("args"), py::arg("keep") = std::vector<int64_t>{},
           py::arg("device") = py::none(), py::arg("wait") = false,
           "Runs on one device; arguments whose position is in `keep` are not donated.")
      .def("cost_analysis", &Executable::cost_analysis, release())
      .def("memory_stats", &Executable::memory_stats, release())
      .def("generated_code_bytes", &Executable::generated_code_bytes, release())
      .def(
          "optimized_program",
          [](const Executable& self) {
            OptimizedProgram program;
            {
              const py::gil_scoped_release unlocked;
              program = self.optimized_program();
            }
            return py::make_tuple(program.format, py::bytes(program.code));
          },
          "(format, bytes)")
      .def("serialize",
           [](const Executable& self) {
             std::string bytes;
             {
               const py::gil_scoped_release unlocked;
               bytes = self.serialize();
             }
             return py::bytes(bytes);
           })
      .def_property_readonly("fingerprint", [](const Executable& self) { return py::bytes(self.fingerprint()); });

  py::class_<Client, std::shared_ptr<Client>>(m, "Client", "The devices of one plugin.")
      .def(py::init(&Client::create), py::arg("plugin"), py::arg("options") = Attributes{}, release())
      .def_property_readonly("plugin", &Client::plugin, py::return_value_policy::reference)
      .def_property_readonly("platform_name", &Client::platform_name)
      .def_property_readonly("platform_version", &Client::platform_version)
      .def_property_readonly("process_index", &Client::process_index)
      .def_property_readonly("devices", &Client::devices, py::return_value_policy::reference_internal)
      .def_property_readonly("num_global_devices", &Client::num_global_devices)
      .def_property_readonly("topology_fingerprint",
                             [](const Client& self) { return py::bytes(self.topology_fingerprint()); })
      .def("compile", &Client::compile, py::arg("program"), py::arg("format") = "mlir", py::arg("options") = "",
           release())
      .def("deserialize", &Client::deserialize, py::arg("serialized"), py::arg("options") = "", release())
      .def("buffer_from_host", &buffer_from_host, py::arg("data"), py::arg("type"), py::arg("dims"),
           py::arg("device") = 0, py::arg("semantics") = HostSemantics::kCopy, py::arg("done") = py::none(),
           "A device array from an object with the buffer protocol; done() is called when `data` is free again.")
      .def(
          "uninitialized",
          [](const std::shared_ptr<Client>& self, const std::string& type, const Dims& dims, size_t device) {
            return std::make_unique<PyBuffer>(
                self, self->uninitialized(parse_type(type), dims.data(), dims.size(), device_at(*self, device)));
          },
          py::arg("type"), py::arg("dims"), py::arg("device") = 0);

  py::class_<Topology, std::shared_ptr<Topology>>(m, "Topology", "Devices to compile for that need not be there.")
      .def(py::init(&Topology::create), py::arg("plugin"), py::arg("name"), py::arg("options") = Attributes{},
           release())
      .def_property_readonly("platform_name", &Topology::platform_name)
      .def_property_readonly("platform_version", &Topology::platform_version)
      .def_property_readonly("devices", &Topology::devices)
      .def_property_readonly("attributes", &Topology::attributes)
      .def("serialize", [](const Topology& self) { return py::bytes(self.serialize()); })
      .def("compile", &Topology::compile, py::arg("program"), py::arg("format") = "mlir", py::arg("options") = "",
           release());

  m.def("default_client", &default_client, "The process's client, made at first use.");
  m.def("default_client_exists", &default_client_exists);
}

}  // namespace torch_tpu
