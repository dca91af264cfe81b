// Pinned host memory: aligned as the plugins want it for transfers without a copy, cached, reused only after the
// device has read it.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torch_tpu::host {

// Plugins take host memory as it is from this alignment on.
constexpr size_t kAlignment = 64;

at::HostAllocator* allocator();
// True for every address inside memory of this allocator.
bool is_pinned(const void* address);

}  // namespace torch_tpu::host
