/* The environment table: every switch the product reads stands in env_table.def and nowhere else.
 *
 * Values are read on first use and kept; tpu_env_override replaces one for the process (Python
 * beats the environment). A value that cannot be parsed is reported once on stderr and the default
 * holds.
 */
#ifndef TPU_BASE_ENV_H_
#define TPU_BASE_ENV_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tpu_env_t {
#define TPU_ENV(id, name, kind, default_text, doc) TPU_ENV_##id,
#include "base/env_table.def"
#undef TPU_ENV
  TPU_ENV_COUNT
} tpu_env_t;

/* Text value or the default; NULL only when the default is "" and nothing is set. */
const char* tpu_env_text(tpu_env_t id);
/* For kind INT: decimal, with optional suffix K, M or G (powers of 1024). */
int64_t tpu_env_int(tpu_env_t id);
/* For kind BOOL: 1/0, true/false, on/off, yes/no, any case. */
bool tpu_env_bool(tpu_env_t id);

/* Replaces a value for this process; NULL goes back to the environment. Unparsable text gives
 * TPU_INVALID_ARGUMENT and changes nothing. */
TPU_MUST_USE tpu_status_t tpu_env_override(tpu_env_t id, const char* text);

/* The row with this variable name, or TPU_ENV_COUNT. */
tpu_env_t tpu_env_find(const char* name);
/* Where the effective value comes from: "default", "environment" or "override". */
const char* tpu_env_source(tpu_env_t id);
const char* tpu_env_name(tpu_env_t id);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_ENV_H_
