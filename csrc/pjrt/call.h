// How this folder calls a plugin: struct sizes filled in, the api table's length checked, errors thrown.
#pragma once

#include "pjrt.h"

namespace torch_tpu::pjrt {

[[noreturn]] void throw_error(const PJRT_Api* api, PJRT_Error* error);  // takes ownership of `error`
[[noreturn]] void throw_missing(const PJRT_Api* api, const char* function);

inline void check(const PJRT_Api* api, PJRT_Error* error) {
  if (__builtin_expect(error != nullptr, 0)) throw_error(api, error);
}

// The api table of an older plugin ends earlier than this header's.
template <class Fn>
bool has(const PJRT_Api* api, Fn* PJRT_Api::* member) {
  const auto offset = reinterpret_cast<const char*>(&(api->*member)) - reinterpret_cast<const char*>(api);
  return offset + sizeof(Fn*) <= api->struct_size && api->*member != nullptr;
}

template <class Fn>
Fn* function(const PJRT_Api* api, Fn* PJRT_Api::* member, const char* name) {
  if (__builtin_expect(!has(api, member), 0)) throw_missing(api, name);
  return api->*member;
}

inline std::string to_string(const char* data, size_t size) { return size ? std::string(data, size) : std::string(); }

// A CompileOptionsProto with num_replicas = num_partitions = 1: plugins abort the process on an empty one.
inline constexpr std::string_view kDefaultCompileOptions("\x1a\x04\x20\x01\x28\x01", 6);

Attributes to_attributes(const PJRT_NamedValue* values, size_t count);
// Points into `attributes`, which must outlive it.
std::vector<PJRT_NamedValue> to_named_values(const Attributes& attributes);
DeviceInfo device_info(const PJRT_Api* api, PJRT_DeviceDescription* description);

}  // namespace torch_tpu::pjrt

// Declares `var`, the arguments of the C function `fn`, zeroed.
#define PJRT_ARGS(fn, var) \
  fn##_Args var{};         \
  var.struct_size = fn##_Args_STRUCT_SIZE

#define PJRT_CALL(api, fn, args) check(api, function(api, &PJRT_Api::fn, #fn)(&(args)))
