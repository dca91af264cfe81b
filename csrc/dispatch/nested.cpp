// Nested tensors of strided layout: sizes on the host, one buffer on the device. Most of PyTorch's kernels for the CPU
// are made of ops on the buffer and serve any device. (Jagged ones are Python over ordinary tensors, and need nothing
// here.)
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

#include <unordered_set>

#include "registration.h"

namespace torch_tpu {
namespace {

// These read the buffer's memory.
bool reads_memory(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::native_layer_norm", "aten::native_layer_norm_backward",
                                                     "aten::sum", "aten::_nested_sum_backward",
                                                     "aten::_transform_bias_rescale_qkv"};
  return names.count(name) > 0;
}

void run_nested(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::NestedTensorCPU, *stack);
}

}  // namespace

void register_nested_kernels() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::NestedTensorPrivateUse1, __FILE__,
                                __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::NestedTensorCPU)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), reads_memory(name.name)
                                   ? torch::CppFunction::makeFromBoxedFunction<&run_structured_on_cpu>()
                                   : torch::CppFunction::makeFromBoxedFunction<&run_nested>());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_view_from_buffer", TORCH_FN(at::native::_nested_view_from_buffer));
  m.impl("_nested_from_padded", TORCH_FN(at::native::nested_from_padded_generic));
  m.impl("_nested_tensor_from_mask", TORCH_FN(at::native::NestedTensor_nested_tensor_from_mask));
}

}  // namespace torch_tpu
