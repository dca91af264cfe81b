#include "dtype.h"

#include <c10/util/Exception.h>

namespace torch_tpu {

PJRT_Buffer_Type buffer_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Bool:
      return PJRT_Buffer_Type_PRED;
    case c10::ScalarType::Char:
      return PJRT_Buffer_Type_S8;
    case c10::ScalarType::Short:
      return PJRT_Buffer_Type_S16;
    case c10::ScalarType::Int:
      return PJRT_Buffer_Type_S32;
    case c10::ScalarType::Long:
      return PJRT_Buffer_Type_S64;
    case c10::ScalarType::Byte:
      return PJRT_Buffer_Type_U8;
    case c10::ScalarType::UInt16:
      return PJRT_Buffer_Type_U16;
    case c10::ScalarType::UInt32:
      return PJRT_Buffer_Type_U32;
    case c10::ScalarType::UInt64:
      return PJRT_Buffer_Type_U64;
    case c10::ScalarType::Half:
      return PJRT_Buffer_Type_F16;
    case c10::ScalarType::BFloat16:
      return PJRT_Buffer_Type_BF16;
    case c10::ScalarType::Float:
      return PJRT_Buffer_Type_F32;
    case c10::ScalarType::Double:
      return PJRT_Buffer_Type_F64;
    case c10::ScalarType::ComplexFloat:
      return PJRT_Buffer_Type_C64;
    case c10::ScalarType::ComplexDouble:
      return PJRT_Buffer_Type_C128;
    case c10::ScalarType::Float8_e4m3fn:
      return PJRT_Buffer_Type_F8E4M3FN;
    case c10::ScalarType::Float8_e5m2:
      return PJRT_Buffer_Type_F8E5M2;
    case c10::ScalarType::Float8_e4m3fnuz:
      return PJRT_Buffer_Type_F8E4M3FNUZ;
    case c10::ScalarType::Float8_e5m2fnuz:
      return PJRT_Buffer_Type_F8E5M2FNUZ;
    default:
      TORCH_CHECK_TYPE(false, "tpu tensors cannot have dtype ", dtype);
  }
}

}  // namespace torch_tpu
