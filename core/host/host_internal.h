/* What the files of core/host/ share. */
#ifndef TPU_HOST_HOST_INTERNAL_H_
#define TPU_HOST_HOST_INTERNAL_H_

#include "host/host.h"
#include "pjrt/ffi_abi.h"

typedef struct tpui_host_row_t {
  const char* target;  // "tpu_host_<name>"
  tpu_host_kernel_t kernel;
  int operand_count, result_count;
} tpui_host_row_t;

/* Kernels, by the table. */
#define TPU_HOST_KERNEL(name, operands, results) \
  tpu_status_t tpui_host_##name(const tpu_host_call_t* call);
#include "host/host_kernels.def"
#undef TPU_HOST_KERNEL

/* The body of every FFI handler: answers a registration, or decodes a call and runs the kernel. */
ffi_error_t* tpui_host_handle(const tpui_host_row_t* row, ffi_call_t* call);

/* How often a plugin has asked for a version and got one that suits it. */
int tpui_host_answers(void);

#endif  // TPU_HOST_HOST_INTERNAL_H_
