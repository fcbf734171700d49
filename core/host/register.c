#include "base/env.h"
#include "base/log.h"
#include "host/host_internal.h"

/* FFI handlers carry no data of ours, so each kernel gets a function of its own. */
#define TPU_HOST_KERNEL(name, operands, results)                                                 \
  static ffi_error_t* handle_##name(ffi_call_t* call) {                                          \
    static const tpui_host_row_t row = {"tpu_host_" #name, tpui_host_##name, operands, results}; \
    return tpui_host_handle(&row, call);                                                         \
  }
#include "host/host_kernels.def"
#undef TPU_HOST_KERNEL

static const struct {
  const char* target;
  ffi_handler_t handler;
} handlers[] = {
#define TPU_HOST_KERNEL(name, operands, results) {"tpu_host_" #name, handle_##name},
#include "host/host_kernels.def"
#undef TPU_HOST_KERNEL
};

void tpu_host_register(tpu_device_t* device) {
  if (!tpu_env_bool(TPU_ENV_HOST_KERNELS)) {
    tpu_log(TPU_LOG_LAUNCH, "host kernels are off: TORCH_TPU_HOST_KERNELS=0");
    return;
  }
  int count = sizeof(handlers) / sizeof(handlers[0]), answers = tpui_host_answers();
  for (int i = 0; i < count; ++i) {
    tpu_status_t status =
        tpu_device_register_host_call(device, handlers[i].target, handlers[i].handler);
    if (status == NULL) continue;
    tpu_log(TPU_LOG_LAUNCH, "host kernels are off: %s", tpu_status_message(status));
    tpu_status_free(status);
    return;
  }
  if (tpui_host_answers() - answers < count) {
    tpu_log(TPU_LOG_LAUNCH, "host kernels are off: the plugin has another version of FFI");
    return;
  }
  tpu_device_set_host_calls(device, true);
}
