// The index of this process's device. A process has one device, and scripts number the devices of
// all processes: rank 1 calls its own "tpu:1". The index is bound once, by the first of
// set_device(i), the first tensor, stream, generator or guard that names tpu:i, and the first
// tensor that names none (then it is LOCAL_RANK, or 0). Any other index below the count is another
// name of the same device, so that scripts with a literal tpu:0 run on every rank.
#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "hooks.h"
#include "runtime.h"

namespace tpu_shim {

namespace {

constexpr int kMostDevices = 127;  // c10::DeviceIndex

std::atomic<int> g_bound{-1};

// A number that a launcher put into the environment; -1 without one.
int launched_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return -1;
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  return *end == '\0' && number >= 0 && number <= kMostDevices ? static_cast<int>(number) : -1;
}

int unbound_index() {
  const int rank = launched_number("LOCAL_RANK");
  return rank >= 0 && rank < kMostDevices ? rank : 0;
}

int index_now() {
  const int bound = g_bound.load(std::memory_order_relaxed);
  return bound >= 0 ? bound : unbound_index();
}

}  // namespace

c10::DeviceIndex device_count() noexcept {
  try {
    const int chips = visible_chips();
    if (chips == 0) return 0;
    const int named = std::max(launched_number("LOCAL_WORLD_SIZE"), index_now() + 1);
    return static_cast<c10::DeviceIndex>(std::min(std::max(chips, named), kMostDevices));
  } catch (...) {
    return 0;  // callers may not see exceptions; the first real use raises the reason
  }
}

c10::DeviceIndex current_device() { return static_cast<c10::DeviceIndex>(index_now()); }

c10::DeviceIndex checked_device_index(c10::DeviceIndex index) {
  const int now = index_now();
  // The device's own index passes without a plugin too: its first use says what is missing.
  TORCH_CHECK(index < 0 || index == now || index < device_count(), "invalid tpu device index ",
              static_cast<int>(index), ": this process has one device, tpu:", now, ", of ",
              static_cast<int>(device_count()));
  return static_cast<c10::DeviceIndex>(now);
}

c10::DeviceIndex bind_device(c10::DeviceIndex index) {
  int bound = g_bound.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(bound < 0)) {
    int unbound = -1;
    const int wanted = index >= 0 ? index : unbound_index();
    // Without a device nothing is bound: the first use raises the reason.
    if (visible_chips() > 0) g_bound.compare_exchange_strong(unbound, wanted);
    bound = index_now();
  }
  return index < 0 || index == bound ? static_cast<c10::DeviceIndex>(bound)
                                     : checked_device_index(index);
}

}  // namespace tpu_shim
