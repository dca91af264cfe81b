// PyTorch's dtypes as PJRT's.
#pragma once

#include <c10/core/ScalarType.h>
#include <pjrt_c_api.h>

namespace torch_tpu {

// Throws c10::Error for a dtype that XLA does not have.
PJRT_Buffer_Type buffer_type(c10::ScalarType dtype);

}  // namespace torch_tpu
