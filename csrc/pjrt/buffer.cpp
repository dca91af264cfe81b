// Event and Buffer: what exists once per array.
#include "call.h"

namespace torch_tpu::pjrt {

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    reset();
    api_ = other.api_;
    event_ = std::exchange(other.event_, nullptr);
  }
  return *this;
}

void Event::reset() {
  if (event_ == nullptr) return;
  PJRT_ARGS(PJRT_Event_Destroy, args);
  args.event = std::exchange(event_, nullptr);
  api_->PJRT_Event_Destroy(&args);
}

bool Event::ready() const {
  PJRT_ARGS(PJRT_Event_IsReady, args);
  args.event = event_;
  PJRT_CALL(api_, PJRT_Event_IsReady, args);
  return args.is_ready;
}

void Event::await() const {
  PJRT_ARGS(PJRT_Event_Await, args);
  args.event = event_;
  PJRT_CALL(api_, PJRT_Event_Await, args);
}

namespace {

struct Ready {
  const PJRT_Api* api;
  std::function<void(const Error*)> callback;
};

// Called by the plugin: no exception may leave it.
void on_ready_callback(PJRT_Error* error, void* user_arg) noexcept {
  std::unique_ptr<Ready> ready(static_cast<Ready*>(user_arg));
  try {
    check(ready->api, error);
  } catch (const Error& thrown) {
    ready->callback(&thrown);
    return;
  }
  ready->callback(nullptr);
}

}  // namespace

void Event::on_ready(std::function<void(const Error*)> callback) const {
  auto ready = std::make_unique<Ready>(Ready{api_, std::move(callback)});
  PJRT_ARGS(PJRT_Event_OnReady, args);
  args.event = event_;
  args.callback = on_ready_callback;
  args.user_arg = ready.get();
  PJRT_CALL(api_, PJRT_Event_OnReady, args);
  ready.release();
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    api_ = other.api_;
    buffer_ = std::exchange(other.buffer_, nullptr);
  }
  return *this;
}

void Buffer::reset() {
  if (buffer_ == nullptr) return;
  PJRT_ARGS(PJRT_Buffer_Destroy, args);
  args.buffer = std::exchange(buffer_, nullptr);
  api_->PJRT_Buffer_Destroy(&args);
}

PJRT_Buffer_Type Buffer::type() const {
  PJRT_ARGS(PJRT_Buffer_ElementType, args);
  args.buffer = buffer_;
  PJRT_CALL(api_, PJRT_Buffer_ElementType, args);
  return args.type;
}

Dims Buffer::dims() const {
  PJRT_ARGS(PJRT_Buffer_Dimensions, args);
  args.buffer = buffer_;
  PJRT_CALL(api_, PJRT_Buffer_Dimensions, args);
  return Dims(args.dims, args.dims + args.num_dims);
}

size_t Buffer::device_bytes() const {
  PJRT_ARGS(PJRT_Buffer_OnDeviceSizeInBytes, args);
  args.buffer = buffer_;
  PJRT_CALL(api_, PJRT_Buffer_OnDeviceSizeInBytes, args);
  return args.on_device_size_in_bytes;
}

PJRT_Device* Buffer::device() const {
  PJRT_ARGS(PJRT_Buffer_Device, args);
  args.buffer = buffer_;
  PJRT_CALL(api_, PJRT_Buffer_Device, args);
  return args.device;
}

bool Buffer::is_deleted() const {
  PJRT_ARGS(PJRT_Buffer_IsDeleted, args);
  args.buffer = buffer_;
  PJRT_CALL(api_, PJRT_Buffer_IsDeleted, args);
  return args.is_deleted;
}

void Buffer::free_memory() {
  PJRT_ARGS(PJRT_Buffer_Delete, args);
  args.buffer = buffer_;
  PJRT_CALL(api_, PJRT_Buffer_Delete, args);
}

uintptr_t Buffer::unsafe_pointer() const {
  PJRT_ARGS(PJRT_Buffer_UnsafePointer, args);
  args.buffer = buffer_;
  PJRT_CALL(api_, PJRT_Buffer_UnsafePointer, args);
  return args.buffer_pointer;
}

Event Buffer::ready_event() const {
  PJRT_ARGS(PJRT_Buffer_ReadyEvent, args);
  args.buffer = buffer_;
  PJRT_CALL(api_, PJRT_Buffer_ReadyEvent, args);
  return Event(api_, args.event);
}

Event Buffer::to_host(void* dst, size_t bytes) const {
  PJRT_ARGS(PJRT_Buffer_Dimensions, shape);
  shape.buffer = buffer_;
  PJRT_CALL(api_, PJRT_Buffer_Dimensions, shape);

  // Without a layout the plugin writes in the device's order, which is not row-major on a TPU.
  std::vector<int64_t> minor_to_major(shape.num_dims);
  for (size_t i = 0; i < shape.num_dims; ++i) minor_to_major[i] = static_cast<int64_t>(shape.num_dims - 1 - i);
  PJRT_Buffer_MemoryLayout layout{};
  layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = minor_to_major.size();

  PJRT_ARGS(PJRT_Buffer_ToHostBuffer, args);
  args.src = buffer_;
  args.host_layout = &layout;
  args.dst = dst;
  args.dst_size = bytes;
  PJRT_CALL(api_, PJRT_Buffer_ToHostBuffer, args);
  return Event(api_, args.event);
}

Buffer Buffer::copy_to(PJRT_Device* device) const {
  PJRT_ARGS(PJRT_Buffer_CopyToDevice, args);
  args.buffer = buffer_;
  args.dst_device = device;
  PJRT_CALL(api_, PJRT_Buffer_CopyToDevice, args);
  return Buffer(api_, args.dst_buffer);
}

}  // namespace torch_tpu::pjrt
