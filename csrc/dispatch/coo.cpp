// The common ops of COO tensors, made of reads, writes and sums at their indices. What else there is runs on the CPU.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "registration.h"

namespace torch_tpu {
namespace {

using Stack = torch::jit::Stack;

bool is_coo(const at::Tensor& tensor) { return tensor.layout() == at::kSparse; }

bool is_dense(const at::Tensor& tensor) { return tensor.layout() == at::kStrided && !tensor.is_nested(); }

// The indices along each sparse dim, as at::index and index_put_ take them.
c10::List<std::optional<at::Tensor>> places(const at::Tensor& indices) {
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& along : indices.unbind(0)) list.push_back(along);
  return list;
}

at::Tensor& add_at(at::Tensor& dense, const at::Tensor& coo, const at::Scalar& alpha) {
  at::Tensor values = coo._values();
  if (!alpha.equal(1)) values = values * alpha;
  return dense.index_put_(places(coo._indices()), values.to(dense.scalar_type()), /*accumulate=*/true);
}

bool can_add(const at::Tensor& dense, const at::Tensor& coo) {
  return is_dense(dense) && is_coo(coo) && coo.sparse_dim() > 0 && dense.sizes() == coo.sizes() &&
         dense.scalar_type() == coo.scalar_type() && coo.scalar_type() != at::kBool;
}

// Each index once, in order, with the sum of its values.
std::optional<at::Tensor> coalesced(Stack& stack) {
  const at::Tensor self = torch::jit::peek(stack, 0, 1).toTensor();
  if (self.sparse_dim() == 0 || self.scalar_type() == at::kBool) return std::nullopt;
  const auto sizes = self.sizes().slice(0, self.sparse_dim());
  at::Tensor flat = self._indices()[0];
  for (size_t d = 1; d < sizes.size(); ++d) flat = flat * sizes[d] + self._indices()[d];
  auto [place, inverse, counts] = at::_unique2(flat, /*sorted=*/true, /*return_inverse=*/true);
  std::vector<int64_t> shape = self._values().sizes().vec();
  shape[0] = place.size(0);
  const at::Tensor values = at::zeros(shape, self._values().options()).index_add(0, inverse, self._values());
  std::vector<at::Tensor> along(sizes.size());
  for (size_t d = sizes.size(); d-- > 0; place = place.floor_divide(sizes[d])) along[d] = place.remainder(sizes[d]);
  return at::_sparse_coo_tensor_unsafe(at::stack(along), values, self.sizes(), self.options(), /*is_coalesced=*/true);
}

std::optional<at::Tensor> to_dense(Stack& stack) {
  const at::Tensor self = torch::jit::peek(stack, 0, 3).toTensor();
  const c10::IValue& dtype = torch::jit::peek(stack, 1, 3);
  at::Tensor dense = at::zeros(self.sizes(), self._values().options());
  if (!can_add(dense, self) || !dtype.isNone()) return std::nullopt;
  return add_at(dense, self, 1);
}

std::optional<at::Tensor> to_coo(const at::Tensor& self, int64_t sparse_dims) {
  if (!is_dense(self) || sparse_dims <= 0 || sparse_dims > self.dim()) return std::nullopt;
  at::Tensor present = self != 0;
  while (present.dim() > sparse_dims) present = present.any(-1);
  const at::Tensor indices = present.nonzero().t().contiguous();
  return at::_sparse_coo_tensor_unsafe(indices, self.index(places(indices)), self.sizes(),
                                       self.options().layout(at::kSparse), /*is_coalesced=*/true);
}

std::optional<at::Tensor> to_sparse(Stack& stack) {
  const at::Tensor self = torch::jit::peek(stack, 0, 4).toTensor();
  const c10::IValue& layout = torch::jit::peek(stack, 1, 4);
  const c10::IValue& dense_dims = torch::jit::peek(stack, 3, 4);
  if (!layout.isNone() && layout.toLayout() != at::kSparse) return std::nullopt;
  return to_coo(self, self.dim() - (dense_dims.isNone() ? 0 : dense_dims.toInt()));
}

std::optional<at::Tensor> to_sparse_dims(Stack& stack) {
  return to_coo(torch::jit::peek(stack, 0, 2).toTensor(), torch::jit::peek(stack, 1, 2).toInt());
}

std::optional<at::Tensor> masked(Stack& stack) {
  const at::Tensor self = torch::jit::peek(stack, 0, 2).toTensor(), mask = torch::jit::peek(stack, 1, 2).toTensor();
  if (!is_dense(self) || !is_coo(mask) || !mask.is_coalesced() || mask.sparse_dim() == 0) return std::nullopt;
  if (self.sizes() != mask.sizes()) return std::nullopt;
  return at::_sparse_coo_tensor_unsafe(mask._indices(), self.index(places(mask._indices())), self.sizes(),
                                       self.options().layout(at::kSparse), /*is_coalesced=*/true);
}

std::optional<at::Tensor> added(Stack& stack) {
  const at::Tensor self = torch::jit::peek(stack, 0, 3).toTensor(), other = torch::jit::peek(stack, 1, 3).toTensor();
  if (!can_add(self, other)) return std::nullopt;
  at::Tensor result = self.clone();
  return add_at(result, other, torch::jit::peek(stack, 2, 3).toScalar());
}

std::optional<at::Tensor> added_in_place(Stack& stack) {
  at::Tensor self = torch::jit::peek(stack, 0, 3).toTensor();
  const at::Tensor other = torch::jit::peek(stack, 1, 3).toTensor();
  if (!can_add(self, other)) return std::nullopt;
  return add_at(self, other, torch::jit::peek(stack, 2, 3).toScalar());
}

// Calls `made` of the arguments, or the CPU where it gives nothing.
template <std::optional<at::Tensor> (*made)(Stack&)>
void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  std::optional<at::Tensor> result = made(*stack);
  if (!result) {
    run_structured_on_cpu(op, keys, stack);
    return;
  }
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(*std::move(result));
}

template <std::optional<at::Tensor> (*made)(Stack&)>
torch::CppFunction kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&run<made>>();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_coalesce", kernel<&coalesced>());
  m.impl("_to_dense", kernel<&to_dense>());
  m.impl("sparse_mask", kernel<&masked>());
  m.impl("add.Tensor", kernel<&added>());
  m.impl("add_.Tensor", kernel<&added_in_place>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_to_sparse", kernel<&to_sparse>());
  m.impl("_to_sparse.sparse_dim", kernel<&to_sparse_dims>());
}

}  // namespace torch_tpu
