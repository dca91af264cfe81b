// The arguments of a call, one by one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "op_entry.h"

namespace torch_tpu {

// The argument with its tpu tensors, its device and its generator replaced for a run elsewhere.
template <typename Convert>
c10::IValue elsewhere(const c10::IValue& value, const Parameter& parameter, c10::DeviceType device, Convert convert) {
  if (parameter.kind == ParameterKind::kDevice && !value.isNone()) return c10::Device(device);
  if (parameter.kind == ParameterKind::kGenerator) return c10::IValue();
  if (parameter.kind == ParameterKind::kTensor && value.isTensor()) return convert(value.toTensor());
  if (parameter.kind == ParameterKind::kTensorList && value.isList()) {
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(convert(t));
      return list;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(item.isNone() ? std::nullopt : std::optional<at::Tensor>(convert(item.toTensor())));
    }
    return list;
  }
  return value;
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) visit(item.isNone() ? at::Tensor() : item.toTensor());
  } else if (value.isNone()) {
    visit(at::Tensor());
  }
}

}  // namespace torch_tpu
