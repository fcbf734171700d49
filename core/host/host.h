/* C kernels that run inside a compiled program, on the CPU platform: ops that XLA:CPU is bad at.
 *
 * A kernel is a C function over dense row-major buffers. One row in host_kernels.def makes it
 * the target of a stablehlo.custom_call named "tpu_host_<name>" (lower/host_call.h writes those).
 * Which ones exist, and by how much they win: docs/decisions/006-host-kernels.md
 * and 009-random-kernels.md.
 *
 * Kernels are called on whatever thread runs the program, several at a time. They must not touch
 * the engine, must not keep pointers, and should treat floats as bits where they can: the plugin
 * runs with denormals flushed to zero.
 */
#ifndef TPU_HOST_HOST_H_
#define TPU_HOST_HOST_H_

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Registers all kernels with the device's plugin, before anything is compiled for it. Where that is
 * not possible (another platform, a plugin without FFI or with another version of it, or
 * TORCH_TPU_HOST_KERNELS=0), programs keep to XLA's own operations, and TORCH_TPU_LOG=launch says
 * why. */
void tpu_host_register(tpu_device_t* device);

/* A dense row-major tensor, borrowed for the call. Operands must not be written. */
typedef struct tpu_host_buffer_t {
  tpu_dtype_t dtype;
  int rank;
  const int64_t* sizes;  // [rank]
  void* data;
} tpu_host_buffer_t;

typedef enum tpu_host_attr_kind_t {
  TPU_HOST_ATTR_INT,    // any integer type, or bool
  TPU_HOST_ATTR_FLOAT,  // f32 or f64
  TPU_HOST_ATTR_TEXT,
} tpu_host_attr_kind_t;

typedef struct tpu_host_attr_t {
  const char* name;  // `name_size` bytes, not NUL-terminated
  size_t name_size;
  tpu_host_attr_kind_t kind;
  int64_t as_int;
  double as_float;
  const char* as_text;  // `text_size` bytes, not NUL-terminated
  size_t text_size;
} tpu_host_attr_t;

/* One call, as the kernel sees it. The number of operands and results is what the table says;
 * dtypes and shapes are for the kernel to check. */
typedef struct tpu_host_call_t {
  int operand_count;
  const tpu_host_buffer_t* operands;
  int result_count;
  const tpu_host_buffer_t* results;
  int attr_count;
  const tpu_host_attr_t* attrs;
  struct ffi_call_t* frame;  // for tpu_host_parallel; NULL in tests
} tpu_host_call_t;

/* A failure becomes the program's error, with the same code and text. */
typedef tpu_status_t (*tpu_host_kernel_t)(const tpu_host_call_t* call);

/* The attribute, or TPU_INVALID_ARGUMENT when the call has none of that name and kind. */
TPU_MUST_USE tpu_status_t tpu_host_attr_int(const tpu_host_call_t* call, const char* name,
                                            int64_t* out_value);
TPU_MUST_USE tpu_status_t tpu_host_attr_float(const tpu_host_call_t* call, const char* name,
                                              double* out_value);
TPU_MUST_USE tpu_status_t tpu_host_attr_text(const tpu_host_call_t* call, const char* name,
                                             const char** out_text, size_t* out_size);

/* Splits [0, count) into ranges of at least `grain` and calls `work(arg, first, last)` for each,
 * on the plugin's pool and on this thread; returns when all are done. The first failure is
 * returned. Safe when the pool is busy: the caller does what nobody else has begun. */
typedef tpu_status_t (*tpu_host_work_t)(void* arg, int64_t first, int64_t last);
TPU_MUST_USE tpu_status_t tpu_host_parallel(const tpu_host_call_t* call, int64_t count,
                                            int64_t grain, tpu_host_work_t work, void* arg);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_HOST_HOST_H_
