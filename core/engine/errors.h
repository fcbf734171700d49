/* The error of a job that nobody has been told about. */
#ifndef TPU_ENGINE_ERRORS_H_
#define TPU_ENGINE_ERRORS_H_

#include "engine/state.h"

/* A job failed: its error (taken) is told at the next sync, unless an earlier one waits. */
void tpui_keep_pending(tpu_engine_t* engine, tpu_status_t error, uint64_t job);
/* The pending error, for the caller to tell; NULL when there is none. */
TPU_MUST_USE tpu_status_t tpui_take_pending(tpu_engine_t* engine);
/* The caller hands this FAILED value's error to the user: the next sync must not tell it again. */
void tpui_told_of(tpu_engine_t* engine, uint64_t job);
void tpui_told(tpu_engine_t* engine, const tpu_value_t* value);

#endif  // TPU_ENGINE_ERRORS_H_
