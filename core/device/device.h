/* A device: one PJRT client and one of its devices, with exact byte accounting.
 *
 * Nothing here knows traces or programs. Errors of PJRT calls come back with the call's name in
 * front. A device is created once and lives until the process ends (plugins are never unloaded).
 */
#ifndef TPU_DEVICE_DEVICE_H_
#define TPU_DEVICE_DEVICE_H_

#include "base/status.h"
#include "types/meta.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tpu_device_t tpu_device_t;
typedef struct tpu_buffer_t tpu_buffer_t;  // one device buffer, reference counted

typedef enum tpu_platform_kind_t {
  TPU_PLATFORM_CPU,
  TPU_PLATFORM_TPU,
  TPU_PLATFORM_CUDA,
} tpu_platform_kind_t;

/* Facts of a platform that other folders decide by. */
typedef struct tpu_platform_t {
  tpu_platform_kind_t kind;
  const char* name;         // "cpu", "tpu", "cuda"
  int32_t program_ops;      // most ops in one program (partition/)
  int32_t repeat_ops;       // fewest ops of a repeated part that is a program of its own
  bool host_addressable;    // buffers can be read through a pointer
  bool fast_compile_small;  // small programs have a cheaper compile mode (compile/)

  // What lower/ writes around. Where none of these holds, an operation is written in its plain
  // StableHLO form. platform.c says how each was measured.
  bool no_wide_products;       // products of 64-bit integers do not compile
  bool low_default_precision;  // float32 products are rounded to fewer bits unless told otherwise
  bool slow_grouped_conv;      // a convolution per group, or sums for depthwise ones, are faster
  bool slow_half_conv;         // 16-bit floats convolve faster in float32
  bool slow_pointwise_conv;    // kernels of size 1 are faster as a matrix product
  bool slow_edge_conv;         // an input smaller than the kernel wants its padding written out
  bool slow_transposed_dot;    // a transposed tall operand: the transpose of the product is faster
  bool cheap_small_dots;       // a product in four pieces costs no more than whole
  bool repeats_fused_work;     // what two consumers read is computed in both
  bool slow_windows;    // sums of strided slices are faster than reduce_window, and comparing
                        // indices than select_and_scatter
  bool slow_scatter;    // comparing every element with its index is faster
  bool slow_pair_sort;  // a sort of (key, position) pairs; one 64-bit number is faster
} tpu_platform_t;

typedef struct tpu_device_options_t {
  const char* plugin_path;       // a PJRT plugin; must not be NULL (discovery is the caller's work)
  tpu_platform_kind_t platform;  // what the plugin is for
  int threads;                   // CPU: pool threads, 0 = plugin's default
  int64_t memory_limit;          // CPU: bytes the device pretends to have, 0 = physical memory
  int index;     // of the device among those that the plugin has; past their end: the first
  bool no_chip;  // TPU: none is on this machine's bus, so that none need be searched
} tpu_device_options_t;

/* Loads the plugin, makes a client, takes its first device. Errors name the path (and `no_chip`):
 * no file or device (NOT_FOUND), not a library or no GetPjrtApi (INVALID_ARGUMENT), API too old or
 * other major version (FAILED_PRECONDITION). */
TPU_MUST_USE tpu_status_t tpu_device_create(const tpu_device_options_t* options,
                                            tpu_device_t** out_device);
/* For tests and tools; all buffers and executables of the device must be gone. */
void tpu_device_destroy(tpu_device_t* device);

/* NULL for an unknown kind. */
const tpu_platform_t* tpu_platform_get(tpu_platform_kind_t kind);
const tpu_platform_t* tpu_device_platform(const tpu_device_t* device);
/* "TPU v5 lite", or "TPU (cpu host: <model>)": always starts with TPU; for the CPU platform it
 * contains "cpu". */
const char* tpu_device_name(const tpu_device_t* device);
/* PJRT platform name, its version text and "major.minor" of the API; goes into cache keys. */
const char* tpu_device_plugin_version(const tpu_device_t* device);

typedef struct tpu_memory_stats_t {
  int64_t bytes_in_use;  // live buffers
  int64_t bytes_peak;
  int64_t bytes_limit;
  int64_t bytes_total;  // ever allocated
  int64_t buffers_in_use;
  int64_t buffers_peak;
  int64_t buffers_total;
} tpu_memory_stats_t;
/* Bytes in use and their peak are the device's own where it tells: a TPU counts whole tiles. */
void tpu_device_memory_stats(tpu_device_t* device, tpu_memory_stats_t* out_stats);
void tpu_device_memory_reset_peak(tpu_device_t* device);
/* Refuses buffers above this share, from 0 to 1, of bytes_limit; where the limit is unknown it has
 * no effect. What lives already stays. INVALID_ARGUMENT for other numbers. */
TPU_MUST_USE tpu_status_t tpu_device_set_memory_share(tpu_device_t* device, double share);

/* Buffer from dense row-major host memory, always copied before this returns. `meta` gives dtype
 * and sizes; strides are ignored. */
TPU_MUST_USE tpu_status_t tpu_buffer_from_host(tpu_device_t* device, const void* data,
                                               tpu_dtype_t dtype, int rank, const int64_t* sizes,
                                               tpu_buffer_t** out_buffer);

/* Waits for the buffer and copies `size` bytes, starting at byte `offset` of its dense row-major
 * content, to `dst`. On host-addressable platforms this is a memcpy. */
TPU_MUST_USE tpu_status_t tpu_buffer_read(tpu_buffer_t* buffer, int64_t offset, void* dst,
                                          int64_t size);

/* Waits until the content is there; returns the error of the program that made it. */
TPU_MUST_USE tpu_status_t tpu_buffer_await(tpu_buffer_t* buffer);

/* The same, but asks `stop` (may be NULL) every 100 ms and gives up with TPU_CANCELLED when that
 * says so. The content comes nevertheless. */
typedef bool (*tpu_stop_t)(void);
#define TPU_STOP_EVERY_NS 100000000
TPU_MUST_USE tpu_status_t tpu_buffer_await_unless(tpu_buffer_t* buffer, tpu_stop_t stop);
/* Waits for the runs that began before this, and gives the first error of one that nobody was told;
 * `stop` as above. At once where a run has ended when it was started (the CPU platform). */
TPU_MUST_USE tpu_status_t tpu_device_await_runs(tpu_device_t* device, tpu_stop_t stop);
/* Asks `stop`: TPU_CANCELLED if the wait is to end, else NULL. */
TPU_MUST_USE tpu_status_t tpu_stop_ask(tpu_stop_t stop);

/* Host pointer to the content on host-addressable platforms (after an await); else
 * TPU_UNIMPLEMENTED. Valid while a reference to the buffer is held. */
TPU_MUST_USE tpu_status_t tpu_buffer_host_pointer(tpu_buffer_t* buffer, void** out_pointer);

int64_t tpu_buffer_bytes(const tpu_buffer_t* buffer);
/* False once the content was donated to a program. */
bool tpu_buffer_has_content(const tpu_buffer_t* buffer);
/* Number of the program's run that makes the content: runs of a device are counted from 1, in the
 * order in which they begin. 0: it came from the host. */
uint64_t tpu_buffer_run(const tpu_buffer_t* buffer);
/* Gives the content up, for a buffer that others may still hold. */
void tpu_buffer_drop(tpu_buffer_t* buffer);
/* A number of the caller's, for its reports; 0 in a new buffer. */
void tpu_buffer_set_origin(tpu_buffer_t* buffer, uint32_t origin);
uint32_t tpu_buffer_origin(const tpu_buffer_t* buffer);
void tpu_buffer_retain(tpu_buffer_t* buffer);
void tpu_buffer_release(tpu_buffer_t* buffer);

/* --- host functions: work on buffers without a program --- */

/* Memory of the caller that becomes a buffer's content: dense row-major, at a multiple of 64 bytes
 * if programs are to use it without a copy, not NULL. */
typedef struct tpu_host_block_t {
  void* data;
  void* owner;                   // what keeps the memory; not NULL
  void (*release)(void* owner);  // called once nobody uses the memory, on any thread
} tpu_host_block_t;

/* A buffer's content, borrowed for the call. */
typedef struct tpu_host_input_t {
  void* data;
  void* owner;  // of the block that it came as; NULL: it came from a program or the host
  bool given;   // nobody reads it afterwards, and it has an owner: may be written, and its owner be
                // one of a result too (with a reference of its own)
} tpu_host_input_t;

/* Fills one block per output; on failure none. */
typedef tpu_status_t (*tpu_host_function_t)(void* context, const tpu_host_input_t* inputs,
                                            tpu_host_block_t* out_blocks);

/* Runs a function on this thread, like a program: inputs are borrowed and waited for, donated ones
 * are gone after success, outputs are new references on success and all NULL on failure.
 * `output_metas[i]` gives output i's dtype and sizes. Where buffers are not host memory, the
 * function gets copies of the inputs, none given away, and its results are copied back. */
TPU_MUST_USE tpu_status_t tpu_device_run_host(tpu_device_t* device, tpu_host_function_t function,
                                              void* context, int input_count,
                                              tpu_buffer_t* const* inputs, const uint8_t* donated,
                                              int output_count, const tpu_meta_id_t* output_metas,
                                              tpu_buffer_t** out_outputs);

/* A compiled program on a device. */
typedef struct tpu_executable_t tpu_executable_t;

/* Compiles StableHLO text with serialized CompileOptionsProto bytes. */
TPU_MUST_USE tpu_status_t tpu_executable_compile(tpu_device_t* device, const char* text,
                                                 size_t text_size, const void* options,
                                                 size_t options_size,
                                                 tpu_executable_t** out_executable);
/* The plugin's own serialized form; free `*out_bytes` with tpu_free. */
TPU_MUST_USE tpu_status_t tpu_executable_serialize(tpu_executable_t* executable, void** out_bytes,
                                                   size_t* out_size);
TPU_MUST_USE tpu_status_t tpu_executable_deserialize(tpu_device_t* device, const void* bytes,
                                                     size_t size, const void* options,
                                                     size_t options_size,
                                                     tpu_executable_t** out_executable);
int tpu_executable_output_count(const tpu_executable_t* executable);
/* What a run allocates besides its outputs, as the plugin reports it; 0 if it does not. */
int64_t tpu_executable_temporary_bytes(const tpu_executable_t* executable);
/* What the program itself takes, an estimate where the plugin does not say. */
int64_t tpu_executable_code_bytes(const tpu_executable_t* executable);
/* The sum over all executables of the device that are alive. */
int64_t tpu_device_code_bytes(const tpu_device_t* device);
/* True while somebody besides the caller holds a reference. */
bool tpu_executable_is_shared(const tpu_executable_t* executable);
void tpu_executable_retain(tpu_executable_t* executable);
void tpu_executable_release(tpu_executable_t* executable);

/* Runs a program. `inputs[i]` is borrowed. `donated[i]` says that the caller gives the content of
 * input i away: allowed only when the program marks that argument as aliased or donor; arguments it
 * marks but the caller keeps are passed as non-donatable. A donated buffer's content is gone after
 * success; releasing it stays the caller's work. `out_outputs` holds output_count entries, each a
 * new reference on success and all NULL on failure.
 *
 * What would not fit (outputs, temporaries, and what is in use) is refused with
 * TPU_RESOURCE_EXHAUSTED before the plugin sees it, so that nothing is consumed. A plugin that
 * fails a run by itself may have consumed what was donated: once one has for want of memory, runs
 * that need as much keep their donations until they succeeded, if there is room for both.
 * `output_bytes[i]` is what output i counts in
 * the byte accounting (dense bytes of its shape). `donatable[i]`: the program may alias argument i
 * (donated[i] implies donatable[i]). */
TPU_MUST_USE tpu_status_t tpu_executable_run(tpu_executable_t* executable, int input_count,
                                             tpu_buffer_t* const* inputs, const uint8_t* donatable,
                                             const uint8_t* donated, const int64_t* output_bytes,
                                             tpu_buffer_t** out_outputs);

/* --- host calls: functions of this process that programs on the CPU platform can call --- */

/* An XLA FFI handler; the structs are in pjrt/ffi_abi.h. */
struct ffi_error_t;
struct ffi_call_t;
typedef struct ffi_error_t* (*tpu_host_handler_t)(struct ffi_call_t* call);

/* Makes `handler` the target of custom calls to `name` in programs compiled or loaded from now on,
 * in every device of this plugin. TPU_UNIMPLEMENTED on platforms or plugins without FFI. */
TPU_MUST_USE tpu_status_t tpu_device_register_host_call(tpu_device_t* device, const char* name,
                                                        tpu_host_handler_t handler);
/* Whether programs may call the kernels of host/. False until host/ has registered all of them. */
void tpu_device_set_host_calls(tpu_device_t* device, bool available);
bool tpu_device_has_host_calls(const tpu_device_t* device);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_DEVICE_DEVICE_H_
