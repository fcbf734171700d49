#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <cstring>

#include "hooks.h"

namespace tpu_shim {

namespace {
constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);
}

GeneratorImpl::GeneratorImpl(c10::DeviceIndex index)
    : c10::GeneratorImpl(c10::Device(kTpu, index),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void GeneratorImpl::set_offset(uint64_t offset) { offset_ = offset; }

uint64_t GeneratorImpl::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom();
  set_current_seed(random);
  return random;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK(state.layout() == c10::kStrided && state.device_type() == c10::kCPU &&
                  state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.is_contiguous(),
              "RNG state must be a contiguous CPU tensor of dtype uint8");
  TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size: expected ", kStateBytes,
              " bytes (seed, offset), got ", state.numel());
  const auto* bytes = static_cast<const uint8_t*>(state.data());
  std::memcpy(&seed_, bytes, sizeof(seed_));
  std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  at::TensorBase state = at::detail::empty_cpu({kStateBytes}, at::kByte);
  auto* bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, sizeof(seed_));
  std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
  return state.getIntrusivePtr();
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<GeneratorImpl>(index);
}

const at::Generator& default_generator() {
  const c10::DeviceIndex index = current_device();
  static const at::Generator* generator = new at::Generator(new_generator(index));
  auto* impl = static_cast<GeneratorImpl*>(generator->unsafeGetGeneratorImpl());
  if (C10_UNLIKELY(impl->device().index() != index)) impl->set_device_index(index);
  return *generator;
}

PhiloxState reserve_random(const std::optional<at::Generator>& given, int64_t numel) {
  const bool use_given = given.has_value() && given->defined();
  const at::Generator& generator = use_given ? *given : default_generator();
  TORCH_CHECK(generator.device().type() == kTpu, "Expected a '", kTpu,
              "' device type for generator but found '", generator.device().type(), "'");
  auto* impl = static_cast<GeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(impl->mutex_);
  const PhiloxState state{impl->current_seed(), impl->get_offset()};
  impl->set_offset(state.offset + static_cast<uint64_t>((numel + 3) / 4));
  return state;
}

}  // namespace tpu_shim
