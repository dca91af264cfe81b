// Copies: between host and device, and between tensors of one device.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/copy_native.h>
#include <torch/library.h>

#include "../device/runtime.h"
#include "../trace/dtype.h"
#include "../trace/gil.h"
#include "../trace/queue.h"
#include "../trace/recorder.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

// The value of a contiguous host tensor. The data is copied during the call.
ValuePtr upload(const at::Tensor& host, c10::DeviceIndex device) {
  static Counter& bytes = counter("host_to_device_bytes");
  static Counter& copies = counter("host_to_device_copies");
  auto value = c10::make_intrusive<Value>(host.scalar_type(), host.sizes(), device);
  {
    WithoutGil released;
    value->buffer =
        client().buffer_from_host(host.const_data_ptr(), buffer_type(host.scalar_type()), host.sizes().data(),
                                  host.sizes().size(), torch_tpu::device(device).get());
  }
  value->state.store(Value::State::kReady, std::memory_order_release);
  count(copies);
  count(bytes, static_cast<int64_t>(value->nbytes()));
  return value;
}

// Waits for the tensor's value and copies it into a new contiguous host tensor.
at::Tensor download(const at::Tensor& tensor, bool pinned) {
  static Counter& bytes = counter("device_to_host_bytes");
  static Counter& copies = counter("device_to_host_copies");
  at::Tensor host = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(pinned));
  if (tensor.numel() == 0) return host;
  Recorder& recorder = Recorder::get();
  Holder held;
  {
    auto lock = recorder.lock();
    held = Holder(recorder.read(tensor.unsafeGetTensorImpl()));
    if (held->state.load() == Value::State::kPending) recorder.flush(tensor.device().index(), FlushReason::kHostRead);
  }
  wait(*held.get());
  {
    WithoutGil released;
    read_to_host(*held.get(), host.mutable_data_ptr());
  }
  count(copies);
  count(bytes, static_cast<int64_t>(held->nbytes()));
  return host;
}

void copy_within(const at::Tensor& source, const at::Tensor& target) {
  Recorder& recorder = Recorder::get();
  auto lock = recorder.lock();
  ValuePtr value = recorder.convert(recorder.read(source.unsafeGetTensorImpl()), target.scalar_type());
  recorder.write(target.unsafeGetTensorImpl(), std::move(value));
  recorder.boundary(target.device().index());
}

// The tensor as its elements lie in memory, without the lazy conjugation and negation of views.
at::Tensor resolved(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg(); }

at::Tensor copy_from(const at::Tensor& original, const at::Tensor& target, bool /*non_blocking*/) {
  const auto shape = at::infer_size_dimvector(target.sizes(), original.sizes());
  TORCH_CHECK(target.sizes() == shape, "output with shape ", target.sizes(), " doesn't match the broadcast shape ",
              at::IntArrayRef(shape));
  if (target.numel() == 0) return target;
  if (target.is_privateuseone()) {
    at::assert_no_internal_overlap(target);
    assert_no_partial_overlap(target.unsafeGetTensorImpl(), original.unsafeGetTensorImpl());
  }
  at::Tensor source = resolved(original);
  if (!target.is_privateuseone()) {  // to the host
    target.copy_(download(source, false).expand(target.sizes()));
    return target;
  }
  if (target.is_conj()) source = resolved(source.conj());
  if (target.is_neg()) source = source.neg();
  if (source.is_privateuseone() && source.device() == target.device()) {
    copy_within(source.expand(target.sizes()), target);
    return target;
  }
  const at::Tensor host = source.is_privateuseone() ? download(source, false) : source;
  const at::Tensor same = host.to(at::kCPU, target.scalar_type()).contiguous();
  const at::Tensor uploaded = tensor_of(upload(same, target.device().index()),
                                        {same.scalar_type(), Dims(same.sizes().begin(), same.sizes().end()),
                                         Dims(same.strides().begin(), same.strides().end())},
                                        target.device().index(), "aten::copy_");
  copy_within(uploaded.expand(target.sizes()), target);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  at::native::resize_output(target, source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return download(self, false).item(); }

// A value is immutable, so a clone shares it until one side writes.
at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  if (C10_UNLIKELY(self.is_conj())) return at::conj_physical(at::_conj(self)).clone(format);
  if (C10_UNLIKELY(self.is_neg())) return at::neg(at::_neg_view(self)).clone(format);
  at::Tensor result = at::empty_like(self, self.options(), format.value_or(at::MemoryFormat::Preserve));
  if (self.numel() != 0) copy_within(self, result);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("clone", TORCH_FN(clone));
  // PyTorch's own, which end in _copy_from: between devices nothing can be recorded.
  m.impl("_to_copy", TORCH_FN(at::native::_to_copy));
  m.impl("copy_", TORCH_FN(at::native::copy_));
}

// PyTorch's fallbacks for lazily conjugated and negated tensors would hand a copy of the target to _copy_from, whose
// schema does not say that it writes.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace torch_tpu
