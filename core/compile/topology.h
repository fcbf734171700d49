/* Compiling for a device that is not there: what a plugin says of a program for a named target.
 *
 * libtpu compiles for any TPU on any Linux machine. Nothing here makes a client or can run.
 */
#ifndef TPU_COMPILE_TOPOLOGY_H_
#define TPU_COMPILE_TOPOLOGY_H_

#include "base/strbuf.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes on the target's device, as its compiler counts them: in whole tiles. */
typedef struct tpu_program_bytes_t {
  int64_t code;
  int64_t arguments;
  int64_t outputs;
  int64_t aliased;  // of the outputs, those that are written into arguments
  int64_t temporaries;
  int64_t peak;
} tpu_program_bytes_t;

/* What one run takes, as its compiler estimates it; -1 where it does not say. */
typedef struct tpu_program_cost_t {
  double flops;  // multiplications and additions, each once whatever the precision
  double bytes;  // read from and written to the device's memory
  double transcendentals;
} tpu_program_cost_t;

/* What a program became. Zeroed memory is an empty one. */
typedef struct tpu_compiled_t {
  tpu_program_bytes_t bytes;
  tpu_program_cost_t cost;
  tpu_strbuf_t optimized;  // owned; serialized HloModuleProtoWithConfig, if it was wanted
} tpu_compiled_t;

/* Compiles StableHLO text for one device of `target`, a name of the plugin's such as "v5e:1x1".
 * Errors are the plugin's: what does not compile, or does not fit (TPU_RESOURCE_EXHAUSTED). The
 * plugin stays loaded. `out_compiled` is to be freed with tpu_compiled_free, also on failure. */
TPU_MUST_USE tpu_status_t tpu_topology_compile(const char* plugin_path,
                                               tpu_platform_kind_t platform, const char* target,
                                               const char* text, size_t text_size,
                                               bool wants_optimized, tpu_compiled_t* out_compiled);
void tpu_compiled_free(tpu_compiled_t* compiled);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_COMPILE_TOPOLOGY_H_
