#include "call.h"

namespace torch_tpu::pjrt {

std::shared_ptr<Topology> Topology::create(const Plugin& plugin, const std::string& name, const Attributes& options) {
  const std::vector<PJRT_NamedValue> values = to_named_values(options);
  PJRT_ARGS(PJRT_TopologyDescription_Create, args);
  args.topology_name = name.data();
  args.topology_name_size = name.size();
  args.create_options = values.data();
  args.num_options = values.size();
  PJRT_CALL(plugin.api(), PJRT_TopologyDescription_Create, args);
  return std::shared_ptr<Topology>(new Topology(plugin.api(), args.topology));
}

Topology::~Topology() {
  PJRT_ARGS(PJRT_TopologyDescription_Destroy, args);
  args.topology = topology_;
  api_->PJRT_TopologyDescription_Destroy(&args);
}

std::string Topology::platform_name() const {
  PJRT_ARGS(PJRT_TopologyDescription_PlatformName, args);
  args.topology = topology_;
  PJRT_CALL(api_, PJRT_TopologyDescription_PlatformName, args);
  return to_string(args.platform_name, args.platform_name_size);
}

std::string Topology::platform_version() const {
  PJRT_ARGS(PJRT_TopologyDescription_PlatformVersion, args);
  args.topology = topology_;
  PJRT_CALL(api_, PJRT_TopologyDescription_PlatformVersion, args);
  return to_string(args.platform_version, args.platform_version_size);
}

std::vector<DeviceInfo> Topology::devices() const {
  PJRT_ARGS(PJRT_TopologyDescription_GetDeviceDescriptions, args);
  args.topology = topology_;
  PJRT_CALL(api_, PJRT_TopologyDescription_GetDeviceDescriptions, args);
  std::vector<DeviceInfo> devices;
  devices.reserve(args.num_descriptions);
  for (size_t i = 0; i < args.num_descriptions; ++i) devices.push_back(device_info(api_, args.descriptions[i]));
  return devices;
}

Attributes Topology::attributes() const {
  PJRT_ARGS(PJRT_TopologyDescription_Attributes, args);
  args.topology = topology_;
  PJRT_CALL(api_, PJRT_TopologyDescription_Attributes, args);
  return to_attributes(args.attributes, args.num_attributes);
}

std::string Topology::serialize() const {
  PJRT_ARGS(PJRT_TopologyDescription_Serialize, args);
  args.topology = topology_;
  PJRT_CALL(api_, PJRT_TopologyDescription_Serialize, args);
  std::string bytes = to_string(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_topology_deleter(args.serialized_topology);
  return bytes;
}

std::shared_ptr<Executable> Topology::compile(std::string_view program, std::string_view format,
                                              std::string_view options) const {
  PJRT_Program source{};
  source.struct_size = PJRT_Program_STRUCT_SIZE;
  source.code = const_cast<char*>(program.data());
  source.code_size = program.size();
  source.format = format.data();
  source.format_size = format.size();

  PJRT_ARGS(PJRT_Compile, args);
  args.topology = topology_;
  args.program = &source;
  if (options.empty()) options = kDefaultCompileOptions;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  PJRT_CALL(api_, PJRT_Compile, args);
  return std::make_shared<Executable>(api_, args.executable, nullptr, nullptr);
}

}  // namespace torch_tpu::pjrt
