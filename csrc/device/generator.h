// The generator of a tpu device: a Philox seed and an offset, so its whole state is two integers.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <utility>

namespace torch_tpu {

class TpuGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit TpuGeneratorImpl(c10::DeviceIndex device, uint64_t seed = c10::default_rng_seed_val);

  // What one random op consumes: the seed, and the offset at which its `count` numbers start. Locks mutex_ itself.
  std::pair<uint64_t, uint64_t> take(uint64_t count);

  // As in PyTorch, the caller of everything below holds mutex_ where it shares the generator.
  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

 private:
  TpuGeneratorImpl* clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
};

// The default generator of a device (-1: the current one); made on first use, without initialising the runtime.
const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);
// Seeds every device's default generator, also those that nobody has asked for yet.
void manual_seed_all(uint64_t seed);

}  // namespace torch_tpu
