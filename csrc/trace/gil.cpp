#include "gil.h"

#include <torch/csrc/Exceptions.h>

namespace torch_tpu {

void raise_signals() {
  pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error error;
  error.persist();
  throw error;
}

}  // namespace torch_tpu
