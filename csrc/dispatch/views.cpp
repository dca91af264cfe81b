// Views, which are metadata only, and the ops that change what a tensor is a view of.
#include <ATen/ATen.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_unsafe_view_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/as_strided_scatter_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/unsafe_split_native.h>
#include <ATen/ops/unsafe_split_with_sizes_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "../device/allocator.h"
#include "../trace/dtype.h"
#include "tensor.h"

namespace torch_tpu {
namespace {

// Grows the storage where sizes and strides reach beyond it, as at::native::resize_impl_cpu_ does.
void fit_storage(at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const size_t needed =
      at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->itemsize(), impl->storage_offset());
  if (impl->numel() > 0 && needed > tensor.storage().nbytes()) {
    resize_storage(tensor.storage().unsafeGetStorageImpl(), needed);
  }
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  at::Tensor tensor = self;
  if (tensor.sizes() != size) tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format.has_value()) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  fit_storage(tensor);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (stride.data() != nullptr) {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  } else {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  }
  fit_storage(self);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const int64_t count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  const at::Tensor empty = empty_tensor({0}, {1}, self.scalar_type(), self.device().index());
  return set_storage(self, empty.storage(), 0, {0}, {});
}

at::Tensor view_as_complex(const at::Tensor& self) {
  if (self.scalar_type() == c10::ScalarType::Half) buffer_type(c10::ScalarType::ComplexHalf);  // refuses it
  return at::native::view_as_complex(self);
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("is_set_to", TORCH_FN(is_set_to));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  // No views to autograd, but writes through them count: kron's out= is one.
  m.impl("_unsafe_view", TORCH_FN(at::native::_unsafe_view));
  m.impl("unsafe_split.Tensor", TORCH_FN(at::native::unsafe_split));
  m.impl("unsafe_split_with_sizes", TORCH_FN(at::native::unsafe_split_with_sizes));
  // Of the storage, not of the elements that the input shows.
  m.impl("as_strided_scatter", TORCH_FN(at::native::as_strided_scatter_symint));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(set_source_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_nothing));
}

}  // namespace torch_tpu
