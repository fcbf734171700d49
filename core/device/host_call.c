/* Functions of ours that programs can call: registration with the plugin. */
#include <string.h>

#include "device/device_internal.h"
#include "pjrt/ffi_abi.h"

/* XLA's name for the CPU; the plugin takes "cpu" and "CPU" for the same. */
static const char platform_name[] = "Host";

tpu_status_t tpu_device_register_host_call(tpu_device_t* device, const char* name,
                                           tpu_host_handler_t handler) {
  const tpu_plugin_t* plugin = device->plugin;
  if (name == NULL || name[0] == '\0' || handler == NULL) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a host call needs a name and a function");
  }
  if (device->platform->kind != TPU_PLATFORM_CPU) {
    return tpu_status_make(TPU_UNIMPLEMENTED, "host call %s: not on platform %s", name,
                           device->platform->name);
  }
  const pjrt_extension_base_t* base = tpu_plugin_extension(plugin, PJRT_EXTENSION_FFI);
  const pjrt_ffi_extension_t* extension = (const pjrt_ffi_extension_t*)base;
  size_t needed = PJRT_STRUCT_SIZE(pjrt_ffi_extension_t, register_handler);
  bool has_function =
      base != NULL && base->struct_size >= needed && extension->register_handler != NULL;
  if (!has_function) {
    return tpu_status_make(TPU_UNIMPLEMENTED, "host call %s: the plugin '%s' has no FFI", name,
                           plugin->path);
  }
  pjrt_ffi_register_handler_args_t args = {
      .struct_size = PJRT_STRUCT_SIZE(pjrt_ffi_register_handler_args_t, traits),
      .target_name = name,
      .target_name_size = strlen(name),
      .handler = handler,
      .platform_name = platform_name,
      .platform_name_size = strlen(platform_name),
  };
  tpu_status_t status = tpu_pjrt_named_status(plugin, "PJRT_FFI_Register_Handler",
                                              extension->register_handler(&args));
  return tpu_status_annotate(status, "host call %s", name);
}

void tpu_device_set_host_calls(tpu_device_t* device, bool available) {
  atomic_store_explicit(&device->host_calls, available, memory_order_release);
}

bool tpu_device_has_host_calls(const tpu_device_t* device) {
  return atomic_load_explicit(&device->host_calls, memory_order_acquire);
}
