#include "op_entry.h"

#include <torch/csrc/utils/pybind.h>

#include <unordered_set>

#include "../trace/gil.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

ParameterKind kind_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return kind_of(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType: {
      const ParameterKind item = kind_of(type->castRaw<c10::ListType>()->getElementType());
      if (item == ParameterKind::kTensor) return ParameterKind::kTensorList;
      const c10::TypeKind element = type->castRaw<c10::ListType>()->getElementType()->kind();
      return element == c10::TypeKind::NumberType ? ParameterKind::kNumberList : ParameterKind::kStatic;
    }
    case c10::TypeKind::TensorType:
      return ParameterKind::kTensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return ParameterKind::kNumber;
    case c10::TypeKind::GeneratorType:
      return ParameterKind::kGenerator;
    case c10::TypeKind::ScalarTypeType:
      return ParameterKind::kDtype;
    case c10::TypeKind::DeviceObjType:
      return ParameterKind::kDevice;
    default:
      return ParameterKind::kStatic;
  }
}

uint32_t next_id() {
  static std::atomic<uint32_t> next{0};
  return next.fetch_add(1);
}

// Ops that PyTorch lets take index tensors from the host.
bool takes_host_indices(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::index",         "aten::index_put",         "aten::index_put_",     "aten::_index_put_impl_",
      "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_index_put_impl"};
  return names.count(name) != 0;
}

}  // namespace

OpEntry::OpEntry(const c10::OperatorHandle& op) : op(op), id(next_id()) {
  for (const c10::Argument& argument : op.schema().arguments()) {
    Parameter parameter;
    parameter.kind = kind_of(argument.real_type());
    parameter.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    parameter.out = argument.is_out();
    parameters.push_back(parameter);
  }
  // Zeros as pivots, lengths or offsets are out of bounds, or refused for their values, or assert what is false;
  // attention has no CPU kernel.
  static const std::unordered_set<std::string> no_zeros{
      "aten::lu_unpack",
      "aten::linalg_lu_solve",
      "aten::linalg_ldl_solve",
      "aten::repeat_interleave",
      "aten::segment_reduce",
      "aten::_segment_reduce_backward",
      "aten::_padded_dense_to_jagged_forward",
      "aten::_assert_async",
      "aten::_ctc_loss",
      "aten::_ctc_loss_backward",
      "aten::_scaled_dot_product_fused_attention_overrideable",
      "aten::_scaled_dot_product_fused_attention_overrideable_backward"};
  cpu_takes_zeros =
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) && no_zeros.count(op.schema().name()) == 0;
  cpu_tensors_allowed = takes_host_indices(op.schema().name());
}

void OpEntry::resolve() {
  py::gil_scoped_acquire gil;
  py::object resolution;
  {
    // Another thread may resolve the same op: both get the same answer, the first one writes it down.
    py::module_ registry = py::module_::import("torch_tpu.lowering.registry");
    resolution = registry.attr("resolve")(op.schema().name(), op.schema().overload_name());
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (kind.load() != OpKind::kUnresolved) return;

  const std::string resolved = resolution.attr("kind").cast<std::string>();
  const py::object functional_op = resolution.attr("functional");
  if (!functional_op.is_none()) {
    functional = functional_op.attr("_schema").attr("name").cast<std::string>();
    functional_overload = functional_op.attr("_schema").attr("overload_name").cast<std::string>();
  }
  reason = resolution.attr("reason").cast<std::string>();
  OpKind result = OpKind::kFallback;
  if (resolved == "record") {
    result = OpKind::kRecord;
    const auto dynamic = resolution.attr("dynamic").cast<std::vector<bool>>();
    size_t position = 0;  // the functional op has the same arguments but for the out ones
    for (Parameter& parameter : parameters) {
      if (!parameter.out && position < dynamic.size()) parameter.dynamic = dynamic[position++];
    }
    for (const auto& name : resolution.attr("mutates").cast<std::vector<std::string>>()) {
      targets.push_back(static_cast<size_t>(*op.schema().argumentIndexWithName(name)));
    }
    returns_targets = !targets.empty() && !resolution.attr("hidden").cast<bool>();
    const py::object drawn = resolution.attr("random");
    random = !drawn.is(py::bool_(false));
    if (py::isinstance<py::str>(drawn)) probability = *op.schema().argumentIndexWithName(drawn.cast<std::string>());
    wide = resolution.attr("wide").cast<bool>();
    products = resolution.attr("products").cast<bool>();
    for (const auto& [kept, unless] :
         resolution.attr("keeps").cast<std::vector<std::pair<std::string, std::string>>>()) {
      keeps.emplace_back(*op.schema().argumentIndexWithName(kept), *op.schema().argumentIndexWithName(unless));
    }
    static const std::unordered_set<std::string> filling{"aten::fill", "aten::zero",      "aten::masked_fill",
                                                         "aten::full", "aten::full_like", "aten::scalar_tensor"};
    fills = filling.count(functional) > 0;
    counted = functional == "aten::arange" || functional == "aten::range";
    if (!resolution.attr("when").is_none()) {
      when = resolution.attr("when").cast<py::object>().release().ptr();
      python = resolution.attr("fn").cast<py::object>().release().ptr();
    }
  } else if (resolved == "python") {
    result = OpKind::kPython;
    python = resolution.attr("fn").cast<py::object>().release().ptr();
  } else if (resolved == "composite") {
    result = OpKind::kComposite;
    composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)
                    ? c10::DispatchKey::CompositeExplicitAutogradNonFunctional
                    : c10::DispatchKey::CompositeExplicitAutograd;
  }
  kind.store(result, std::memory_order_release);
}

}  // namespace torch_tpu
