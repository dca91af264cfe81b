#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <mutex>

#include "call.h"

namespace torch_tpu::pjrt {

namespace {

// The oldest API this layer was run against.
constexpr int kOldestMinor = 81;

// Plugins read their log level when they are loaded. Unless the user chose one, only fatal lines go to stderr: errors
// arrive as exceptions.
class QuietLoad {
 public:
  QuietLoad() { setenv(kVariable, "3", 0); }
  ~QuietLoad() {
    if (!was_set_) unsetenv(kVariable);
  }

 private:
  static constexpr const char* kVariable = "TF_CPP_MIN_LOG_LEVEL";
  const bool was_set_ = getenv(kVariable) != nullptr;
};

const PJRT_Api* open(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) throw Error(PJRT_Error_Code_NOT_FOUND, "no PJRT plugin at " + path);
  const QuietLoad quiet;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(PJRT_Error_Code_INVALID_ARGUMENT, "cannot load the PJRT plugin " + path + ": " + dlerror());
  }
  using GetApi = const PJRT_Api* (*)();
  const auto get_api = reinterpret_cast<GetApi>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    throw Error(PJRT_Error_Code_INVALID_ARGUMENT, path + " is not a PJRT plugin: it has no function GetPjrtApi");
  }
  const PJRT_Api* api = get_api();
  if (api == nullptr) throw Error(PJRT_Error_Code_INTERNAL, "GetPjrtApi of " + path + " returned nothing");
  const int major = api->pjrt_api_version.major_version;
  const int minor = api->pjrt_api_version.minor_version;
  if (major != PJRT_API_MAJOR || minor < kOldestMinor) {
    throw Error(PJRT_Error_Code_FAILED_PRECONDITION,
                "the PJRT plugin " + path + " has API version " + std::to_string(major) + "." + std::to_string(minor) +
                    "; this package works with " + std::to_string(PJRT_API_MAJOR) + "." + std::to_string(kOldestMinor) +
                    " and later minor versions");
  }
  return api;
}

}  // namespace

const Plugin& Plugin::load(const std::string& path) {
  static auto& mutex = *new std::mutex;
  static auto& plugins = *new std::map<std::string, std::unique_ptr<Plugin>>;
  const std::unique_ptr<char, decltype(&free)> resolved(realpath(path.c_str(), nullptr), free);
  const std::string key = resolved ? resolved.get() : path;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Plugin>& plugin = plugins[key];
  if (!plugin) plugin.reset(new Plugin(key, open(key)));
  return *plugin;
}

Plugin::Plugin(std::string path, const PJRT_Api* api) : path_(std::move(path)), api_(api) {
  PJRT_ARGS(PJRT_Plugin_Initialize, initialize);
  PJRT_CALL(api_, PJRT_Plugin_Initialize, initialize);
  PJRT_ARGS(PJRT_Plugin_Attributes, attributes);
  PJRT_CALL(api_, PJRT_Plugin_Attributes, attributes);
  attributes_ = to_attributes(attributes.attributes, attributes.num_attributes);
}

std::pair<int, int> Plugin::api_version() const {
  return {api_->pjrt_api_version.major_version, api_->pjrt_api_version.minor_version};
}

std::vector<int> Plugin::extensions() const {
  std::vector<int> types;
  for (const auto* extension = api_->extension_start; extension != nullptr; extension = extension->next) {
    types.push_back(extension->type);
  }
  return types;
}

const PJRT_Extension_Base* Plugin::extension(PJRT_Extension_Type type) const {
  for (const auto* extension = api_->extension_start; extension != nullptr; extension = extension->next) {
    if (extension->type == type) return extension;
  }
  return nullptr;
}

}  // namespace torch_tpu::pjrt
