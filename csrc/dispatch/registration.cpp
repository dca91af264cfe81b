// Puts the boxed record kernel under every aten op that needs a kernel of the backend, and under every op to come.
#include "registration.h"

#include <torch/library.h>

#include <mutex>
#include <unordered_map>

#include "op_entry.h"

namespace torch_tpu {
namespace {

using c10::DispatchKey;

class RecordKernel final : public c10::OperatorKernel {
 public:
  explicit RecordKernel(const c10::OperatorHandle& op) : entry_(op) {}
  void operator()(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
    record(entry_, stack);
  }

 private:
  OpEntry entry_;
};

// Ops of other libraries, and aten ops that appear after this library is loaded.
void record_any(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  static std::mutex mutex;
  static auto* entries = new std::unordered_map<c10::OperatorName, std::unique_ptr<OpEntry>>;
  OpEntry* entry;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& slot = (*entries)[op.operator_name()];
    if (!slot) slot = std::make_unique<OpEntry>(op);
    entry = slot.get();
  }
  record(*entry, stack);
}

// A view shares its input's storage; its kernel is PyTorch's composite one or ours, never a recorded node.
bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& r : schema.returns()) {
    if (r.alias_info() != nullptr && !r.alias_info()->isWrite()) return true;
  }
  return false;
}

bool has_tensors(const c10::FunctionSchema& schema) {
  for (const c10::Argument& r : schema.returns()) {
    if (r.type()->isSubtypeOf(*c10::TensorType::get()) || r.type()->isSubtypeOf(*c10::ListType::ofTensors())) {
      return true;
    }
  }
  for (const c10::Argument& a : schema.arguments()) {
    if (a.alias_info() != nullptr && a.alias_info()->isWrite()) return true;
  }
  return false;
}

bool is_recorded(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || !has_tensors(op.schema()) || is_view(op.schema())) return false;
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return false;
  return !op.hasKernelForDispatchKey(DispatchKey::PrivateUse1);  // one of our own, in this folder or csrc/device
}

torch::Library& aten_library() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  return *library;
}

}  // namespace

void register_record_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !is_recorded(*op)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    aten_library().impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RecordKernel>(*op)));
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&record_any>()); }

}  // namespace torch_tpu
