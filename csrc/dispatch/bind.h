#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu {
void bind_dispatch(pybind11::module_& m);
}  // namespace torch_tpu
