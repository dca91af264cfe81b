#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>

#include "memory.h"
#include "runtime.h"

namespace torch_tpu {

namespace {

constexpr uint64_t kPhiloxWidth = 4;  // numbers per Philox4x32 counter
constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

struct Defaults {
  std::mutex mutex;
  std::array<std::atomic<const at::Generator*>, memory::kMaxDevices> generators{};
  std::optional<uint64_t> seed;  // from manual_seed_all, for those still to be made
};

Defaults& defaults() {
  static auto* all = new Defaults();  // leaked: Python may hold generators past static destruction
  return *all;
}

}  // namespace

TpuGeneratorImpl::TpuGeneratorImpl(c10::DeviceIndex device, uint64_t seed)
    : c10::GeneratorImpl(c10::Device(device_type(), device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(seed) {}

std::pair<uint64_t, uint64_t> TpuGeneratorImpl::take(uint64_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t start = offset_;
  offset_ += (count + kPhiloxWidth - 1) / kPhiloxWidth * kPhiloxWidth;
  return {seed_, start};
}

void TpuGeneratorImpl::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t TpuGeneratorImpl::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void TpuGeneratorImpl::set_offset(uint64_t offset) {
  TORCH_CHECK_VALUE(offset % kPhiloxWidth == 0, "offset must be a multiple of ", kPhiloxWidth, ", got ", offset);
  offset_ = offset;
}

void TpuGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  TORCH_CHECK_VALUE(new_state.numel() == kStateBytes, "a tpu RNG state has ", kStateBytes,
                    " bytes (seed, offset), got ", new_state.numel());
  const auto* bytes = static_cast<const uint8_t*>(new_state.data());
  uint64_t offset = 0;
  std::memcpy(&offset, bytes + sizeof(uint64_t), sizeof(uint64_t));
  set_offset(offset);
  std::memcpy(&seed_, bytes, sizeof(uint64_t));
}

c10::intrusive_ptr<c10::TensorImpl> TpuGeneratorImpl::get_state() const {
  at::Tensor state = at::detail::empty_cpu({kStateBytes}, c10::kByte, false, std::nullopt);
  auto* bytes = state.data_ptr<uint8_t>();
  std::memcpy(bytes, &seed_, sizeof(uint64_t));
  std::memcpy(bytes + sizeof(uint64_t), &offset_, sizeof(uint64_t));
  return state.getIntrusivePtr();
}

TpuGeneratorImpl* TpuGeneratorImpl::clone_impl() const {
  auto* copy = new TpuGeneratorImpl(device().index(), seed_);
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  const c10::DeviceIndex index = device < 0 ? current_device() : device;
  std::atomic<const at::Generator*>& slot = defaults().generators.at(index);
  if (const at::Generator* made = slot.load(std::memory_order_acquire)) return *made;
  std::lock_guard<std::mutex> lock(defaults().mutex);
  if (const at::Generator* made = slot.load(std::memory_order_relaxed)) return *made;
  const uint64_t seed = defaults().seed.value_or(c10::detail::getNonDeterministicRandom());
  const auto* made = new at::Generator(at::make_generator<TpuGeneratorImpl>(index, seed));
  slot.store(made, std::memory_order_release);
  return *made;
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<TpuGeneratorImpl>(device < 0 ? current_device() : device);
}

void manual_seed_all(uint64_t seed) {
  std::lock_guard<std::mutex> lock(defaults().mutex);
  defaults().seed = seed;
  for (const auto& slot : defaults().generators) {
    if (const at::Generator* made = slot.load(std::memory_order_relaxed)) {
      auto* impl = made->get<TpuGeneratorImpl>();
      std::lock_guard<std::mutex> own(impl->mutex_);
      impl->set_current_seed(seed);
    }
  }
}

}  // namespace torch_tpu
