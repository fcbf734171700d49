// Random numbers: one Philox 4x32-10 counter per generator, as (seed, offset).
//
// The offset counts blocks of four 32-bit numbers. The state is CUDA's 16 bytes: seed, then offset,
// little endian, so that checkpoints and DTensor's offset tracker work unchanged.
#ifndef TPU_SHIM_GENERATOR_H_
#define TPU_SHIM_GENERATOR_H_

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <optional>

#include "runtime.h"

namespace tpu_shim {

struct GeneratorImpl final : c10::GeneratorImpl {
  explicit GeneratorImpl(c10::DeviceIndex index);
  // The default generator may be older than the device's index.
  void set_device_index(c10::DeviceIndex index) { device_ = c10::Device(kTpu, index); }

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() { return kTpu; }

 private:
  GeneratorImpl* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator();
at::Generator new_generator(c10::DeviceIndex index);

struct PhiloxState {
  uint64_t seed;
  uint64_t offset;
};
// Takes the numbers for `numel` elements from the generator given or the default one. Throws when
// the generator is another device's.
PhiloxState reserve_random(const std::optional<at::Generator>& generator, int64_t numel);

}  // namespace tpu_shim

#endif  // TPU_SHIM_GENERATOR_H_
