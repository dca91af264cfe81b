#include "call.h"

namespace torch_tpu::pjrt {

Executable::Executable(const PJRT_Api* api, PJRT_Executable* executable, PJRT_LoadedExecutable* loaded,
                       std::shared_ptr<Client> client)
    : api_(api), executable_(executable), loaded_(loaded), client_(std::move(client)), num_outputs_(0) {
  if (executable_ == nullptr) {
    PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable, args);
    args.loaded_executable = loaded_;
    PJRT_CALL(api_, PJRT_LoadedExecutable_GetExecutable, args);
    executable_ = args.executable;
  }
  PJRT_ARGS(PJRT_Executable_NumOutputs, args);
  args.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_NumOutputs, args);
  num_outputs_ = args.num_outputs;
}

Executable::~Executable() {
  if (executable_ != nullptr) {
    PJRT_ARGS(PJRT_Executable_Destroy, args);
    args.executable = executable_;
    api_->PJRT_Executable_Destroy(&args);
  }
  if (loaded_ != nullptr) {
    PJRT_ARGS(PJRT_LoadedExecutable_Destroy, args);
    args.executable = loaded_;
    api_->PJRT_LoadedExecutable_Destroy(&args);
  }
}

std::string Executable::name() const {
  PJRT_ARGS(PJRT_Executable_Name, args);
  args.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_Name, args);
  return to_string(args.executable_name, args.executable_name_size);
}

std::vector<Shape> Executable::outputs() const {
  PJRT_ARGS(PJRT_Executable_OutputElementTypes, types);
  types.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_OutputElementTypes, types);
  PJRT_ARGS(PJRT_Executable_OutputDimensions, dims);
  dims.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_OutputDimensions, dims);

  std::vector<Shape> shapes;
  shapes.reserve(num_outputs_);
  const int64_t* next = dims.dims;
  for (size_t i = 0; i < num_outputs_; ++i) {
    shapes.push_back({types.output_types[i], Dims(next, next + dims.dim_sizes[i])});
    next += dims.dim_sizes[i];
  }
  return shapes;
}

size_t Executable::num_replicas() const {
  PJRT_ARGS(PJRT_Executable_NumReplicas, args);
  args.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_NumReplicas, args);
  return args.num_replicas;
}

size_t Executable::num_partitions() const {
  PJRT_ARGS(PJRT_Executable_NumPartitions, args);
  args.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_NumPartitions, args);
  return args.num_partitions;
}

std::vector<PJRT_Device*> Executable::devices() const {
  if (loaded_ == nullptr) return {};
  PJRT_ARGS(PJRT_LoadedExecutable_AddressableDevices, args);
  args.executable = loaded_;
  PJRT_CALL(api_, PJRT_LoadedExecutable_AddressableDevices, args);
  return std::vector<PJRT_Device*>(args.addressable_devices, args.addressable_devices + args.num_addressable_devices);
}

namespace {

void execute_on(const PJRT_Api* api, PJRT_LoadedExecutable* loaded, PJRT_Buffer* const* const* args, size_t ndevices,
                size_t nargs, PJRT_Buffer** const* outs, PJRT_Event** complete, PJRT_Device* device,
                const int64_t* keep, size_t nkeep) {
  if (__builtin_expect(loaded == nullptr, 0)) {
    throw Error(PJRT_Error_Code_FAILED_PRECONDITION,
                "this executable was compiled for a topology and is not loaded on a device");
  }
  PJRT_ExecuteOptions options{};
  options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  options.non_donatable_input_indices = keep;
  options.num_non_donatable_input_indices = nkeep;

  PJRT_ARGS(PJRT_LoadedExecutable_Execute, execute);
  execute.executable = loaded;
  execute.options = &options;
  execute.argument_lists = args;
  execute.num_devices = ndevices;
  execute.num_args = nargs;
  execute.output_lists = outs;
  execute.device_complete_events = complete;
  execute.execute_device = device;
  PJRT_CALL(api, PJRT_LoadedExecutable_Execute, execute);
}

}  // namespace

void Executable::execute(PJRT_Buffer* const* args, size_t nargs, PJRT_Buffer** outs, PJRT_Event** complete,
                         PJRT_Device* device, const int64_t* keep, size_t nkeep) const {
  execute_on(api_, loaded_, &args, 1, nargs, &outs, complete, device, keep, nkeep);
}

void Executable::execute_many(PJRT_Buffer* const* const* args, size_t ndevices, size_t nargs, PJRT_Buffer** const* outs,
                              PJRT_Event** complete) const {
  execute_on(api_, loaded_, args, ndevices, nargs, outs, complete, nullptr, nullptr, 0);
}

Attributes Executable::cost_analysis() const {
  PJRT_ARGS(PJRT_Executable_GetCostAnalysis, args);
  args.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_GetCostAnalysis, args);
  return to_attributes(args.properties, args.num_properties);
}

std::map<std::string, int64_t> Executable::memory_stats() const {
  PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats, args);
  args.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_GetCompiledMemoryStats, args);
  return {
      {"generated_code_bytes", args.generated_code_size_in_bytes},
      {"argument_bytes", args.argument_size_in_bytes},
      {"output_bytes", args.output_size_in_bytes},
      {"alias_bytes", args.alias_size_in_bytes},
      {"temp_bytes", args.temp_size_in_bytes},
      {"peak_bytes", args.peak_memory_in_bytes},
      {"host_generated_code_bytes", args.host_generated_code_size_in_bytes},
      {"host_argument_bytes", args.host_argument_size_in_bytes},
      {"host_output_bytes", args.host_output_size_in_bytes},
      {"host_alias_bytes", args.host_alias_size_in_bytes},
      {"host_temp_bytes", args.host_temp_size_in_bytes},
  };
}

int64_t Executable::generated_code_bytes() const {
  PJRT_ARGS(PJRT_Executable_SizeOfGeneratedCodeInBytes, args);
  args.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_SizeOfGeneratedCodeInBytes, args);
  return args.size_in_bytes;
}

OptimizedProgram Executable::optimized_program() const {
  PJRT_Program program{};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  PJRT_ARGS(PJRT_Executable_OptimizedProgram, args);
  args.executable = executable_;
  args.program = &program;
  // The first call gives the size, the second fills in the code.
  PJRT_CALL(api_, PJRT_Executable_OptimizedProgram, args);
  OptimizedProgram result;
  result.code.resize(program.code_size);
  program.code = result.code.data();
  PJRT_CALL(api_, PJRT_Executable_OptimizedProgram, args);
  result.format = to_string(program.format, program.format_size);
  return result;
}

std::string Executable::serialize() const {
  PJRT_ARGS(PJRT_Executable_Serialize, args);
  args.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_Serialize, args);
  std::string bytes = to_string(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_executable_deleter(args.serialized_executable);
  return bytes;
}

std::string Executable::fingerprint() const {
  PJRT_ARGS(PJRT_Executable_Fingerprint, args);
  args.executable = executable_;
  PJRT_CALL(api_, PJRT_Executable_Fingerprint, args);
  return to_string(args.executable_fingerprint, args.executable_fingerprint_size);
}

}  // namespace torch_tpu::pjrt
