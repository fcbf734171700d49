// Devices as PyTorch's hooks, guard and bindings see them.
#ifndef TPU_SHIM_HOOKS_H_
#define TPU_SHIM_HOOKS_H_

#include <c10/core/Device.h>

namespace tpu_shim {

// 1 when a plugin is known, else 0. Starts nothing.
c10::DeviceIndex device_count() noexcept;
// Of the calling thread.
c10::DeviceIndex current_device();
// The check of every device argument: negative means the current device; RuntimeError for an index
// that does not exist. Gives the index.
c10::DeviceIndex checked_device_index(c10::DeviceIndex index);
void set_current_device(c10::DeviceIndex index);

}  // namespace tpu_shim

#endif  // TPU_SHIM_HOOKS_H_
