#include <mutex>

#include "call.h"

namespace torch_tpu::pjrt {

DeviceInfo device_info(const PJRT_Api* api, PJRT_DeviceDescription* description) {
  DeviceInfo info;
  PJRT_ARGS(PJRT_DeviceDescription_Id, id);
  id.device_description = description;
  PJRT_CALL(api, PJRT_DeviceDescription_Id, id);
  info.id = id.id;

  PJRT_ARGS(PJRT_DeviceDescription_ProcessIndex, process);
  process.device_description = description;
  PJRT_CALL(api, PJRT_DeviceDescription_ProcessIndex, process);
  info.process_index = process.process_index;

  PJRT_ARGS(PJRT_DeviceDescription_Kind, kind);
  kind.device_description = description;
  PJRT_CALL(api, PJRT_DeviceDescription_Kind, kind);
  info.kind = to_string(kind.device_kind, kind.device_kind_size);

  PJRT_ARGS(PJRT_DeviceDescription_ToString, text);
  text.device_description = description;
  PJRT_CALL(api, PJRT_DeviceDescription_ToString, text);
  info.description = to_string(text.to_string, text.to_string_size);

  PJRT_ARGS(PJRT_DeviceDescription_Attributes, attributes);
  attributes.device_description = description;
  PJRT_CALL(api, PJRT_DeviceDescription_Attributes, attributes);
  info.attributes = to_attributes(attributes.attributes, attributes.num_attributes);
  return info;
}

Device::Device(const PJRT_Api* api, PJRT_Device* device) : api_(api), device_(device) {
  PJRT_ARGS(PJRT_Device_GetDescription, description);
  description.device = device;
  PJRT_CALL(api, PJRT_Device_GetDescription, description);
  info_ = device_info(api, description.device_description);

  PJRT_ARGS(PJRT_Device_LocalHardwareId, hardware);
  hardware.device = device;
  PJRT_CALL(api, PJRT_Device_LocalHardwareId, hardware);
  local_hardware_id_ = hardware.local_hardware_id;
}

std::map<std::string, int64_t> Device::memory_stats() const {
  PJRT_ARGS(PJRT_Device_MemoryStats, args);
  args.device = device_;
  try {
    PJRT_CALL(api_, PJRT_Device_MemoryStats, args);
  } catch (const Error& error) {
    if (error.code() == PJRT_Error_Code_UNIMPLEMENTED) return {};
    throw;
  }
  std::map<std::string, int64_t> stats{{"bytes_in_use", args.bytes_in_use}};
  const auto add = [&stats](const char* name, bool is_set, int64_t value) {
    if (is_set) stats[name] = value;
  };
  add("peak_bytes_in_use", args.peak_bytes_in_use_is_set, args.peak_bytes_in_use);
  add("num_allocs", args.num_allocs_is_set, args.num_allocs);
  add("largest_alloc_size", args.largest_alloc_size_is_set, args.largest_alloc_size);
  add("bytes_limit", args.bytes_limit_is_set, args.bytes_limit);
  add("bytes_reserved", args.bytes_reserved_is_set, args.bytes_reserved);
  add("peak_bytes_reserved", args.peak_bytes_reserved_is_set, args.peak_bytes_reserved);
  add("bytes_reservable_limit", args.bytes_reservable_limit_is_set, args.bytes_reservable_limit);
  add("largest_free_block_bytes", args.largest_free_block_bytes_is_set, args.largest_free_block_bytes);
  add("pool_bytes", args.pool_bytes_is_set, args.pool_bytes);
  add("peak_pool_bytes", args.peak_pool_bytes_is_set, args.peak_pool_bytes);
  return stats;
}

std::shared_ptr<Client> Client::create(const Plugin& plugin, const Attributes& options) {
  const std::vector<PJRT_NamedValue> values = to_named_values(options);
  PJRT_ARGS(PJRT_Client_Create, args);
  args.create_options = values.data();
  args.num_options = values.size();
  PJRT_CALL(plugin.api(), PJRT_Client_Create, args);
  return std::shared_ptr<Client>(new Client(plugin, args.client));
}

namespace {

// Two clients may share compiled programs when these bytes are equal.
std::string topology_bytes(const PJRT_Api* api, PJRT_Client* client, const std::vector<Device>& devices) {
  try {
    PJRT_ARGS(PJRT_Client_TopologyDescription, args);
    args.client = client;
    PJRT_CALL(api, PJRT_Client_TopologyDescription, args);
    PJRT_ARGS(PJRT_TopologyDescription_Serialize, serialize);
    serialize.topology = args.topology;
    PJRT_CALL(api, PJRT_TopologyDescription_Serialize, serialize);
    std::string bytes = to_string(serialize.serialized_bytes, serialize.serialized_bytes_size);
    serialize.serialized_topology_deleter(serialize.serialized_topology);
    return bytes;
  } catch (const Error&) {
    std::string text;
    for (const Device& device : devices) text += device.info().kind + "|" + device.info().description + ";";
    return text;
  }
}

}  // namespace

Client::Client(const Plugin& plugin, PJRT_Client* client) : plugin_(plugin), api_(plugin.api()), client_(client) {
  PJRT_ARGS(PJRT_Client_PlatformName, name);
  name.client = client;
  PJRT_CALL(api_, PJRT_Client_PlatformName, name);
  platform_name_ = to_string(name.platform_name, name.platform_name_size);

  PJRT_ARGS(PJRT_Client_PlatformVersion, version);
  version.client = client;
  PJRT_CALL(api_, PJRT_Client_PlatformVersion, version);
  platform_version_ = to_string(version.platform_version, version.platform_version_size);

  PJRT_ARGS(PJRT_Client_ProcessIndex, process);
  process.client = client;
  PJRT_CALL(api_, PJRT_Client_ProcessIndex, process);
  process_index_ = process.process_index;

  PJRT_ARGS(PJRT_Client_Devices, all);
  all.client = client;
  PJRT_CALL(api_, PJRT_Client_Devices, all);
  num_global_devices_ = all.num_devices;

  PJRT_ARGS(PJRT_Client_AddressableDevices, local);
  local.client = client;
  PJRT_CALL(api_, PJRT_Client_AddressableDevices, local);
  devices_.reserve(local.num_addressable_devices);
  for (size_t i = 0; i < local.num_addressable_devices; ++i) devices_.emplace_back(api_, local.addressable_devices[i]);
  topology_ = topology_bytes(api_, client, devices_);
}

Client::~Client() {
  PJRT_ARGS(PJRT_Client_Destroy, args);
  args.client = client_;
  api_->PJRT_Client_Destroy(&args);
}

std::shared_ptr<Executable> Client::compile(std::string_view program, std::string_view format,
                                            std::string_view options) {
  PJRT_Program source{};
  source.struct_size = PJRT_Program_STRUCT_SIZE;
  source.code = const_cast<char*>(program.data());
  source.code_size = program.size();
  source.format = format.data();
  source.format_size = format.size();

  PJRT_ARGS(PJRT_Client_Compile, args);
  args.client = client_;
  args.program = &source;
  if (options.empty()) options = kDefaultCompileOptions;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  PJRT_CALL(api_, PJRT_Client_Compile, args);
  return std::make_shared<Executable>(api_, nullptr, args.executable, shared_from_this());
}

std::shared_ptr<Executable> Client::deserialize(std::string_view serialized, std::string_view options) {
  PJRT_ARGS(PJRT_Executable_DeserializeAndLoad, args);
  args.client = client_;
  args.serialized_executable = serialized.data();
  args.serialized_executable_size = serialized.size();
  if (!options.empty()) {
    args.overridden_serialized_compile_options = options.data();
    args.overridden_serialized_compile_options_size = options.size();
  }
  PJRT_CALL(api_, PJRT_Executable_DeserializeAndLoad, args);
  return std::make_shared<Executable>(api_, nullptr, args.loaded_executable, shared_from_this());
}

Buffer Client::buffer_from_host(const void* data, PJRT_Buffer_Type type, const int64_t* dims, size_t ndims,
                                PJRT_Device* device, HostSemantics semantics, std::function<void()> done) const {
  PJRT_ARGS(PJRT_Client_BufferFromHostBuffer, args);
  args.client = client_;
  args.data = data;
  args.type = type;
  args.dims = dims;
  args.num_dims = ndims;
  args.host_buffer_semantics = static_cast<PJRT_HostBufferSemantics>(semantics);
  args.device = device;
  PJRT_CALL(api_, PJRT_Client_BufferFromHostBuffer, args);
  Buffer buffer(api_, args.buffer);
  const Event event(api_, args.done_with_host_buffer);
  if (done) event.on_ready([done = std::move(done)](const Error*) { done(); });
  return buffer;
}

Buffer Client::view_of_device_memory(void* data, PJRT_Buffer_Type type, const int64_t* dims, size_t ndims,
                                     PJRT_Device* device, std::function<void()> done) const {
  auto owner = std::make_unique<std::function<void()>>(std::move(done));
  PJRT_ARGS(PJRT_Client_CreateViewOfDeviceBuffer, args);
  args.client = client_;
  args.device_buffer_ptr = data;
  args.element_type = type;
  args.dims = dims;
  args.num_dims = ndims;
  args.device = device;
  args.on_delete_callback = [](void*, void* user_arg) {
    const std::unique_ptr<std::function<void()>> callback(static_cast<std::function<void()>*>(user_arg));
    if (*callback) (*callback)();
  };
  args.on_delete_callback_arg = owner.get();
  PJRT_CALL(api_, PJRT_Client_CreateViewOfDeviceBuffer, args);
  owner.release();
  return Buffer(api_, args.buffer);
}

Buffer Client::uninitialized(PJRT_Buffer_Type type, const int64_t* dims, size_t ndims, PJRT_Device* device) const {
  PJRT_ARGS(PJRT_Client_CreateUninitializedBuffer, args);
  args.client = client_;
  args.shape_dims = dims;
  args.shape_num_dims = ndims;
  args.shape_element_type = type;
  args.device = device;
  PJRT_CALL(api_, PJRT_Client_CreateUninitializedBuffer, args);
  return Buffer(api_, args.buffer);
}

}  // namespace torch_tpu::pjrt
