// Devices as PyTorch's hooks, guard and bindings see them.
#ifndef TPU_SHIM_HOOKS_H_
#define TPU_SHIM_HOOKS_H_

#include <c10/core/Device.h>

namespace tpu_shim {

// See device_index.cpp. How many devices there are, as far as scripts that number them are
// concerned: the chips of this machine, LOCAL_WORLD_SIZE or this process's index + 1, whichever is
// most; 0 without a plugin. Starts nothing.
c10::DeviceIndex device_count() noexcept;
// The index that this process's device has, or will have if nobody names one.
c10::DeviceIndex current_device();
// The check of every device argument that only asks: negative means the current device;
// RuntimeError for an index that does not exist. Gives current_device().
c10::DeviceIndex checked_device_index(c10::DeviceIndex index);
// The same for a use of the device, which binds the index if it is the first one.
c10::DeviceIndex bind_device(c10::DeviceIndex index);

}  // namespace tpu_shim

#endif  // TPU_SHIM_HOOKS_H_
