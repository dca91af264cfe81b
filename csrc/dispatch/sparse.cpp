// Sparse tensors: indices and values on the device, their structure by PyTorch's own code, their arithmetic on the CPU.
// What moves them there and back serves nested tensors too.
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/SparseTensorUtils.h>
#include <torch/library.h>

#include "op_entry.h"
#include "registration.h"

namespace torch_tpu {
namespace {

using c10::DispatchKey;

bool is_compressed(const at::Tensor& tensor) { return at::sparse_csr::is_sparse_compressed(tensor); }

// Both kinds of indices of a compressed tensor: (along the compressed dim, along the plain one).
std::pair<at::Tensor, at::Tensor> indices_of(const at::Tensor& tensor) {
  return at::sparse_csr::getCompressedPlainIndices(tensor);
}

at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  if (tensor.layout() == at::kSparse) {
    return at::_sparse_coo_tensor_unsafe(tensor._indices().to(device), tensor._values().to(device), tensor.sizes(),
                                         tensor.options().device(device), tensor.is_coalesced());
  }
  if (is_compressed(tensor)) {
    const auto [compressed, plain] = indices_of(tensor);
    return at::_sparse_compressed_tensor_unsafe(compressed.to(device), plain.to(device), tensor.values().to(device),
                                                tensor.sizes(), tensor.options().device(device));
  }
  return tensor.to(device);
}

at::Tensor to_host(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone() ? moved(tensor, at::kCPU) : tensor;
}

// Gives a tensor of the device what its copy on the host has become.
void write_back(const at::Tensor& target, const at::Tensor& host) {
  const c10::Device device = target.device();
  if (target.layout() == at::kSparse) {
    auto* impl = at::sparse::get_sparse_impl(target);
    impl->raw_resize_(host.sparse_dim(), host.dense_dim(), host.sizes());
    impl->set_indices_and_values_unsafe(host._indices().to(device), host._values().to(device));
    impl->set_coalesced(host.is_coalesced());
  } else if (is_compressed(target)) {
    const auto [compressed, plain] = indices_of(host);
    at::sparse_csr::get_sparse_csr_impl(target)->set_member_tensors(compressed.to(device), plain.to(device),
                                                                    host.values().to(device), host.sizes());
  } else {
    at::native::resize_output(target, host.sizes());
    target.copy_(host);
  }
}

at::Tensor& copy_between_sparse(at::Tensor& self, const at::Tensor& source, bool /*non_blocking*/) {
  if (self.is_same(source)) return self;
  write_back(self, source.layout() == self.layout() ? source : source.to(self.layout()));
  return self;
}

}  // namespace

void run_structured_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  note_fallback(op, "sparse and nested tensors have no such kernel of their own here");
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // on the device, on the host
  std::optional<c10::Device> device;
  const auto host_of = [&](const at::Tensor& tensor, bool write) {
    if (tensor.defined() && tensor.is_privateuseone()) device = tensor.device();
    const at::Tensor host = to_host(tensor);
    // Some kernels keep what the backward pass needs only where there will be one.
    if (host.defined() && !host.is_same(tensor) && tensor.requires_grad()) host.set_requires_grad(true);
    if (write) written.emplace_back(tensor, host);
    return host;
  };
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = (*stack)[stack->size() - count + i];
    const auto* alias = schema.arguments()[i].alias_info();
    const bool write = alias != nullptr && alias->isWrite();
    if (value.isTensor()) {
      value = host_of(value.toTensor(), write);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(host_of(tensor, write));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(host_of(*tensor, write)) : tensor);
      }
      value = list;
    } else if (value.isDevice()) {
      device = value.toDevice();
      value = c10::Device(at::kCPU);
    }
  }
  op.callBoxed(stack);
  for (const auto& [target, host] : written) write_back(target, host);
  const auto result_of = [&](const at::Tensor& result) {
    for (const auto& [target, host] : written) {
      if (result.is_same(host)) return target;
    }
    return device ? moved(result, *device) : result;
  };
  const size_t returns = schema.returns().size();
  for (size_t i = 0; i < returns; ++i) {
    c10::IValue& value = (*stack)[stack->size() - returns + i];
    if (value.isTensor()) {
      value = result_of(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(result_of(tensor));
      value = list;
    }
  }
}

// What the CPU has a kernel for and PyTorch's default kernels, made for strided tensors, would get wrong.
void register_sparse_kernels() {
  static torch::Library coo(torch::Library::IMPL, "aten", DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  static torch::Library compressed(torch::Library::IMPL, "aten", DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) != 0 || !op || !op->hasSchema()) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    const auto fill = [&](torch::Library& library, DispatchKey cpu, DispatchKey ours) {
      if (!op->hasKernelForDispatchKey(cpu) || op->hasKernelForDispatchKey(ours)) return;
      library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_structured_on_cpu>());
    };
    fill(coo, DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1);
    fill(compressed, DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1);
  }
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_symint));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("clone", TORCH_FN(at::native::clone_sparse));
  m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(copy_between_sparse));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_compressed_symint));
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("clone", TORCH_FN(at::native::clone_sparse_compressed));
  m.impl("copy_", TORCH_FN(copy_between_sparse));
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_structured_on_cpu>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_structured_on_cpu>());
}

}  // namespace torch_tpu
