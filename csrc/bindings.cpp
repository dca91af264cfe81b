#include "device/bind.h"
#include "dispatch/bind.h"
#include "pjrt/bind.h"
#include "trace/bind.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The native core: PJRT, the device, recording.";
  torch_tpu::bind_pjrt(m);
  torch_tpu::bind_device(m);
  torch_tpu::bind_trace(m);
  torch_tpu::bind_dispatch(m);
}
