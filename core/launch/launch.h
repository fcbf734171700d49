/* Launch: runs a planned window. Gathers buffers, fills packed scalars, executes programs in order
 * and hands buffers to values.
 *
 * A job is prepared and finished under the engine lock; running it needs no lock, since the buffers
 * of external values do not change while the job holds the values.
 */
#ifndef TPU_LAUNCH_LAUNCH_H_
#define TPU_LAUNCH_LAUNCH_H_

#include "launch/step.h"
#include "trace/value.h"

typedef struct tpu_job_t {
  tpu_device_t* device;
  uint64_t serial;  // never reused
  const tpu_step_t* steps;
  uint32_t step_count;
  tpu_value_t** externals;       // READY or FAILED by the time the job runs; held by its owner
  const uint8_t* external_dead;  // nobody but the job holds it: its content may be taken
  uint32_t external_count;
  uint32_t value_count;
  tpu_buffer_t** buffers;  // [value_count] results so far; NULL before and after failures
  const tpu_slot_t* slots;
  int64_t launches;     // out: programs executed
  tpu_status_t error;   // out: the first failure; owned
  uint64_t failed_job;  // in: serial; out: the job whose failure it is, which an external may bring
} tpu_job_t;

/* Runs all steps. Steps whose inputs failed are skipped. Failures are left in job->error. */
void tpu_job_run(tpu_job_t* job);

#endif  // TPU_LAUNCH_LAUNCH_H_
