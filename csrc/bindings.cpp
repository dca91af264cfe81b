#include "pjrt/bind.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The native core: PJRT, the device, recording.";
  torch_tpu::bind_pjrt(m);
}
