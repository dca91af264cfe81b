// The record kernel: hashes an op, finds or makes its signature, and appends a node.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <cmath>
#include <cstring>

#include "../device/allocator.h"
#include "../device/generator.h"
#include "../device/runtime.h"
#include "../trace/bind.h"
#include "../trace/dtype.h"
#include "../trace/queue.h"
#include "../trace/recorder.h"
#include "arguments.h"
#include "distributions.h"
#include "inference.h"
#include "op_entry.h"
#include "refusal.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

using Stack = torch::jit::Stack;

// Tags of key words, so that no two different argument lists have the same words.
enum Tag : uint64_t { kNone = 1, kTensorTag, kHostScalarTag, kListTag, kNumberTag, kWordTag, kTextTag, kGeneratorTag };

uint64_t tag(Tag t, uint64_t a = 0, uint64_t b = 0) { return static_cast<uint64_t>(t) << 56 | a << 32 | b; }

// Conjugated or negated only when it is read.
bool is_lazy(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

bool is_wide(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double || dtype == c10::ScalarType::ComplexDouble;
}

// One call on its way into a node.
struct Call {
  explicit Call(OpEntry& entry) : entry(entry) {}

  OpEntry& entry;
  KeyWords key;
  c10::SmallVector<const c10::TensorImpl*, 8> inputs;
  c10::SmallVector<at::Tensor, 2> uploaded;         // host index tensors on the device, conjugated views resolved
  c10::SmallVector<const c10::IValue*, 8> numbers;  // runtime scalars and 0-d host tensors, in order
  bool wide = false;                                // scalars travel in double precision
  c10::DeviceIndex device = -1;                     // of the tensors
  c10::DeviceIndex wanted = -1;                     // what a device argument asks for
  bool elsewhere = false;                           // which is a device of another kind

  void add_tensor(const c10::IValue& value, bool out);
  void add_static(const c10::IValue& value);
  void want(c10::Device where) {
    elsewhere = !where.is_privateuseone();
    wanted = where.has_index() ? where.index() : current_device();
  }

  // Whether the first tensor is a fake one, which FakeTensorMode makes real ones like.
  bool is_fake() const { return !inputs.empty() && inputs[0]->unsafe_storage().device_type() == c10::kMeta; }

  void add_number(const c10::IValue& value) {
    numbers.push_back(&value);
    key.push_back(tag(kNumberTag, value.isDouble() ? 1 : value.isInt() ? 2 : value.isBool() ? 3 : 4));
  }
};

[[noreturn]] void other_device(const OpEntry& entry, const at::Tensor& tensor) {
  TORCH_CHECK(false, entry.op.schema().name(),
              ": Expected all tensors to be on the same device, but found at least two devices, tpu:",
              static_cast<int>(current_device()), " and ", tensor.device(), "!");
}

void Call::add_tensor(const c10::IValue& value, bool out) {
  if (value.isNone() || !value.toTensor().defined()) {
    key.push_back(tag(kNone));
    return;
  }
  const at::Tensor* tensor = &value.toTensor();
  if (C10_UNLIKELY(!tensor->is_privateuseone())) {
    if (tensor->device().is_cpu() && tensor->dim() == 0 && !out) {
      const auto* impl = tensor->unsafeGetTensorImpl();
      key.push_back(tag(kHostScalarTag, static_cast<uint64_t>(impl->is_wrapped_number()),
                        static_cast<uint64_t>(tensor->scalar_type())));
      numbers.push_back(&value);
      if (!impl->is_wrapped_number()) wide |= is_wide(tensor->scalar_type());
      return;
    }
    if (!tensor->device().is_cpu() || !entry.cpu_tensors_allowed) other_device(entry, *tensor);
    uploaded.push_back(tensor->to(c10::Device(c10::DeviceType::PrivateUse1, current_device())));
    tensor = &uploaded.back();
  }
  if (C10_UNLIKELY(is_lazy(*tensor)) && !out) {  // products and other ops that PyTorch lets through with these bits
    uploaded.push_back(tensor->resolve_conj().resolve_neg());
    tensor = &uploaded.back();
  }
  const c10::TensorImpl* impl = tensor->unsafeGetTensorImpl();
  const auto sizes = impl->sizes();
  const c10::ScalarType dtype = impl->dtype().toScalarType();
  wide |= is_wide(dtype);
  if (device < 0) {
    device = tensor->device().index();
  } else if (C10_UNLIKELY(device != tensor->device().index())) {
    TORCH_CHECK(false, entry.op.schema().name(),
                ": Expected all tensors to be on the same device, but found at least two devices, tpu:",
                static_cast<int>(device), " and ", tensor->device(), "!");
  }
  const bool contiguous = impl->is_contiguous();
  key.push_back(tag(kTensorTag, static_cast<uint64_t>(dtype) << 1 | contiguous, sizes.size()));
  for (int64_t s : sizes) key.push_back(static_cast<uint64_t>(s));
  if (!contiguous) {
    for (int64_t s : impl->strides()) key.push_back(static_cast<uint64_t>(s));
  }
  if (!out) inputs.push_back(impl);
}

void Call::add_static(const c10::IValue& value) {
  if (value.isNone()) {
    key.push_back(tag(kNone));
  } else if (value.isInt()) {
    key.push_back(tag(kWordTag, 1));
    key.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    key.push_back(tag(kWordTag, 2, value.toBool()));
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    uint64_t word;
    std::memcpy(&word, &number, sizeof word);
    key.push_back(tag(kWordTag, 3));
    key.push_back(word);
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    key.push_back(tag(kTextTag, 1, text.size()));
    for (char c : text) key.push_back(static_cast<unsigned char>(c));
  } else if (value.isIntList()) {
    const auto list = value.toIntVector();
    key.push_back(tag(kListTag, 1, list.size()));
    for (int64_t v : list) key.push_back(static_cast<uint64_t>(v));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    key.push_back(tag(kListTag, 2, list.size()));
    for (const c10::IValue& item : list) add_static(item);
  } else if (value.isDevice()) {
    key.push_back(tag(kWordTag, 5, static_cast<uint64_t>(value.toDevice().index()) & 0xff));
  } else if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    uint64_t words[2];
    std::memcpy(words, &number, sizeof words);
    key.push_back(tag(kWordTag, 4));
    key.push_back(words[0]);
    key.push_back(words[1]);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, entry.op.schema().name(), ": an argument of type ", value.tagKind(),
                                " cannot be recorded");
  }
}

c10::IValue meta_argument(const c10::IValue& value, const Parameter& parameter);

// How many numbers an arange has, which its numbers decide.
uint64_t count_of_result(OpEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  double start = 0, end = 0, step = 1;
  const auto& schema = entry.op.schema();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isInt() && !arguments[i].isDouble()) continue;
    const std::string& name = schema.arguments()[i].name();
    double* const number = name == "start" ? &start : name == "end" ? &end : name == "step" ? &step : nullptr;
    if (number != nullptr) *number = arguments[i].toScalar().toDouble();
  }
  const double count = std::ceil((end - start) / step);
  if (entry.functional == "aten::arange" && std::abs(end) < 1e15 && std::abs(start) < 1e15 && count >= 0) {
    return static_cast<uint64_t>(count);
  }
  // Numbers that need more care, or the error they deserve.
  Stack meta;
  for (size_t i = 0; i < arguments.size(); ++i) meta.push_back(meta_argument(arguments[i], entry.parameters[i]));
  at::AutoDispatchBelowADInplaceOrView guard;
  entry.op.callBoxed(&meta);
  return static_cast<uint64_t>(meta[0].toTensor().numel());
}

// Asking costs more than the rest of the key: only of the ops that it makes a difference to.
at::Float32MatmulPrecision matmul_precision(const OpEntry& entry) {
  return entry.products ? at::globalContext().float32MatmulPrecision() : at::Float32MatmulPrecision::HIGHEST;
}

void encode(Call& call, c10::ArrayRef<c10::IValue> arguments) {
  // The default dtype decides results such as that of a true division of integers.
  const c10::ScalarType default_dtype = c10::get_default_dtype_as_scalartype();
  call.key.push_back(call.entry.id);
  call.key.push_back(static_cast<uint64_t>(default_dtype) << 8 | static_cast<uint64_t>(matmul_precision(call.entry)));
  call.wide = call.entry.wide || default_dtype == c10::ScalarType::Double;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Parameter& parameter = call.entry.parameters[i];
    const c10::IValue& value = arguments[i];
    switch (parameter.kind) {
      case ParameterKind::kTensor:
        call.add_tensor(value, parameter.out);
        break;
      case ParameterKind::kTensorList: {
        if (value.isNone()) {
          call.key.push_back(tag(kNone));
          break;
        }
        const auto list = value.toListRef();
        call.key.push_back(tag(kListTag, 3, list.size()));
        for (const c10::IValue& item : list) call.add_tensor(item, parameter.out);
        break;
      }
      case ParameterKind::kNumber:
        if (parameter.dynamic && !value.isNone()) {
          call.add_number(value);
        } else {
          call.add_static(value);
        }
        break;
      case ParameterKind::kNumberList:
        if (parameter.dynamic && value.isList()) {
          const auto list = value.toListRef();
          call.key.push_back(tag(kListTag, 4, list.size()));
          for (const c10::IValue& item : list) call.add_number(item);
        } else {
          call.add_static(value);
        }
        break;
      case ParameterKind::kGenerator:
        call.key.push_back(tag(kGeneratorTag));
        break;
      case ParameterKind::kDevice:
        call.add_static(value);
        if (value.isDevice()) call.want(value.toDevice());
        break;
      default:
        call.add_static(value);
    }
  }
  if (call.entry.counted) call.key.push_back(count_of_result(call.entry, arguments));
  // Nothing says which precision a factory needs.
  if (call.inputs.empty() && call.device < 0) call.wide = true;
}

// ---- Scalars -----------------------------------------------------------------------------------------------------

using Words = c10::SmallVector<int32_t, 16>;

template <typename T>
void push_words(Words& words, T value) {
  int32_t raw[sizeof(T) / sizeof(int32_t)];
  std::memcpy(raw, &value, sizeof(T));
  words.append(raw, raw + sizeof(T) / sizeof(int32_t));
}

void push_scalar(Words& words, const c10::Scalar& scalar, bool wide) {
  if (scalar.isBoolean()) {
    words.push_back(scalar.toBool());
  } else if (scalar.isIntegral(false)) {
    push_words(words, scalar.toLong());
  } else if (scalar.isComplex()) {
    const auto number = scalar.toComplexDouble();
    if (wide) {
      push_words(words, number);
    } else {
      push_words(words, c10::complex<float>(static_cast<float>(number.real()), static_cast<float>(number.imag())));
    }
  } else if (wide) {
    push_words(words, scalar.toDouble());
  } else {
    push_words(words, static_cast<float>(scalar.toDouble()));
  }
}

// The inverse of push_scalar: how the words are to be read, and as which dtype the rule sees them.
Argument scalar_argument(const c10::IValue& value, bool wide) {
  Argument argument;
  argument.kind = Argument::Kind::kScalar;
  c10::ScalarType dtype;
  if (value.isTensor()) {
    argument.weak = value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
    dtype = value.toTensor().scalar_type();
  } else {
    argument.weak = true;
    dtype = value.toScalar().type();
  }
  if (dtype == c10::ScalarType::Bool) {
    argument.scalar = ScalarKind::kBool;
  } else if (c10::isIntegralType(dtype, false)) {
    argument.scalar = ScalarKind::kInt64;
  } else if (c10::isComplexType(dtype)) {
    argument.scalar = wide ? ScalarKind::kComplex128 : ScalarKind::kComplex64;
    if (argument.weak) dtype = wide ? c10::ScalarType::ComplexDouble : c10::ScalarType::ComplexFloat;
  } else {
    argument.scalar = wide ? ScalarKind::kFloat64 : ScalarKind::kFloat32;
    if (argument.weak) dtype = wide ? c10::ScalarType::Double : c10::ScalarType::Float;
  }
  argument.dtype = dtype;
  return argument;
}

// ---- Signatures --------------------------------------------------------------------------------------------------

at::Tensor meta_of(const at::Tensor& tensor) {
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

c10::IValue meta_argument(const c10::IValue& value, const Parameter& parameter) {
  return elsewhere(value, parameter, c10::DeviceType::Meta, [](const at::Tensor& t) {
    return t.defined() && !(t.device().is_cpu() && t.dim() == 0) ? meta_of(t) : t;
  });
}

void append_outputs(std::vector<OutputMeta>& outputs, const c10::IValue& value) {
  if (value.isTensor()) {
    outputs.push_back(output_meta(value.toTensor()));
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) outputs.push_back(output_meta(t));
  } else {
    outputs.push_back({c10::ScalarType::Undefined, {}, {}});
  }
}

Argument tensor_argument(const c10::IValue& value, bool wide) {
  Argument argument;
  if (value.isNone() || !value.toTensor().defined()) return argument;  // static None
  const at::Tensor& tensor = value.toTensor();
  if (tensor.device().is_cpu() && tensor.dim() == 0) return scalar_argument(value, wide);
  argument.kind = Argument::Kind::kTensor;
  return argument;
}

Argument describe_argument(const c10::IValue& value, const Parameter& parameter, bool wide) {
  Argument argument;
  switch (parameter.kind) {
    case ParameterKind::kTensor:
      return tensor_argument(value, wide);
    case ParameterKind::kTensorList:
      if (value.isNone()) return argument;
      argument.kind = Argument::Kind::kList;
      for (const c10::IValue& item : value.toListRef()) argument.items.push_back(tensor_argument(item, wide));
      return argument;
    case ParameterKind::kNumber:
      if (parameter.dynamic && !value.isNone()) return scalar_argument(value, wide);
      break;
    case ParameterKind::kNumberList:
      if (parameter.dynamic && value.isList()) {
        argument.kind = Argument::Kind::kList;
        for (const c10::IValue& item : value.toListRef()) argument.items.push_back(scalar_argument(item, wide));
        return argument;
      }
      break;
    case ParameterKind::kGenerator:
      return argument;
    case ParameterKind::kDtype:
      if (value.isNone()) return argument;
      argument.kind = Argument::Kind::kDtype;
      argument.dtype = value.toScalarType();
      return argument;
    default:
      break;
  }
  argument.value = value;
  return argument;
}

// Raises what Python raised, past the C++ frames up to the user's line.
[[noreturn]] void rethrow(pybind11::error_already_set& error) {
  error.restore();
  python_error persistent;
  persistent.persist();
  throw persistent;
}

// Calls a Python function with the op's arguments.
pybind11::object call_with(PyObject* function, const c10::FunctionSchema& schema,
                           c10::ArrayRef<c10::IValue> arguments) {
  pybind11::list positional;
  pybind11::dict keywords;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    pybind11::object value = torch::jit::toPyObject(arguments[i]);
    if (argument.kwarg_only()) {
      keywords[argument.name().c_str()] = value;
    } else {
      positional.append(value);
    }
  }
  return pybind11::handle(function)(*positional, **keywords);
}

bool wants_python(const OpEntry& entry, c10::ArrayRef<c10::IValue> meta_arguments) {
  if (entry.when == nullptr) return false;
  pybind11::gil_scoped_acquire gil;
  try {
    return call_with(entry.when, entry.op.schema(), meta_arguments).cast<bool>();
  } catch (pybind11::error_already_set& error) {
    rethrow(error);
  }
}

// Where only the functional form of an out= op has a meta function: the targets take its results' shapes.
bool ask_functional_meta(const OpEntry& entry, c10::ArrayRef<c10::IValue> meta_arguments, Signature& s) {
  const auto op = c10::Dispatcher::singleton().findOp({entry.functional, entry.functional_overload});
  if (!op || !entry.returns_targets || !entry.parameters[entry.targets[0]].out) return false;
  Stack meta;
  for (size_t i = 0; i < meta_arguments.size(); ++i) {
    if (!entry.parameters[i].out) meta.push_back(meta_arguments[i]);
  }
  try {
    at::AutoDispatchBelowADInplaceOrView guard;
    op->callBoxed(&meta);
  } catch (const c10::NotImplementedError&) {
    return false;
  }
  for (const c10::IValue& value : meta) append_outputs(s.resized, value);
  size_t output = 0;
  for (size_t target : entry.targets) {
    for_each_tensor(meta_arguments[target], [&](const at::Tensor& tensor) {
      if (output < s.resized.size()) s.outputs.push_back(s.resized[output++]);
      if (tensor.defined()) s.outputs.back().dtype = tensor.scalar_type();
    });
  }
  return s.outputs.size() == s.resized.size();
}

// Runs the op on meta tensors; false where PyTorch has no meta function for it.
bool ask_meta(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, Signature& s) {
  Stack meta;
  for (size_t i = 0; i < arguments.size(); ++i) meta.push_back(meta_argument(arguments[i], entry.parameters[i]));
  const std::vector<c10::IValue> meta_arguments(meta.begin(), meta.end());
  try {
    at::AutoDispatchBelowADInplaceOrView guard;
    entry.op.callBoxed(&meta);
  } catch (const c10::NotImplementedError&) {
    return ask_functional_meta(entry, meta_arguments, s);
  } catch (const python_error& error) {
    {
      pybind11::gil_scoped_acquire gil;
      if (PyErr_GivenExceptionMatches(error.type, PyExc_NotImplementedError)) {
        return ask_functional_meta(entry, meta_arguments, s);
      }
    }
    throw_as_on_cpu(entry, arguments, kLargeZeros);
    throw;
  } catch (const std::exception&) {  // c10's, or pybind11's of a Python meta function
    throw_as_on_cpu(entry, arguments, kLargeZeros);
    throw;
  }
  if (!entry.returns_targets) {
    for (const c10::IValue& value : meta) {
      append_outputs(s.outputs, value);
      if (value.isTensorList()) s.list_sizes.push_back(value.toTensorVector().size());
      if (!value.isTensor() && !value.isTensorList()) s.constants.push_back(value);
    }
  }
  for (size_t target : entry.targets) append_outputs(s.outputs, meta_arguments[target]);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (entry.parameters[i].out) append_outputs(s.resized, meta_arguments[i]);
  }
  return true;
}

// The signature of a call that is seen for the first time: PyTorch's own shape and dtype errors are raised here.
const Signature& make_signature(Call& call, c10::ArrayRef<c10::IValue> arguments, uint64_t hash) {
  OpEntry& entry = call.entry;
  auto s = std::make_unique<Signature>();
  s->hash = hash;
  s->key.assign(call.key.begin(), call.key.end());
  s->op = entry.functional;
  s->overload = entry.functional_overload;
  s->default_dtype = c10::get_default_dtype_as_scalartype();
  s->matmul_precision = matmul_precision(entry);
  s->site = user_site();

  for (size_t i = 0; i < arguments.size(); ++i) {
    if (entry.fills || !entry.parameters[i].written) continue;  // alike where elements overlap
    for_each_tensor(arguments[i], [](const at::Tensor& tensor) {
      if (tensor.defined()) at::assert_no_internal_overlap(tensor);
    });
  }
  if (entry.when != nullptr) {
    std::vector<c10::IValue> meta_arguments;
    for (size_t i = 0; i < arguments.size(); ++i) {
      meta_arguments.push_back(meta_argument(arguments[i], entry.parameters[i]));
    }
    s->python = wants_python(entry, meta_arguments);
    if (s->python) return Recorder::get().signatures.insert(std::move(s));
  }
  if (auto inferred = infer(entry, arguments)) {
    s->outputs = std::move(inferred->outputs);
    s->resized = std::move(inferred->resized);
    s->list_sizes = std::move(inferred->list_sizes);
  } else if (!ask_meta(entry, arguments, *s)) {
    s->fallback = true;
    s->fallback_reason = "PyTorch has no meta function for it";
    return Recorder::get().signatures.insert(std::move(s));
  }
  check_targets(entry, arguments, *s);
  for (const OutputMeta& output : s->outputs) {
    if (output.dtype != c10::ScalarType::Undefined) buffer_type(output.dtype);  // refuses what XLA does not have
  }
  for (const auto& [kept, unless] : entry.keeps) {
    if (!entry.returns_targets || !arguments[unless].isNone()) continue;
    size_t output = 0;
    for (size_t target : entry.targets) {
      for_each_tensor(arguments[target], [&](const at::Tensor&) {
        if (target == kept) s->outputs[output].dtype = c10::ScalarType::Undefined;
        ++output;
      });
    }
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!entry.parameters[i].out) {
      s->arguments.push_back(describe_argument(arguments[i], entry.parameters[i], call.wide));
    }
  }
  for (const c10::TensorImpl* input : call.inputs) {
    s->inputs.push_back({input->dtype().toScalarType(), Dims(input->sizes().begin(), input->sizes().end())});
  }
  check_arguments(entry, arguments, *s);
  return Recorder::get().signatures.insert(std::move(s));
}

// ---- Results -----------------------------------------------------------------------------------------------------

void push_new_returns(const OpEntry& entry, const Signature& signature, Values& values, Stack* stack,
                      c10::DeviceIndex device) {
  size_t next = 0, lists = 0, constants = 0;
  const auto make = [&]() -> at::Tensor {
    const OutputMeta& meta = signature.outputs[next];
    ValuePtr& value = values[next++];
    return value ? tensor_of(std::move(value), meta, device, signature.op.c_str()) : at::Tensor();
  };
  for (const auto& r : entry.op.schema().returns()) {
    if (r.type()->kind() == c10::TypeKind::ListType) {
      c10::List<at::Tensor> list;
      const size_t size = signature.list_sizes[lists++];
      for (size_t i = 0; i < size; ++i) list.push_back(make());
      stack->emplace_back(std::move(list));
    } else if (r.type()->kind() != c10::TypeKind::TensorType) {
      stack->push_back(signature.constants[constants++]);
      ++next;
    } else {
      stack->emplace_back(make());
    }
  }
}

bool draws(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  return entry.random && (entry.probability < 0 || arguments[entry.probability].toDouble() != 0);
}

void draw_random(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments, const Signature& signature,
                 c10::DeviceIndex device, Words& words) {
  at::Generator generator;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (entry.parameters[i].kind == ParameterKind::kGenerator && !arguments[i].isNone()) {
      generator = arguments[i].toGenerator();
    }
  }
  if (!generator.defined()) generator = default_generator(device);
  TORCH_CHECK(generator.device().type() == c10::DeviceType::PrivateUse1,
              "Expected a 'tpu' device type for generator but found '", generator.device().type(), "'");
  uint64_t numel = 0;
  const auto widen = [&](c10::IntArrayRef sizes) { numel = std::max<uint64_t>(numel, c10::multiply_integers(sizes)); };
  for (const OutputMeta& meta : signature.outputs) widen(meta.sizes);
  for (const InputMeta& meta : signature.inputs) widen(meta.sizes);
  const auto [seed, offset] = at::check_generator<TpuGeneratorImpl>(generator)->take((numel + 3) / 4 * 4);
  push_words(words, seed);
  push_words(words, offset);
}

// Debug mode on request: an index out of bounds, which a program would clamp, is an error at the call.
void check_indices(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  pybind11::gil_scoped_acquire gil;
  try {
    pybind11::tuple values(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) values[i] = torch::jit::toPyObject(arguments[i]);
    pybind11::module_::import("torch_tpu.compiler.debug").attr("check_indices")(entry.functional, values);
  } catch (pybind11::error_already_set& error) {
    rethrow(error);
  }
}

// Refuses, as PyTorch does, to write a tensor that a different view which is read overlaps.
void check_overlap(const OpEntry& entry, const Call& call, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t target : entry.targets) {
    if (!arguments[target].isTensor()) continue;  // of a list every tensor has inputs of its own
    const c10::TensorImpl* written = arguments[target].toTensor().unsafeGetTensorImpl();
    for (const c10::TensorImpl* input : call.inputs) assert_no_partial_overlap(written, input);
  }
}

void call_python(OpEntry& entry, Stack* stack) {
  const auto& schema = entry.op.schema();
  const auto arguments = torch::jit::pop(*stack, schema.arguments().size());
  pybind11::gil_scoped_acquire gil;
  try {
    pybind11::object result = call_with(entry.python, schema, arguments);
    const auto& returns = schema.returns();
    if (returns.size() == 1) {
      stack->push_back(torch::jit::toIValue(result, returns[0].real_type()));
    } else {
      size_t i = 0;
      for (pybind11::handle item : result) stack->push_back(torch::jit::toIValue(item, returns[i++].real_type()));
    }
  } catch (pybind11::error_already_set& error) {
    rethrow(error);
  }
}

void record_node(OpEntry& entry, Stack* stack) {
  const size_t nargs = entry.parameters.size();
  const c10::ArrayRef<c10::IValue> arguments(stack->data() + stack->size() - nargs, nargs);
  Recorder& recorder = Recorder::get();
  if (C10_UNLIKELY(recorder.mode() == EagerMode::kDebug && recorder.debug_check_index)) check_indices(entry, arguments);
  if (entry.random) check_distribution(entry.op.schema(), arguments);
  auto lock = recorder.lock();

  Call call(entry);
  encode(call, arguments);
  if (C10_UNLIKELY(call.wanted >= 0 && call.device >= 0 &&
                   (call.wanted != call.device || call.elsewhere || call.is_fake()))) {
    lock.unlock();  // Tensor.new_full, torch.zeros_like and such, for another device than the tensor's
    entry.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
    return;
  }
  if (call.device < 0) call.device = call.wanted >= 0 ? call.wanted : current_device();
  const uint64_t hash = hash_words(call.key.data(), call.key.size());
  const Signature* signature = recorder.signatures.find(call.key, hash);
  if (signature == nullptr) signature = &make_signature(call, arguments, hash);
  if (C10_UNLIKELY(signature->python)) {
    lock.unlock();
    call_python(entry, stack);
    return;
  }
  if (C10_UNLIKELY(signature->fallback)) {
    lock.unlock();
    run_on_cpu(entry, stack, signature->fallback_reason);
    return;
  }

  if (!entry.targets.empty()) check_overlap(entry, call, arguments);
  c10::SmallVector<ValuePtr, 8> inputs;
  for (const c10::TensorImpl* tensor : call.inputs) inputs.push_back(recorder.read(tensor));
  Words words;
  for (const c10::IValue* number : call.numbers) {
    const c10::Scalar scalar = number->isTensor() ? number->toTensor().item() : number->toScalar();
    if (entry.fills) check_fits(scalar, signature->outputs[0].dtype);
    push_scalar(words, scalar, call.wide);
  }
  if (draws(entry, arguments)) draw_random(entry, arguments, *signature, call.device, words);
  Values values = recorder.emit(*signature, inputs, words, call.device);

  size_t next = entry.returns_targets ? 0 : signature->outputs.size();
  if (!entry.targets.empty() && !entry.returns_targets) {
    for (size_t target : entry.targets) for_each_tensor(arguments[target], [&](const at::Tensor&) { --next; });
  }
  size_t out = 0;
  for (size_t target : entry.targets) {
    for_each_tensor(arguments[target], [&](const at::Tensor& tensor) {
      const OutputMeta& meta = signature->outputs[next];
      ValuePtr& value = values[next++];
      if (entry.parameters[target].out) at::native::resize_output(tensor, signature->resized[out++].sizes);
      if (!value || !tensor.defined()) return;
      if (C10_UNLIKELY(is_lazy(tensor))) {
        at::AutoDispatchBelowADInplaceOrView guard;
        tensor.copy_(tensor_of(std::move(value), meta, call.device, signature->op.c_str()));
      } else {
        recorder.write(tensor.unsafeGetTensorImpl(), std::move(value));
      }
    });
  }

  if (entry.returns_targets) {
    Stack returns;
    const size_t count = entry.op.schema().returns().size();
    for (size_t i = 0; i < count; ++i) returns.push_back(arguments[entry.targets[i]]);
    torch::jit::drop(*stack, nargs);
    for (c10::IValue& value : returns) stack->push_back(std::move(value));
  } else {
    Stack returns;
    push_new_returns(entry, *signature, values, &returns, call.device);
    torch::jit::drop(*stack, nargs);
    for (c10::IValue& value : returns) stack->push_back(std::move(value));
  }
  inputs.clear();
  values.clear();
  recorder.boundary(call.device);
}

}  // namespace

void record(OpEntry& entry, Stack* stack) {
  if (answer_probe(entry, stack)) return;
  ensure_initialized();
  OpKind kind = entry.kind.load(std::memory_order_acquire);
  if (C10_UNLIKELY(kind == OpKind::kUnresolved)) {
    entry.resolve();
    kind = entry.kind.load(std::memory_order_acquire);
  }
  switch (kind) {
    case OpKind::kRecord:
      record_node(entry, stack);
      return;
    case OpKind::kPython:
      refuse_as_on_cpu(entry, torch::jit::last(*stack, entry.parameters.size()), kSmallZeros);
      call_python(entry, stack);
      return;
    case OpKind::kComposite:
      entry.op.callBoxedForDispatchKey(entry.composite, *stack);
      return;
    default:
      run_on_cpu(entry, stack, entry.reason);
  }
}

}  // namespace torch_tpu
