/* The eager modes: their names, and the one that a process begins with. Needs no engine. */
#ifndef TPU_ENGINE_MODE_H_
#define TPU_ENGINE_MODE_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tpu_eager_mode_t {
  TPU_MODE_DEBUG,   // flush after each record, wait
  TPU_MODE_STRICT,  // flush after each record
  TPU_MODE_FUSED,   // record until something is needed
} tpu_eager_mode_t;

/* The mode with this name: "debug", "strict" or "fused", or the published one, in any case.
 * TPU_INVALID_ARGUMENT for any other text, with the accepted words. */
TPU_MUST_USE tpu_status_t tpu_eager_mode_parse(const char* text, tpu_eager_mode_t* out_mode);

/* The mode of a process that has chosen none: Debug if TPU_LAUNCH_BLOCKING, else
 * TORCH_TPU_EAGER_MODE if it is set, else what TORCH_TPU_DEFER_AND_FUSE says.
 * TPU_INVALID_ARGUMENT when TORCH_TPU_EAGER_MODE names no mode, also where it would not count. */
TPU_MUST_USE tpu_status_t tpu_eager_mode_default(tpu_eager_mode_t* out_mode);

/* Whether new windows may be interpreted (TORCH_TPU_TIERS). TPU_INVALID_ARGUMENT for a word that is
 * neither "interpreted" nor "compiled". */
TPU_MUST_USE tpu_status_t tpu_tiers_default(bool* out_interpreted);

/* The published name, such as "DEFER_NEVER"; NULL for a number that is no mode. */
const char* tpu_eager_mode_name(tpu_eager_mode_t mode);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_ENGINE_MODE_H_
