#include <memory>

#include "call.h"

namespace torch_tpu::pjrt {

const char* code_name(PJRT_Error_Code code) {
  static const char* const names[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(names) ? names[index] : "UNKNOWN";
}

void throw_error(const PJRT_Api* api, PJRT_Error* error) {
  PJRT_ARGS(PJRT_Error_Message, message);
  message.error = error;
  api->PJRT_Error_Message(&message);
  std::string text = to_string(message.message, message.message_size);

  PJRT_ARGS(PJRT_Error_GetCode, code);
  code.error = error;
  code.code = PJRT_Error_Code_UNKNOWN;
  if (PJRT_Error* failed = api->PJRT_Error_GetCode(&code)) {
    PJRT_ARGS(PJRT_Error_Destroy, destroy);
    destroy.error = failed;
    api->PJRT_Error_Destroy(&destroy);
  }

  PJRT_ARGS(PJRT_Error_Destroy, destroy);
  destroy.error = error;
  api->PJRT_Error_Destroy(&destroy);
  throw Error(code.code, text);
}

void throw_missing(const PJRT_Api* api, const char* function) {
  throw Error(PJRT_Error_Code_UNIMPLEMENTED,
              std::string("the PJRT plugin does not offer ") + function + "; its API version is " +
                  std::to_string(api->pjrt_api_version.major_version) + "." +
                  std::to_string(api->pjrt_api_version.minor_version) + ", install a newer plugin");
}

}  // namespace torch_tpu::pjrt
