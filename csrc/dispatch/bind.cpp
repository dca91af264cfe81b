#include "bind.h"

#include "compiled.h"
#include "op_entry.h"
#include "registration.h"

namespace py = pybind11;

namespace torch_tpu {

void bind_dispatch(py::module_& m) {
  py::enum_<FallbackPolicy>(m, "FallbackPolicy")
      .value("warn", FallbackPolicy::kWarn)
      .value("silent", FallbackPolicy::kSilent)
      .value("error", FallbackPolicy::kError);
  m.def("_set_fallback_policy", &set_fallback_policy);
  bind_compiled(m);
  register_record_kernels();
  register_sparse_kernels();
  register_nested_kernels();
}

}  // namespace torch_tpu
