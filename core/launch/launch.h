/* Launch: runs a planned window. Gathers buffers, fills packed scalars, executes programs in order
 * and hands buffers to values.
 *
 * A job is prepared and finished under the engine lock; running it needs no lock, since the buffers
 * of external values do not change while the job holds the values.
 */
#ifndef TPU_LAUNCH_LAUNCH_H_
#define TPU_LAUNCH_LAUNCH_H_

#include "launch/step.h"
#include "trace/location.h"
#include "trace/value.h"

/* What the checks of one program found, until somebody looks (tpu_flag_look). */
typedef struct tpu_flag_t {
  tpu_buffer_t* buffer;       // I64[checks->count]; owned
  tpu_checks_t* checks;       // one reference
  tpu_location_t* locations;  // [checks->count] of the ops that check; owned, or NULL
  uint64_t job;               // serial
} tpu_flag_t;

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
  const tpu_location_t* locations;  // of the window's records; NULL: not noted
  tpu_flag_t* flags;  // out: of the steps with checks that ran, in order; each to be dropped
  size_t flag_count, flag_capacity;
  uint32_t next_step;  // in and out: the step to run next
  // [value_count], [external_count] content that must be neither given away nor released, since
  // something may have to go back to it. NULL until a step has failed.
  const uint8_t *held_values, *held_externals;
  int64_t launches;     // out: programs executed
  tpu_status_t error;   // out: the first failure; owned
  uint64_t failed_job;  // in: serial; out: the job whose failure it is, which an external may bring
} tpu_job_t;

/* Runs the steps that are left, in order. False when `next_step` did not run: `*out_error` says
 * why, or is NULL when an input is missing. The caller deals with it and goes on behind it. */
bool tpu_job_run(tpu_job_t* job, tpu_status_t* out_error);

typedef enum tpu_job_donate_t {
  TPU_JOB_DONATE,   // gives away what nobody needs afterwards
  TPU_JOB_PRESERVE  // the same, but only once the step has succeeded, which takes more memory
} tpu_job_donate_t;
/* Runs one step, of the job's window but not necessarily one of its own. `*out_ran` is false when
 * it failed (the status says why), or when an input is missing: the failure of an external value
 * then becomes the job's. */
TPU_MUST_USE tpu_status_t tpu_job_run_step(tpu_job_t* job, const tpu_step_t* step,
                                           tpu_job_donate_t donate, bool* out_ran);
/* Takes the error of a step: the job's, if it is the first. */
void tpu_job_keep_error(tpu_job_t* job, const tpu_step_t* step, tpu_status_t error);
/* The content behind an input of a step; NULL when it failed or is gone. */
tpu_buffer_t* tpu_job_input(const tpu_job_t* job, uint32_t ref);

/* Waits for what the checks found and gives the error of the first that is not in order, or the
 * error of the program itself. */
TPU_MUST_USE tpu_status_t tpu_flag_look(const tpu_flag_t* flag);
void tpu_flag_drop(tpu_flag_t* flag);

#endif  // TPU_LAUNCH_LAUNCH_H_
