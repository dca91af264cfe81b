// Which implementation of scaled_dot_product_attention a call gets: the fused op, or PyTorch's composition of others.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace torch_tpu {
namespace {

// What the lowering of _scaled_dot_product_fused_attention_overrideable takes. Double stays with the composition,
// because the fused op keeps its logarithms in float.
bool fused_takes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const std::optional<at::Tensor>& mask, bool enable_gqa) {
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return false;
  if (query.is_nested() || key.is_nested() || value.is_nested()) return false;
  const c10::ScalarType dtype = query.scalar_type();
  if (dtype != c10::kFloat && dtype != c10::kBFloat16 && dtype != c10::kHalf) return false;
  if (key.scalar_type() != dtype || value.scalar_type() != dtype) return false;
  const c10::SymIntArrayRef q = query.sym_sizes(), k = key.sym_sizes(), v = value.sym_sizes();
  if (query.sym_numel() == 0 || key.sym_numel() == 0 || value.sym_numel() == 0) return false;
  if (q[0] != k[0] || q[0] != v[0] || q[3] != k[3] || k[2] != v[2] || k[1] != v[1]) return false;
  if (q[1] != k[1] && !(enable_gqa && q[1] % k[1] == 0)) return false;
  return !mask.has_value() || !mask->defined() || mask->dim() <= 4;
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double /*dropout_p*/, bool /*is_causal*/,
               std::optional<double> /*scale*/, bool enable_gqa) {
  const at::Context& context = at::globalContext();
  const bool fused =
      context.userEnabledOverrideableSDP() || context.userEnabledFlashSDP() || context.userEnabledMemEfficientSDP();
  at::SDPBackend backend = at::SDPBackend::math;
  if (fused && fused_takes(query, key, value, mask, enable_gqa)) {
    backend = at::SDPBackend::overrideable;
  } else {
    TORCH_CHECK(context.userEnabledMathSDP(),
                "scaled_dot_product_attention: the fused implementation on tpu does not "
                "take these inputs, and the math implementation is disabled");
  }
  return static_cast<int64_t>(backend);
}

// nn.TransformerEncoder turns padded batches into nested tensors if this says so; here they would be slower.
bool never_nested(const at::Tensor& /*padded*/, const at::Tensor& /*mask*/) { return false; }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &choose);
  m.impl("_nested_tensor_from_mask_left_aligned", &never_nested);
}

}  // namespace torch_tpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_tpu::choose)
}  // namespace at::native
