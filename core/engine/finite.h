/* Debug mode's search for the op that turns finite numbers into NaN or infinity. */
#ifndef TPU_ENGINE_FINITE_H_
#define TPU_ENGINE_FINITE_H_

#include "launch/launch.h"

/* True when all numbers that the job reads are finite; to be asked before it runs. */
bool tpui_inputs_finite(const tpu_window_t* window, const tpu_job_t* job);
/* The error that names the op behind the first result with NaN or infinity. */
TPU_MUST_USE tpu_status_t tpui_outputs_finite(const tpu_window_t* window, const tpu_job_t* job);

#endif  // TPU_ENGINE_FINITE_H_
