#include "engine/mode.h"

#include <string.h>
#include <strings.h>

#include "base/env.h"

enum { MODE_COUNT = TPU_MODE_FUSED + 1 };

// What a mode is called here, and by the published product.
static const struct {
  const char* word;
  const char* published;
} names[MODE_COUNT] = {
    [TPU_MODE_DEBUG] = {"debug", "DEFER_NEVER_AND_LAUNCH_BLOCKING"},
    [TPU_MODE_STRICT] = {"strict", "DEFER_NEVER"},
    [TPU_MODE_FUSED] = {"fused", "DEFER_AND_FUSE"},
};

tpu_status_t tpu_eager_mode_parse(const char* text, tpu_eager_mode_t* out_mode) {
  *out_mode = TPU_MODE_FUSED;
  for (int mode = 0; mode < MODE_COUNT; ++mode) {
    if (strcasecmp(text, names[mode].word) == 0 || strcasecmp(text, names[mode].published) == 0) {
      *out_mode = (tpu_eager_mode_t)mode;
      return NULL;
    }
  }
  return tpu_status_make(TPU_INVALID_ARGUMENT,
                         "'%s' is no eager mode: use %s (%s), %s (%s) or %s (%s)", text,
                         names[0].word, names[0].published, names[1].word, names[1].published,
                         names[2].word, names[2].published);
}

tpu_status_t tpu_eager_mode_default(tpu_eager_mode_t* out_mode) {
  *out_mode = tpu_env_bool(TPU_ENV_DEFER_AND_FUSE) ? TPU_MODE_FUSED : TPU_MODE_STRICT;
  if (strcmp(tpu_env_source(TPU_ENV_EAGER_MODE), "default") != 0) {
    TPU_RETURN_IF_ERROR(
        tpu_status_annotate(tpu_eager_mode_parse(tpu_env_text(TPU_ENV_EAGER_MODE), out_mode), "%s",
                            tpu_env_name(TPU_ENV_EAGER_MODE)));
  }
  if (tpu_env_bool(TPU_ENV_LAUNCH_BLOCKING)) *out_mode = TPU_MODE_DEBUG;
  return NULL;
}

tpu_status_t tpu_tiers_default(bool* out_interpreted) {
  const char* text = tpu_env_text(TPU_ENV_TIERS);
  *out_interpreted = strcasecmp(text, "interpreted") == 0;
  if (*out_interpreted || strcasecmp(text, "compiled") == 0) return NULL;
  return tpu_status_make(TPU_INVALID_ARGUMENT, "%s='%s': use interpreted or compiled",
                         tpu_env_name(TPU_ENV_TIERS), text);
}

const char* tpu_eager_mode_name(tpu_eager_mode_t mode) {
  return (unsigned)mode < MODE_COUNT ? names[mode].published : NULL;
}
