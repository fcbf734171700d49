/* What the checks in programs found (lower/check.h), from the run to the user. */
#ifndef TPU_ENGINE_FLAGS_H_
#define TPU_ENGINE_FLAGS_H_

#include "engine/state.h"

/* The job has run: its flags are looked at when somebody waits. Takes them. */
void tpui_flags_watch(tpu_engine_t* engine, tpu_job_t* job);
/* Waits for the flags of runs up to `last_run` and gives the first error, once. The lock is given
 * up meanwhile. */
TPU_MUST_USE tpu_status_t tpui_flags_look(tpu_engine_t* engine, uint64_t last_run);
/* Looks at the oldest when there are many, for programs that never wait; an error then pends. */
void tpui_flags_bound(tpu_engine_t* engine);
void tpui_flags_free(tpu_engine_t* engine);

#endif  // TPU_ENGINE_FLAGS_H_
