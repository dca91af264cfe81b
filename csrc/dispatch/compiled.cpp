#include "compiled.h"

#include <ATen/ATen.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>

#include "../device/generator.h"
#include "../device/runtime.h"
#include "../trace/metrics.h"
#include "../trace/queue.h"
#include "../trace/recorder.h"
#include "tensor.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

using Words = decltype(Launch::scalars);

template <typename T>
void push_words(Words& words, T value) {
  int32_t raw[sizeof(T) / sizeof(int32_t)];
  std::memcpy(raw, &value, sizeof(T));
  words.insert(words.end(), std::begin(raw), std::end(raw));
}

void push_scalar(Words& words, ScalarKind kind, const c10::Scalar& scalar) {
  switch (kind) {
    case ScalarKind::kFloat32:
      return push_words(words, scalar.to<float>());
    case ScalarKind::kFloat64:
      return push_words(words, scalar.to<double>());
    case ScalarKind::kInt32:
      return push_words(words, scalar.to<int32_t>());
    case ScalarKind::kBool:
      return push_words(words, static_cast<int32_t>(scalar.to<bool>()));
    case ScalarKind::kComplex64:
      return push_words(words, scalar.to<c10::complex<float>>());
    case ScalarKind::kComplex128:
      return push_words(words, scalar.to<c10::complex<double>>());
    case ScalarKind::kInt64:
    case ScalarKind::kUint64:
      return push_words(words, scalar.to<int64_t>());
  }
}

c10::Scalar scalar_of(PyObject* object) {
  if (PyBool_Check(object)) return c10::Scalar(object == Py_True);
  if (PyLong_Check(object)) return c10::Scalar(static_cast<int64_t>(PyLong_AsLongLong(object)));
  if (PyFloat_Check(object)) return c10::Scalar(PyFloat_AS_DOUBLE(object));
  TORCH_CHECK_TYPE(THPVariable_Check(object), "a compiled program takes tensors and numbers, not ",
                   Py_TYPE(object)->tp_name);
  return THPVariable_Unpack(object).item();
}

}  // namespace

CompiledProgram::CompiledProgram(std::shared_ptr<pjrt::Executable> executable, c10::DeviceIndex device,
                                 std::string name, std::vector<CompiledParameter> parameters,
                                 std::vector<OutputMeta> results, std::vector<WriteBack> writes,
                                 std::vector<CompiledOutput> outputs, std::vector<uint64_t> draws)
    : device_(device),
      name_(std::move(name)),
      parameters_(std::move(parameters)),
      results_(std::move(results)),
      writes_(std::move(writes)),
      outputs_(std::move(outputs)),
      draws_(std::move(draws)) {
  static Counter& made = counter("compiled_programs");
  count(made);
  for (const CompiledOutput& output : outputs_) {
    const bool seen = std::find(new_results_.begin(), new_results_.end(), output.index) != new_results_.end();
    if (output.kind == CompiledOutput::Kind::kResult && !seen) new_results_.push_back(output.index);
  }
  ProgramDescription description;
  description.device = device;
  program_ = std::make_shared<Program>(std::vector<uint64_t>{}, std::move(description));
  program_->finish(std::move(executable));
}

py::list CompiledProgram::call(py::list arguments, const CompiledExtents* extents) {
  TORCH_CHECK_VALUE(arguments.size() == parameters_.size(), name_, " takes ", parameters_.size(), " arguments, got ",
                    arguments.size());
  ensure_initialized();
  const size_t count = parameters_.size();
  auto launch = std::make_unique<Launch>();
  launch->program = program_;
  c10::SmallVector<Holder, 32> inputs;
  c10::SmallVector<at::Tensor, 8> kept;  // arguments that are needed after the list is emptied
  kept.resize(count);

  Recorder& recorder = Recorder::get();
  auto lock = recorder.lock();
  for (size_t i = 0; i < count; ++i) {
    const CompiledParameter& parameter = parameters_[i];
    PyObject* argument = PyList_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i));
    if (parameter.use == ParameterUse::kTensor) {
      const at::Tensor& tensor = THPVariable_Unpack(argument);
      TORCH_CHECK(tensor.is_privateuseone() && tensor.device().index() == device_, name_, ": argument ", i,
                  " should be on tpu:", static_cast<int>(device_), ", but is on ", tensor.device());
      inputs.emplace_back(recorder.read(tensor.unsafeGetTensorImpl()));
    } else if (parameter.use == ParameterUse::kScalar) {
      push_scalar(launch->scalars, parameter.scalar, scalar_of(argument));
    }
  }
  for (const WriteBack& write : writes_) {
    kept[write.argument] =
        THPVariable_Unpack(PyList_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(write.argument)));
  }
  py::list returned(outputs_.size());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].kind == CompiledOutput::Kind::kArgument) returned[i] = arguments[outputs_[i].index];
  }
  for (uint64_t numbers : extents == nullptr ? draws_ : extents->draws) {
    const auto [seed, offset] = at::check_generator<TpuGeneratorImpl>(default_generator(device_))->take(numbers);
    push_words(launch->scalars, seed);
    push_words(launch->scalars, offset);
  }
  if (extents != nullptr) {
    launch->scalars.insert(launch->scalars.end(), extents->sizes.begin(), extents->sizes.end());
  }
  if (!recorder.empty(device_)) recorder.flush(device_, FlushReason::kCompiledCall);
  size_t input = 0;
  for (const CompiledParameter& parameter : parameters_) {  // after the flush, which may have padded a value itself
    if (parameter.use != ParameterUse::kTensor) continue;
    if (!parameter.padded.empty()) inputs[input] = Holder(under_dims(inputs[input].get(), parameter.padded));
    ++input;
  }

  launch->outputs.reserve(results_.size());
  for (const OutputMeta& meta : results_) {
    auto value = c10::make_intrusive<Value>(meta.dtype, meta.sizes, device_);
    value->state.store(Value::State::kQueued, std::memory_order_release);
    launch->outputs.push_back(std::move(value));
  }
  const std::vector<OutputMeta>& metas = extents == nullptr ? results_ : extents->logical;
  std::vector<ValuePtr> values;
  for (size_t i = 0; i < metas.size(); ++i) values.push_back(under_dims(launch->outputs[i], metas[i].sizes));
  for (const WriteBack& write : writes_) {
    recorder.write(kept[write.argument].unsafeGetTensorImpl(), values[write.result]);
  }
  std::vector<at::Tensor> tensors(results_.size());
  for (uint32_t result : new_results_) {
    tensors[result] = tensor_of(values[result], metas[result], device_, "torch.compile");
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const CompiledOutput& output = outputs_[i];
    if (output.kind == CompiledOutput::Kind::kResult) {
      returned[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[output.index]));
    } else if (output.kind == CompiledOutput::Kind::kConstant) {
      returned[i] = output.constant;
    }
  }

  // What only the call held is gone now; what nobody can see any more may give its buffer away.
  PyList_SetSlice(arguments.ptr(), 0, PyList_GET_SIZE(arguments.ptr()), nullptr);
  kept.clear();
  size_t next = 0;
  for (const CompiledParameter& parameter : parameters_) {
    if (parameter.use != ParameterUse::kTensor) continue;
    const Holder& input = inputs[next];
    const auto shared = [&] {
      if (input->holders.load(std::memory_order_acquire) > 1) return true;
      return std::count_if(inputs.begin(), inputs.end(), [&](const Holder& h) { return h.get() == input.get(); }) > 1;
    };
    if (parameter.donated && shared()) launch->keep.push_back(static_cast<int64_t>(next));
    launch->inputs.push_back(input.get());
    ++next;
  }
  inputs.clear();
  enqueue_launch(std::move(launch));
  recorder.boundary(device_);  // writes through views were recorded
  return returned;
}

void bind_compiled(py::module_& m) {
  m.def(
      "_count", [](const std::string& name, int64_t n) { count(counter(name), n); }, py::arg("name"), py::arg("n") = 1);
  // parameters: (use, scalar kind, donated); results: (dtype, sizes, strides); writes: (result, argument);
  // outputs: (kind, index, constant).
  using Parameters = std::vector<std::tuple<int, int, bool, std::vector<int64_t>>>;
  using Results = std::vector<std::tuple<at::ScalarType, std::vector<int64_t>, std::vector<int64_t>>>;
  using Writes = std::vector<std::pair<uint32_t, uint32_t>>;
  using Outputs = std::vector<std::tuple<int, uint32_t, py::object>>;
  const auto output_metas = [](const Results& results) {
    std::vector<OutputMeta> metas;
    for (const auto& [dtype, sizes, strides] : results) {
      metas.push_back({dtype, Dims(sizes.begin(), sizes.end()), Dims(strides.begin(), strides.end())});
    }
    return metas;
  };
  py::class_<CompiledExtents>(m, "CompiledExtents")
      .def(py::init([output_metas](std::vector<int32_t> sizes, const Results& logical, std::vector<uint64_t> draws) {
             return CompiledExtents{std::move(sizes), output_metas(logical), std::move(draws)};
           }),
           py::arg("sizes"), py::arg("logical"), py::arg("draws"));
  py::class_<CompiledProgram, std::shared_ptr<CompiledProgram>>(m, "CompiledProgram", py::dynamic_attr())
      .def(py::init([output_metas](std::shared_ptr<pjrt::Executable> executable, int device, std::string name,
                                   const Parameters& parameters, const Results& results, const Writes& writes,
                                   const Outputs& outputs, std::vector<uint64_t> draws) {
             std::vector<CompiledParameter> params;
             for (const auto& [use, scalar, donated, padded] : parameters) {
               params.push_back({static_cast<ParameterUse>(use), static_cast<ScalarKind>(scalar), donated, padded});
             }
             std::vector<OutputMeta> metas = output_metas(results);
             std::vector<WriteBack> backs;
             for (const auto& [result, argument] : writes) backs.push_back({result, argument});
             std::vector<CompiledOutput> outs;
             for (const auto& [kind, index, constant] : outputs) {
               outs.push_back({static_cast<CompiledOutput::Kind>(kind), index, constant});
             }
             return std::make_shared<CompiledProgram>(std::move(executable), static_cast<c10::DeviceIndex>(device),
                                                      std::move(name), std::move(params), std::move(metas),
                                                      std::move(backs), std::move(outs), std::move(draws));
           }),
           py::arg("executable"), py::arg("device"), py::arg("name"), py::arg("parameters"), py::arg("results"),
           py::arg("writes"), py::arg("outputs"), py::arg("draws"))
      .def("__call__", &CompiledProgram::call, py::arg("arguments"), py::arg("extents") = nullptr)
      .def("call", [](CompiledProgram& self, py::args arguments) { return self.call(py::list(arguments), nullptr); })
      .def_property_readonly("executable", &CompiledProgram::executable);
}

}  // namespace torch_tpu
