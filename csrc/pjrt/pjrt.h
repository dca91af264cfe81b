// A thin RAII layer over the PJRT C API: the only way this package talks to XLA.
//
// Every PJRT_Error becomes a torch_tpu::pjrt::Error with the plugin's own text. Handles are move-only and two words
// wide. Compile, deserialize and execute may be called from several threads at once. Plugins are never unloaded.
#pragma once

#include <pjrt_c_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace torch_tpu::pjrt {

class Error : public std::runtime_error {
 public:
  Error(PJRT_Error_Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  PJRT_Error_Code code() const { return code_; }

 private:
  PJRT_Error_Code code_;
};

// The absl name of an error code, such as "INVALID_ARGUMENT".
const char* code_name(PJRT_Error_Code code);

// A PJRT named value: plugin, device and topology attributes, and client or topology create options.
using Attribute = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;
using Attributes = std::map<std::string, Attribute>;

using Dims = std::vector<int64_t>;

// Element type and dimensions of one array.
struct Shape {
  PJRT_Buffer_Type type;
  Dims dims;
};

// Host sizes: a 2 or 4-bit element takes a byte there. Both throw on a type that holds no array data.
size_t bytes_per_element(PJRT_Buffer_Type type);
size_t bytes_of(PJRT_Buffer_Type type, const Dims& dims);  // dense host size
const char* type_name(PJRT_Buffer_Type type);              // the name StableHLO uses: "f32", "i64", "i1" ...

// Work in flight. await() and on_ready() may be called from any thread.
class Event {
 public:
  Event() = default;
  Event(const PJRT_Api* api, PJRT_Event* event) : api_(api), event_(event) {}
  Event(Event&& other) noexcept : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;
  ~Event() { reset(); }

  explicit operator bool() const { return event_ != nullptr; }
  PJRT_Event* get() const { return event_; }
  void reset();

  bool ready() const;  // true also when it ended in an error
  void await() const;  // blocks; throws the work's Error
  // Runs `callback` once, with nullptr or the error: inline when already ready, else on a thread of the plugin.
  // The Event may be destroyed before that.
  void on_ready(std::function<void(const Error*)> callback) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Event* event_ = nullptr;
};

// A device array. Must not outlive its Client.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const PJRT_Api* api, PJRT_Buffer* buffer) : api_(api), buffer_(buffer) {}
  Buffer(Buffer&& other) noexcept : api_(other.api_), buffer_(std::exchange(other.buffer_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  explicit operator bool() const { return buffer_ != nullptr; }
  PJRT_Buffer* get() const { return buffer_; }
  PJRT_Buffer* release() { return std::exchange(buffer_, nullptr); }
  void reset();  // destroys the handle and, with it, the memory

  PJRT_Buffer_Type type() const;
  Dims dims() const;
  size_t device_bytes() const;  // with the padding of the device's layout
  PJRT_Device* device() const;
  bool is_deleted() const;           // donated, or free_memory() was called
  void free_memory();                // frees the memory, keeps the handle
  uintptr_t unsafe_pointer() const;  // the device address; on CPU a host pointer
  Event ready_event() const;

  // Starts a copy of the whole array, dense and row-major, into dst (at least bytes_of(type, dims) bytes).
  Event to_host(void* dst, size_t bytes) const;
  Buffer copy_to(PJRT_Device* device) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Buffer* buffer_ = nullptr;
};

// A program in the form the compiler left it, for tools.
struct OptimizedProgram {
  std::string format;  // "hlo_with_config" from all known plugins
  std::string code;
};

class Client;

// A compiled program: loaded on a client's devices (Client::compile, Client::deserialize), or for analysis and
// serialization only (Topology::compile).
class Executable {
 public:
  Executable(const PJRT_Api* api, PJRT_Executable* executable, PJRT_LoadedExecutable* loaded,
             std::shared_ptr<Client> client);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  bool loaded() const { return loaded_ != nullptr; }
  const std::shared_ptr<Client>& client() const { return client_; }
  std::string name() const;
  size_t num_outputs() const { return num_outputs_; }
  std::vector<Shape> outputs() const;
  size_t num_replicas() const;
  size_t num_partitions() const;
  std::vector<PJRT_Device*> devices() const;  // empty when not loaded, or portable

  // The hot path: one device, no allocation here. `outs` has room for num_outputs() buffers, which the caller then
  // owns. With `complete`, *complete is an event the caller owns; without, nothing is created. `device` is for
  // portable executables only. Arguments that the program aliases or donates are donated, unless listed in keep.
  void execute(PJRT_Buffer* const* args, size_t nargs, PJRT_Buffer** outs, PJRT_Event** complete = nullptr,
               PJRT_Device* device = nullptr, const int64_t* keep = nullptr, size_t nkeep = 0) const;
  // All devices of a replicated or partitioned program at once; lists are indexed [device][position].
  void execute_many(PJRT_Buffer* const* const* args, size_t ndevices, size_t nargs, PJRT_Buffer** const* outs,
                    PJRT_Event** complete = nullptr) const;

  Attributes cost_analysis() const;                     // keys may be missing: see the plugin
  std::map<std::string, int64_t> memory_stats() const;  // argument_bytes, output_bytes, temp_bytes ...
  int64_t generated_code_bytes() const;
  OptimizedProgram optimized_program() const;
  std::string serialize() const;
  std::string fingerprint() const;

 private:
  const PJRT_Api* api_;
  PJRT_Executable* executable_;
  PJRT_LoadedExecutable* loaded_;
  std::shared_ptr<Client> client_;
  size_t num_outputs_;
};

// What is known of a device without, or before, using it.
struct DeviceInfo {
  int id = 0;
  int process_index = 0;
  std::string kind;
  std::string description;
  Attributes attributes;
};

class Device {
 public:
  Device(const PJRT_Api* api, PJRT_Device* device);
  PJRT_Device* get() const { return device_; }
  const DeviceInfo& info() const { return info_; }
  int local_hardware_id() const { return local_hardware_id_; }
  // The plugin's own allocator statistics (bytes_in_use, bytes_limit ...); empty where it has none, as on CPU.
  std::map<std::string, int64_t> memory_stats() const;

 private:
  const PJRT_Api* api_;
  PJRT_Device* device_;
  DeviceInfo info_;
  int local_hardware_id_ = -1;
};

class Plugin;

// A set of devices to compile for that need not be there.
class Topology {
 public:
  static std::shared_ptr<Topology> create(const Plugin& plugin, const std::string& name,
                                          const Attributes& options = {});
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  std::string platform_name() const;
  std::string platform_version() const;
  std::vector<DeviceInfo> devices() const;
  Attributes attributes() const;
  std::string serialize() const;  // for cache keys
  // `format` is "mlir" (StableHLO text, bytecode or portable artifact) or "hlo"; `options` is a CompileOptionsProto
  // (torch_tpu/compiler/options.py encodes one); empty stands for one replica and one partition.
  std::shared_ptr<Executable> compile(std::string_view program, std::string_view format,
                                      std::string_view options) const;

 private:
  Topology(const PJRT_Api* api, PJRT_TopologyDescription* topology) : api_(api), topology_(topology) {}
  const PJRT_Api* api_;
  PJRT_TopologyDescription* topology_;
};

// When the plugin may still read host memory given to Client::buffer_from_host.
enum class HostSemantics {
  kCopy = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,  // never after the call
  kUntilTransferred = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes,
  kZeroCopy = PJRT_HostBufferSemantics_kImmutableZeroCopy,       // while the buffer lives, if aligned (64 B)
  kMutableZeroCopy = PJRT_HostBufferSemantics_kMutableZeroCopy,  // and programs may write into it
};

class Client : public std::enable_shared_from_this<Client> {
 public:
  static std::shared_ptr<Client> create(const Plugin& plugin, const Attributes& options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const PJRT_Api* api() const { return api_; }
  const Plugin& plugin() const { return plugin_; }
  const std::string& platform_name() const { return platform_name_; }
  const std::string& platform_version() const { return platform_version_; }
  int process_index() const { return process_index_; }
  const std::vector<Device>& devices() const { return devices_; }  // the addressable ones, by local index
  size_t num_global_devices() const { return num_global_devices_; }
  const std::string& topology_fingerprint() const { return topology_; }  // for cache keys; stable between processes

  std::shared_ptr<Executable> compile(std::string_view program, std::string_view format, std::string_view options);
  std::shared_ptr<Executable> deserialize(std::string_view serialized, std::string_view options = {});

  // `done` runs once the plugin will not touch `data` any more (for kCopy there is no need of it).
  Buffer buffer_from_host(const void* data, PJRT_Buffer_Type type, const int64_t* dims, size_t ndims,
                          PJRT_Device* device, HostSemantics semantics = HostSemantics::kCopy,
                          std::function<void()> done = {}) const;
  // A buffer over memory the caller owns: no copy, whatever its alignment (CPU: programs want 64 B).
  Buffer view_of_device_memory(void* data, PJRT_Buffer_Type type, const int64_t* dims, size_t ndims,
                               PJRT_Device* device, std::function<void()> done = {}) const;
  Buffer uninitialized(PJRT_Buffer_Type type, const int64_t* dims, size_t ndims, PJRT_Device* device) const;

 private:
  Client(const Plugin& plugin, PJRT_Client* client);
  const Plugin& plugin_;
  const PJRT_Api* api_;
  PJRT_Client* client_;
  std::string platform_name_;
  std::string platform_version_;
  std::string topology_;
  int process_index_ = 0;
  size_t num_global_devices_ = 0;
  std::vector<Device> devices_;
};

// A loaded plugin; lives as long as the process. load() of the same file gives the same object.
class Plugin {
 public:
  static const Plugin& load(const std::string& path);
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const PJRT_Api* api() const { return api_; }
  const std::string& path() const { return path_; }
  std::pair<int, int> api_version() const;
  const Attributes& attributes() const { return attributes_; }  // xla_version, stablehlo_current_version ...
  std::vector<int> extensions() const;                          // PJRT_Extension_Type values
  // The extension's struct, to be cast by the caller; nullptr where the plugin has none.
  const PJRT_Extension_Base* extension(PJRT_Extension_Type type) const;

 private:
  Plugin(std::string path, const PJRT_Api* api);
  std::string path_;
  const PJRT_Api* api_;
  Attributes attributes_;
};

// The process's client, made at first use from the choice of torch_tpu.compiler.platform, and never destroyed: XLA's
// threads outlive static destructors. May be called from any thread, with or without the GIL.
const std::shared_ptr<Client>& default_client();
bool default_client_exists();

}  // namespace torch_tpu::pjrt
