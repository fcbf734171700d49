/* Launch: runs a planned window. Gathers buffers, fills packed scalars, executes programs in order
 * and hands buffers to values.
 *
 * A job is prepared and finished under the engine lock; running it needs no lock, since the buffers
 * of external values do not change while the job holds the values.
 */
#ifndef TPU_LAUNCH_LAUNCH_H_
#define TPU_LAUNCH_LAUNCH_H_

#include "lower/lower.h"
#include "trace/value.h"

/* One program of a plan, ready to run. Arrays are owned by the plan. */
typedef struct tpu_step_t {
  tpu_executable_t* executable;  // one reference; NULL when it could not be compiled
  tpu_status_t error;            // why not; owned
  tpu_op_t op;                   // first op, for error texts
  uint32_t record_count;
  uint32_t input_count;
  uint32_t* inputs;    // references
  uint8_t* donatable;  // [input_count + packed] the program may take the content
  uint32_t output_count;
  uint32_t* outputs;  // window value numbers
  int64_t* output_bytes;
  tpu_packed_t packed;  // its last arguments; owned
  uint32_t release_count;
  uint32_t* releases;  // window values that no later step reads and nobody else holds
} tpu_step_t;

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
