#include "recorder.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "gil.h"
#include "metrics.h"
#include "queue.h"

namespace torch_tpu {
namespace {

// A host that takes longer than this to its next op (it loads data) should not keep the device idle.
constexpr auto kIdleStep = std::chrono::milliseconds(5);

// Ids of the core's own nodes in signature keys; aten ops count up from 0.
enum Internal : uint64_t { kStridedRead = 1ull << 40, kStridedWrite, kConvert, kZeros, kResize };

void append(KeyWords& key, c10::IntArrayRef values) {
  key.push_back(values.size());
  for (int64_t v : values) key.push_back(static_cast<uint64_t>(v));
}

void append(std::vector<Argument>& arguments, const std::vector<int64_t>& values) {
  Argument argument;
  argument.value = values;
  arguments.push_back(std::move(argument));
}

Argument tensor_argument() {
  Argument argument;
  argument.kind = Argument::Kind::kTensor;
  return argument;
}

Argument int32_list(size_t n) {
  Argument list;
  list.kind = Argument::Kind::kList;
  Argument item;
  item.kind = Argument::Kind::kScalar;
  item.scalar = ScalarKind::kInt32;
  item.dtype = c10::ScalarType::Int;
  list.items.assign(n, item);
  return list;
}

// "aten::add(Float[2, 3], Float[3]) at train.py:12".
std::string describe(const Signature& signature) {
  std::ostringstream text;
  text << signature.op << "(";
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    const InputMeta& input = signature.inputs[i];
    text << (i ? ", " : "") << input.dtype << c10::IntArrayRef(input.sizes);
  }
  text << ")";
  const std::string site = user_site();
  if (!site.empty()) text << " at " << site;
  return text.str();
}

// Waits for the program; true if it compiled.
bool wait_for(Program& program) {
  WithoutGil released;
  return program.wait() == Program::State::kReady;
}

template <typename T>
bool any_not_finite(const std::vector<char>& bytes) {
  const T* data = reinterpret_cast<const T*>(bytes.data());
  return std::any_of(data, data + bytes.size() / sizeof(T), [](T x) { return !std::isfinite(static_cast<float>(x)); });
}

bool holds_nan(const Value& value) {
  if (!c10::isFloatingType(value.dtype) || c10::elementSize(value.dtype) < 2) return false;
  std::vector<char> bytes(value.nbytes());
  {
    WithoutGil released;
    read_to_host(value, bytes.data());
  }
  switch (value.dtype) {
    case c10::ScalarType::Float:
      return any_not_finite<float>(bytes);
    case c10::ScalarType::Double: {
      const double* data = reinterpret_cast<const double*>(bytes.data());
      return std::any_of(data, data + bytes.size() / sizeof(double), [](double x) { return !std::isfinite(x); });
    }
    case c10::ScalarType::Half:
      return any_not_finite<c10::Half>(bytes);
    default:
      return any_not_finite<c10::BFloat16>(bytes);
  }
}

}  // namespace

const char* flush_reason_name(FlushReason reason) {
  switch (reason) {
    case FlushReason::kOp:
      return "op";
    case FlushReason::kHostRead:
      return "host read";
    case FlushReason::kSynchronize:
      return "synchronize";
    case FlushReason::kStep:
      return "step";
    case FlushReason::kRepetition:
      return "repetition";
    case FlushReason::kNodeCap:
      return "node cap";
    case FlushReason::kByteCap:
      return "byte cap";
    case FlushReason::kModeChange:
      return "mode change";
    case FlushReason::kCompiledCall:
      return "compiled call";
    case FlushReason::kCount:
      break;
  }
  return "";
}

Recorder& Recorder::get() {
  static auto* instance = new Recorder;  // outlives static destruction: tensors may die late
  return *instance;
}

Recorder::Recorder() : streams_(memory::kMaxDevices) {
  for (size_t i = 0; i < static_cast<size_t>(FlushReason::kCount); ++i) {
    flushes_[i] = &counter(std::string("flushes.") + flush_reason_name(static_cast<FlushReason>(i)));
  }
}

void Recorder::set_mode(EagerMode mode) {
  auto locked = lock();
  flush_all(FlushReason::kModeChange);
  mode_.store(mode);
}

// ---- Values of tensors -------------------------------------------------------------------------------------------

ValuePtr Recorder::read(const c10::TensorImpl* tensor) {
  DeviceStorage* storage = storage_of(tensor);
  const Value* base = storage->value.get().get();
  const c10::ScalarType dtype = tensor->dtype().toScalarType();
  if (base != nullptr && base->dtype == dtype && tensor->storage_offset() == 0 &&
      same_layout(base->dims, storage->strides, tensor->sizes(), tensor->strides())) {
    return storage->value.get();
  }
  const c10::DeviceIndex device = storage->entry.device();
  if (tensor->numel() == 0) return emit(zeros_signature(dtype, tensor->sizes()), {}, {}, device)[0];
  if (base == nullptr && tensor->storage_offset() == 0 && is_dense(tensor->sizes(), tensor->strides()) &&
      tensor->numel() * tensor->itemsize() == storage->entry.nbytes()) {
    storage->bind(emit(zeros_signature(dtype, tensor->sizes()), {}, {}, device)[0], tensor->strides());
    return storage->value.get();
  }
  return strided_read(storage, tensor);
}

void Recorder::write(const c10::TensorImpl* tensor, ValuePtr value) {
  DeviceStorage* storage = storage_of(tensor);
  if (tensor->numel() == 0) return;
  if (tensor->storage_offset() == 0 && tensor->numel() * tensor->itemsize() == storage->entry.nbytes() &&
      is_dense(tensor->sizes(), tensor->strides())) {
    replace(storage, std::move(value), tensor->strides());
    return;
  }
  strided_write(storage, tensor, std::move(value));
}

// Binds a value and remembers whose place it took.
void Recorder::replace(DeviceStorage* storage, ValuePtr value, c10::IntArrayRef strides) {
  if (storage->value) streams_[storage->entry.device()].trace.replaced(*value, *storage->value.get());
  storage->bind(std::move(value), strides);
}

// The storage's value; a storage never written reads as zeros.
ValuePtr Recorder::base_value(DeviceStorage* storage, c10::ScalarType dtype) {
  if (!storage->value) {
    const int64_t count = static_cast<int64_t>(storage->entry.nbytes() / c10::elementSize(dtype));
    storage->bind(emit(zeros_signature(dtype, {count}), {}, {}, storage->entry.device())[0], {1});
  }
  return storage->value.get();
}

namespace {

c10::SmallVector<int32_t, 8> start_words(const StridedPlan& plan) {
  c10::SmallVector<int32_t, 8> words;
  for (int64_t s : plan.start) words.push_back(static_cast<int32_t>(s));
  return words;
}

// A box that does not fill the array may lie elsewhere the next time (x[i] in a loop): its place is a runtime
// parameter, also where it is 0.
bool may_move(const StridedPlan& plan) { return plan.gather || plan.extent != plan.radix; }

int64_t count_as(const Value& base, c10::ScalarType dtype) {
  return static_cast<int64_t>(base.nbytes() / c10::elementSize(dtype));
}

}  // namespace

ValuePtr Recorder::strided_read(DeviceStorage* storage, const c10::TensorImpl* tensor) {
  const ValuePtr base = base_value(storage, tensor->dtype().toScalarType());
  StridedPlan plan = plan_strided(count_as(*base, tensor->dtype().toScalarType()), tensor->sizes(), tensor->strides(),
                                  tensor->storage_offset());
  if (plan.gather) plan.start = {tensor->storage_offset()};
  const bool dynamic_start = may_move(plan);
  const Signature& signature = strided_signature(false, *base, storage->strides, tensor, plan, dynamic_start);
  const ValuePtr inputs[] = {base};
  const auto words = dynamic_start ? start_words(plan) : c10::SmallVector<int32_t, 8>{};
  return emit(signature, inputs, words, base->device)[0];
}

void Recorder::strided_write(DeviceStorage* storage, const c10::TensorImpl* tensor, ValuePtr value) {
  const ValuePtr base = base_value(storage, tensor->dtype().toScalarType());
  StridedPlan plan = plan_strided(count_as(*base, tensor->dtype().toScalarType()), tensor->sizes(), tensor->strides(),
                                  tensor->storage_offset());
  if (plan.gather) plan.start = {tensor->storage_offset()};
  const bool dynamic_start = may_move(plan);
  const Signature& signature = strided_signature(true, *base, storage->strides, tensor, plan, dynamic_start);
  const ValuePtr inputs[] = {base, std::move(value)};
  const auto words = dynamic_start ? start_words(plan) : c10::SmallVector<int32_t, 8>{};
  const Dims strides = storage->strides;
  replace(storage, emit(signature, inputs, words, base->device)[0], strides);
}

ValuePtr Recorder::convert(ValuePtr value, c10::ScalarType dtype) {
  if (value->dtype == dtype) return value;
  return emit(convert_signature(*value, dtype), {value}, {}, value->device)[0];
}

void Recorder::resize(DeviceStorage* storage, size_t nbytes) {
  if (storage->value) {
    const ValuePtr base = storage->value.get();
    const int64_t count = static_cast<int64_t>(nbytes / c10::elementSize(base->dtype));
    const ValuePtr inputs[] = {base};
    storage->bind(emit(resize_signature(*base, storage->strides, count), inputs, {}, base->device)[0], {1});
  }
  storage->entry.resize(nbytes);
}

// ---- Signatures of the core's own nodes --------------------------------------------------------------------------

const Signature& Recorder::strided_signature(bool write, const Value& base, c10::IntArrayRef base_strides,
                                             const c10::TensorImpl* tensor, const StridedPlan& plan,
                                             bool dynamic_start) {
  const c10::ScalarType dtype = tensor->dtype().toScalarType();
  KeyWords key{write ? kStridedWrite : kStridedRead, static_cast<uint64_t>(base.dtype), static_cast<uint64_t>(dtype),
               static_cast<uint64_t>(plan.gather) << 1 | static_cast<uint64_t>(dynamic_start)};
  append(key, base.dims);
  append(key, base_strides);
  append(key, tensor->sizes());
  append(key, tensor->strides());
  append(key, plan.radix);
  const uint64_t hash = hash_words(key.data(), key.size());
  if (const Signature* found = signatures.find(key, hash)) return *found;

  auto s = std::make_unique<Signature>();
  s->hash = hash;
  s->key.assign(key.begin(), key.end());
  s->op = write ? "torch_tpu::strided_write" : "torch_tpu::strided_read";
  s->arguments.push_back(tensor_argument());
  s->inputs.push_back({base.dtype, base.dims});
  if (write) {
    s->arguments.push_back(tensor_argument());
    s->inputs.push_back({dtype, Dims(tensor->sizes().begin(), tensor->sizes().end())});
  }
  s->arguments.push_back(int32_list(dynamic_start ? plan.start.size() : 0));
  s->scalar_words = dynamic_start ? static_cast<uint32_t>(plan.start.size()) : 0;
  append(s->arguments, base_strides.vec());
  append(s->arguments, tensor->sizes().vec());
  append(s->arguments, tensor->strides().vec());
  append(s->arguments, std::vector<int64_t>(plan.radix.begin(), plan.radix.end()));
  append(s->arguments, std::vector<int64_t>(plan.extent.begin(), plan.extent.end()));
  append(s->arguments, std::vector<int64_t>(plan.order.begin(), plan.order.end()));
  Argument gather;
  gather.value = plan.gather;
  s->arguments.push_back(std::move(gather));
  if (write) {
    s->outputs.push_back({base.dtype, base.dims, Dims(base_strides.begin(), base_strides.end())});
  } else {
    s->outputs.push_back({dtype, Dims(tensor->sizes().begin(), tensor->sizes().end()), {}});
  }
  return signatures.insert(std::move(s));
}

const Signature& Recorder::convert_signature(const Value& value, c10::ScalarType dtype) {
  KeyWords key{kConvert, static_cast<uint64_t>(value.dtype), static_cast<uint64_t>(dtype)};
  append(key, value.dims);
  const uint64_t hash = hash_words(key.data(), key.size());
  if (const Signature* found = signatures.find(key, hash)) return *found;
  auto s = std::make_unique<Signature>();
  s->hash = hash;
  s->key.assign(key.begin(), key.end());
  s->op = "torch_tpu::convert";
  s->arguments.push_back(tensor_argument());
  s->inputs.push_back({value.dtype, value.dims});
  s->outputs.push_back({dtype, value.dims, {}});
  return signatures.insert(std::move(s));
}

const Signature& Recorder::zeros_signature(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  KeyWords key{kZeros, static_cast<uint64_t>(dtype)};
  append(key, sizes);
  const uint64_t hash = hash_words(key.data(), key.size());
  if (const Signature* found = signatures.find(key, hash)) return *found;
  auto s = std::make_unique<Signature>();
  s->hash = hash;
  s->key.assign(key.begin(), key.end());
  s->op = "torch_tpu::zeros";
  s->outputs.push_back({dtype, Dims(sizes.begin(), sizes.end()), {}});
  return signatures.insert(std::move(s));
}

const Signature& Recorder::resize_signature(const Value& base, c10::IntArrayRef base_strides, size_t count) {
  KeyWords key{kResize, static_cast<uint64_t>(base.dtype), count};
  append(key, base.dims);
  append(key, base_strides);
  const uint64_t hash = hash_words(key.data(), key.size());
  if (const Signature* found = signatures.find(key, hash)) return *found;
  auto s = std::make_unique<Signature>();
  s->hash = hash;
  s->key.assign(key.begin(), key.end());
  s->op = "torch_tpu::resize";
  s->arguments.push_back(tensor_argument());
  s->inputs.push_back({base.dtype, base.dims});
  append(s->arguments, base_strides.vec());
  s->outputs.push_back({base.dtype, Dims{static_cast<int64_t>(count)}, {}});
  return signatures.insert(std::move(s));
}

// ---- Nodes and programs ------------------------------------------------------------------------------------------

Values Recorder::emit(const Signature& signature, c10::ArrayRef<ValuePtr> inputs, c10::ArrayRef<int32_t> scalars,
                      c10::DeviceIndex device) {
  Stream& stream = streams_[device];
  if (C10_UNLIKELY(stream.step_done)) {
    if (Clock::now() - stream.step_time > kIdleStep && ++stream.idle_steps >= 2) stream.flush_steps = true;
    // The inputs are values of the trace that ends here: they stay alive as inputs of the next one.
    c10::SmallVector<Holder, 8> held;
    for (const ValuePtr& input : inputs) held.emplace_back(input);
    flush(device, FlushReason::kStep);
  }
  // Cuts wait for the next op too: by then the temporaries of the user's expression are dead, and no outputs.
  for (size_t nodes : std::exchange(stream.cuts, {})) hand_over(device, nodes, FlushReason::kRepetition);
  const Values& outputs = stream.trace.append(signature, inputs, scalars, device);
  if (mode() == EagerMode::kFused) stream.repetition.add(stream.trace);
  return outputs;
}

void Recorder::step_done() {
  auto locked = lock();
  for (size_t d = 0; d < streams_.size(); ++d) {
    Stream& stream = streams_[d];
    if (stream.trace.nodes.empty()) continue;
    if (stream.flush_steps) {
      flush(static_cast<c10::DeviceIndex>(d), FlushReason::kStep);
    } else {
      stream.step_done = true;
      stream.step_time = Clock::now();
    }
  }
}

void Recorder::boundary(c10::DeviceIndex device) {
  Stream& stream = streams_[device];
  stream.trace.next_starts_op = true;
  switch (mode()) {
    case EagerMode::kStrict:
      flush(device, FlushReason::kOp);
      return;
    case EagerMode::kDebug:
      return flush_and_check(device);
    case EagerMode::kFused:
      break;
  }
  stream.cuts = stream.repetition.cuts(stream.trace);
  if (stream.trace.nodes.size() >= max_nodes) {
    stream.cuts.clear();
    hand_over(device, stream.trace.nodes.size(), FlushReason::kNodeCap);
  } else if (stream.trace.bytes >= max_bytes) {
    stream.cuts.clear();
    hand_over(device, stream.trace.nodes.size(), FlushReason::kByteCap);
  }
}

// Debug mode: waits for the op and looks at what it made, so that the error is raised at the user's line.
void Recorder::flush_and_check(c10::DeviceIndex device) {
  const std::vector<Node> nodes = streams_[device].trace.nodes;
  if (nodes.empty()) return;
  const std::shared_ptr<Program> program = flush(device, FlushReason::kOp);
  const auto is_aten = [](const Node& node) { return node.signature->op.rfind("torch_tpu::", 0) != 0; };
  const auto main = std::find_if(nodes.begin(), nodes.end(), is_aten);
  const Signature& signature = *(main == nodes.end() ? nodes.back() : *main).signature;
  if (debug_check_memory && program != nullptr && wait_for(*program)) {
    const size_t temporary = static_cast<size_t>(program->executable->memory_stats()["temp_bytes"]);
    const size_t allocated = static_cast<size_t>(memory::stats(device).bytes.current);
    TORCH_CHECK_WITH(OutOfMemoryError, allocated + temporary <= memory::limit(device), temporary,
                     " bytes of temporary memory do not fit beside ", allocated,
                     " bytes of tensors within the limit of ", memory::limit(device), "\nin ", describe(signature),
                     "\n", memory::report(device));
  }
  for (const Node& node : nodes) {
    for (const ValuePtr& value : node.outputs) {
      if (!value || value->state.load() == Value::State::kPending) continue;  // dead: it was never computed
      try {
        wait(*value);
        if (debug_check_nan && holds_nan(*value)) TORCH_CHECK(false, "NaN or Inf in the result");
      } catch (const c10::OutOfMemoryError& error) {
        TORCH_CHECK_WITH(OutOfMemoryError, false, error.what_without_backtrace(), "\nin ", describe(signature));
      } catch (const c10::Error& error) {
        TORCH_CHECK(false, error.what_without_backtrace(), "\nin ", describe(signature));
      }
    }
  }
}

void Recorder::flush_all(FlushReason reason) {
  for (size_t d = 0; d < streams_.size(); ++d) flush(static_cast<c10::DeviceIndex>(d), reason);
}

// A natural boundary: all that is recorded goes, and the stream starts anew.
std::shared_ptr<Program> Recorder::flush(c10::DeviceIndex device, FlushReason reason) {
  Stream& stream = streams_[device];
  stream.step_done = false;
  stream.cuts.clear();
  if (stream.trace.nodes.empty()) return nullptr;
  const bool waits = reason == FlushReason::kHostRead || reason == FlushReason::kSynchronize;
  if (waits) stream.repetition.waited(stream.trace);
  stream.repetition.restart(waits);
  return launch(std::exchange(stream.trace, Trace()), device, reason);
}

// Hands over the first `count` nodes of a stream that goes on.
void Recorder::hand_over(c10::DeviceIndex device, size_t count, FlushReason reason) {
  Stream& stream = streams_[device];
  std::vector<bool> first(stream.trace.nodes.size());
  std::fill_n(first.begin(), count, true);
  Trace piece = count == first.size() ? std::exchange(stream.trace, Trace()) : stream.trace.extract(first);
  stream.repetition.handed_over(count);
  launch(std::move(piece), device, reason);
}

namespace {

// The launch as the executable of a bucket takes it. Results that are padded stand behind those that were recorded.
void pad(Launch& work, const Padding& padding) {
  for (size_t i = 0; i < work.inputs.size(); ++i) {
    if (!padding.inputs[i].empty()) work.inputs[i] = under_dims(std::move(work.inputs[i]), padding.inputs[i]);
  }
  for (size_t i = 0; i < work.outputs.size(); ++i) {
    const Dims& dims = padding.outputs[i];
    if (dims.empty() || dims == work.outputs[i]->dims) continue;
    auto whole = c10::make_intrusive<Value>(work.outputs[i]->dtype, dims, work.outputs[i]->device);
    whole->state.store(Value::State::kQueued, std::memory_order_release);
    work.outputs[i]->source = whole;
    work.outputs[i] = std::move(whole);
    work.replaced[i] = -1;
  }
  std::vector<int32_t> words;
  for (uint32_t word : padding.words) words.push_back(work.scalars[word]);
  words.insert(words.end(), padding.sizes.begin(), padding.sizes.end());
  work.scalars = std::move(words);
}

}  // namespace

std::shared_ptr<Program> Recorder::launch(Trace piece, c10::DeviceIndex device, FlushReason reason) {
  Outputs outputs = live_outputs(piece);
  if (outputs.refs.empty()) return nullptr;
  const std::vector<bool> initial = initialisations(piece, outputs);
  if (!initial.empty() && mode() == EagerMode::kFused) {
    launch(piece.extract(initial), device, reason);
    outputs = live_outputs(piece);
  }
  count(*flushes_[static_cast<size_t>(reason)]);
  auto work = std::make_unique<Launch>();
  work->program = programs_.find_or_compile(piece, outputs, device, flush_reason_name(reason),
                                            mode() == EagerMode::kFused && dynamic_shapes);
  work->inputs.assign(std::make_move_iterator(piece.inputs.begin()), std::make_move_iterator(piece.inputs.end()));
  work->scalars = std::move(piece.scalars);
  for (const ValuePtr& value : outputs.values) value->state.store(Value::State::kQueued, std::memory_order_release);
  work->outputs.assign(std::make_move_iterator(outputs.values.begin()), std::make_move_iterator(outputs.values.end()));
  work->replaced = std::move(outputs.replaced);
  if (work->program->padding) pad(*work, *work->program->padding);
  std::shared_ptr<Program> program = work->program;
  enqueue_launch(std::move(work));
  return program;
}

}  // namespace torch_tpu
