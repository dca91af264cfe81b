#include "call.h"

namespace torch_tpu::pjrt {

namespace {

struct TypeInfo {
  const char* name;
  size_t bytes;
};

TypeInfo type_info(PJRT_Buffer_Type type) {
  switch (type) {
    case PJRT_Buffer_Type_PRED:
      return {"i1", 1};
    case PJRT_Buffer_Type_S2:
      return {"i2", 1};
    case PJRT_Buffer_Type_S4:
      return {"i4", 1};
    case PJRT_Buffer_Type_S8:
      return {"i8", 1};
    case PJRT_Buffer_Type_S16:
      return {"i16", 2};
    case PJRT_Buffer_Type_S32:
      return {"i32", 4};
    case PJRT_Buffer_Type_S64:
      return {"i64", 8};
    case PJRT_Buffer_Type_U2:
      return {"ui2", 1};
    case PJRT_Buffer_Type_U4:
      return {"ui4", 1};
    case PJRT_Buffer_Type_U8:
      return {"ui8", 1};
    case PJRT_Buffer_Type_U16:
      return {"ui16", 2};
    case PJRT_Buffer_Type_U32:
      return {"ui32", 4};
    case PJRT_Buffer_Type_U64:
      return {"ui64", 8};
    case PJRT_Buffer_Type_F16:
      return {"f16", 2};
    case PJRT_Buffer_Type_F32:
      return {"f32", 4};
    case PJRT_Buffer_Type_F64:
      return {"f64", 8};
    case PJRT_Buffer_Type_BF16:
      return {"bf16", 2};
    case PJRT_Buffer_Type_C64:
      return {"complex<f32>", 8};
    case PJRT_Buffer_Type_C128:
      return {"complex<f64>", 16};
    case PJRT_Buffer_Type_F8E5M2:
      return {"f8E5M2", 1};
    case PJRT_Buffer_Type_F8E4M3FN:
      return {"f8E4M3FN", 1};
    case PJRT_Buffer_Type_F8E4M3B11FNUZ:
      return {"f8E4M3B11FNUZ", 1};
    case PJRT_Buffer_Type_F8E5M2FNUZ:
      return {"f8E5M2FNUZ", 1};
    case PJRT_Buffer_Type_F8E4M3FNUZ:
      return {"f8E4M3FNUZ", 1};
    case PJRT_Buffer_Type_F8E4M3:
      return {"f8E4M3", 1};
    case PJRT_Buffer_Type_F8E3M4:
      return {"f8E3M4", 1};
    case PJRT_Buffer_Type_F8E8M0FNU:
      return {"f8E8M0FNU", 1};
    case PJRT_Buffer_Type_F4E2M1FN:
      return {"f4E2M1FN", 1};
    default:
      throw Error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "PJRT element type " + std::to_string(static_cast<int>(type)) + " holds no array data");
  }
}

}  // namespace

size_t bytes_per_element(PJRT_Buffer_Type type) { return type_info(type).bytes; }

const char* type_name(PJRT_Buffer_Type type) { return type_info(type).name; }

size_t bytes_of(PJRT_Buffer_Type type, const Dims& dims) {
  size_t bytes = bytes_per_element(type);
  for (int64_t dim : dims) bytes *= static_cast<size_t>(dim);
  return bytes;
}

Attributes to_attributes(const PJRT_NamedValue* values, size_t count) {
  Attributes attributes;
  for (size_t i = 0; i < count; ++i) {
    const PJRT_NamedValue& value = values[i];
    Attribute& slot = attributes[to_string(value.name, value.name_size)];
    switch (value.type) {
      case PJRT_NamedValue_kString:
        slot = to_string(value.string_value, value.value_size);
        break;
      case PJRT_NamedValue_kInt64:
        slot = value.int64_value;
        break;
      case PJRT_NamedValue_kInt64List:
        slot = Dims(value.int64_array_value, value.int64_array_value + value.value_size);
        break;
      case PJRT_NamedValue_kFloat:
        slot = value.float_value;
        break;
      case PJRT_NamedValue_kBool:
        slot = value.bool_value;
        break;
    }
  }
  return attributes;
}

std::vector<PJRT_NamedValue> to_named_values(const Attributes& attributes) {
  std::vector<PJRT_NamedValue> values;
  values.reserve(attributes.size());
  for (const auto& [name, attribute] : attributes) {
    PJRT_NamedValue value{};
    value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    value.name = name.data();
    value.name_size = name.size();
    value.value_size = 1;
    if (const auto* text = std::get_if<std::string>(&attribute)) {
      value.type = PJRT_NamedValue_kString;
      value.string_value = text->data();
      value.value_size = text->size();
    } else if (const auto* list = std::get_if<Dims>(&attribute)) {
      value.type = PJRT_NamedValue_kInt64List;
      value.int64_array_value = list->data();
      value.value_size = list->size();
    } else if (const auto* integer = std::get_if<int64_t>(&attribute)) {
      value.type = PJRT_NamedValue_kInt64;
      value.int64_value = *integer;
    } else if (const auto* real = std::get_if<float>(&attribute)) {
      value.type = PJRT_NamedValue_kFloat;
      value.float_value = *real;
    } else {
      value.type = PJRT_NamedValue_kBool;
      value.bool_value = std::get<bool>(attribute);
    }
    values.push_back(value);
  }
  return values;
}

}  // namespace torch_tpu::pjrt
