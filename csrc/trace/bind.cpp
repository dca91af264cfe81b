#include "bind.h"

#include <ATen/core/jit_type.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "metrics.h"
#include "queue.h"
#include "recorder.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

py::object dims_tuple(const Dims& dims) {
  py::tuple result(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) result[i] = dims[i];
  return result;
}

py::object dtype_object(c10::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

// An argument as nested tuples: ("tensor",) | ("scalar", kind, dtype, weak) | ("list", items) | ("static", object).
py::object argument_object(const Argument& argument) {
  switch (argument.kind) {
    case Argument::Kind::kTensor:
      return py::make_tuple("tensor");
    case Argument::Kind::kScalar:
      return py::make_tuple("scalar", static_cast<int>(argument.scalar), dtype_object(argument.dtype), argument.weak);
    case Argument::Kind::kList: {
      py::list items;
      for (const Argument& item : argument.items) items.append(argument_object(item));
      return py::make_tuple("list", items);
    }
    case Argument::Kind::kDtype:
      return py::make_tuple("static", dtype_object(argument.dtype));
    case Argument::Kind::kStatic:
      break;
  }
  return py::make_tuple("static", torch::jit::toPyObject(argument.value));
}

py::object signature_object(const Signature& signature) {
  py::list arguments, inputs, outputs;
  for (const Argument& a : signature.arguments) arguments.append(argument_object(a));
  for (const InputMeta& m : signature.inputs) inputs.append(py::make_tuple(dtype_object(m.dtype), dims_tuple(m.sizes)));
  for (const OutputMeta& m : signature.outputs) {
    outputs.append(m.dtype == c10::ScalarType::Undefined ? py::object(py::none())
                                                         : py::make_tuple(dtype_object(m.dtype), dims_tuple(m.sizes)));
  }
  static constexpr const char* kPrecisions[] = {"highest", "high", "medium"};
  return py::make_tuple(signature.id, signature.op, signature.overload, arguments, inputs, outputs,
                        dtype_object(signature.default_dtype),
                        kPrecisions[static_cast<size_t>(signature.matmul_precision)], signature.site);
}

py::object ref_object(const Ref& ref) { return py::make_tuple(ref.node, ref.index); }

py::dict description_object(const ProgramDescription& description) {
  py::list inputs, nodes, outputs, donations;
  py::dict signatures;
  for (const InputMeta& m : description.inputs) {
    inputs.append(py::make_tuple(dtype_object(m.dtype), dims_tuple(m.sizes)));
  }
  for (const NodeDescription& node : description.nodes) {
    const py::int_ id(node.signature->id);
    if (!signatures.contains(id)) signatures[id] = signature_object(*node.signature);
    py::list refs;
    for (const Ref& ref : node.inputs) refs.append(ref_object(ref));
    nodes.append(py::make_tuple(id, refs, node.scalar_begin));
  }
  for (const Ref& ref : description.outputs) outputs.append(ref_object(ref));
  for (const auto& [input, output] : description.donations) donations.append(py::make_tuple(input, output));
  py::dict result;
  result["device"] = static_cast<int>(description.device);
  result["inputs"] = inputs;
  result["signatures"] = signatures;
  result["nodes"] = nodes;
  result["outputs"] = outputs;
  result["donations"] = donations;
  result["scalar_words"] = description.scalar_words;
  return result;
}

}  // namespace

std::shared_ptr<pjrt::Executable> build_program(const ProgramDescription& description) {
  py::gil_scoped_acquire gil;
  try {
    py::object executable =
        py::module_::import("torch_tpu.compiler.program").attr("build")(description_object(description));
    return executable.cast<std::shared_ptr<pjrt::Executable>>();
  } catch (py::error_already_set& error) {
    throw std::runtime_error(error.what());  // its text needs the GIL: taken here
  }
}

std::unique_ptr<const Padding> ask_padding(uint64_t family, const ProgramDescription& description,
                                           const std::vector<int32_t>& scalars, const ProgramDescription& first,
                                           double growth, int64_t minimum) {
  py::gil_scoped_acquire gil;
  try {
    const py::object found =
        py::module_::import("torch_tpu.dynamo.recorded")
            .attr("pad")(family, description_object(description), scalars, description_object(first), growth, minimum);
    if (found.is_none()) return nullptr;
    const auto dims = [&](const char* name) {
      std::vector<Dims> all;
      for (const auto& sizes : found.attr(name).cast<std::vector<std::vector<int64_t>>>()) {
        all.emplace_back(sizes.begin(), sizes.end());
      }
      return all;
    };
    auto padding = std::make_unique<Padding>();
    padding->executable = found.attr("executable").cast<std::shared_ptr<pjrt::Executable>>();
    padding->fresh = found.attr("fresh").cast<bool>();
    padding->inputs = dims("inputs");
    padding->outputs = dims("outputs");
    padding->words = found.attr("words").cast<std::vector<uint32_t>>();
    padding->sizes = found.attr("sizes").cast<std::vector<int32_t>>();
    padding->fixed = found.attr("fixed").cast<std::vector<std::pair<uint32_t, int32_t>>>();
    return padding;
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("padding a program of fused mode");  // it is compiled for its own sizes
    return nullptr;
  }
}

std::string why_not_lowered(const ProgramDescription& description) {
  py::gil_scoped_acquire gil;
  try {
    py::object refusal =
        py::module_::import("torch_tpu.compiler.program").attr("why_not_lowered")(description_object(description));
    return refusal.cast<std::string>();
  } catch (py::error_already_set& error) {
    throw std::runtime_error(error.what());
  }
}

void bind_trace(py::module_& m) {
  py::enum_<EagerMode>(m, "EagerMode")
      .value("DEBUG", EagerMode::kDebug)
      .value("STRICT", EagerMode::kStrict)
      .value("FUSED", EagerMode::kFused);
  m.def("_eager_mode", [] { return Recorder::get().mode(); });
  m.def("_set_eager_mode", [](EagerMode mode) { Recorder::get().set_mode(mode); });
  m.def("_set_debug_check_nan", [](bool on) { Recorder::get().debug_check_nan = on; });
  m.def("_step_done", [] { Recorder::get().step_done(); });
  m.def("_set_debug_check_index", [](bool on) { Recorder::get().debug_check_index = on; });
  m.def("_set_debug_check_memory", [](bool on) { Recorder::get().debug_check_memory = on; });
  m.def("_set_fused_max_nodes", [](size_t nodes) { Recorder::get().max_nodes = nodes; });
  m.def("_set_fused_max_bytes", [](size_t bytes) { Recorder::get().max_bytes = bytes; });
  m.def("_set_max_programs", [](size_t programs) { Recorder::get().programs().capacity = programs; });
  m.def("_set_dynamic_shapes", [](bool on) { Recorder::get().dynamic_shapes = on; });
  m.def("_set_bucket_growth", [](double growth) { Recorder::get().programs().bucket_growth = growth; });
  m.def("_set_bucket_minimum", [](int64_t size) { Recorder::get().programs().bucket_minimum = size; });
  m.def("_launch_log", [] {
    auto lock = Recorder::get().lock();
    py::list records;
    for (const LaunchRecord& r : Recorder::get().programs().log()) {
      const ProgramSummary& s = *r.summary;
      const std::shared_ptr<const Program> program = r.program.lock();
      records.append(py::make_tuple(r.reason, s.site, s.nodes, s.inputs, s.outputs, s.key, r.known, r.donated_bytes,
                                    s.compile_seconds.load(), s.difference, program ? program->executable : nullptr));
    }
    return records;
  });
  m.def("_program_description", [](uint64_t key) -> py::object {
    auto lock = Recorder::get().lock();
    for (const LaunchRecord& r : Recorder::get().programs().log()) {
      if (r.summary->key != key) continue;
      if (const std::shared_ptr<const Program> program = r.program.lock()) {
        return description_object(program->description);
      }
    }
    return py::none();
  });
  m.def("_flush", [] {
    auto lock = Recorder::get().lock();
    Recorder::get().flush_all(FlushReason::kStep);
  });
  m.def("_counters", &counters);
  m.def("_shutdown", &shutdown_queue);
}

}  // namespace torch_tpu
