/* Steps: the programs of a planned window, ready to run. */
#ifndef TPU_LAUNCH_STEP_H_
#define TPU_LAUNCH_STEP_H_

#include "launch/host_step.h"
#include "lower/lower.h"

typedef struct tpu_step_t {
  tpu_executable_t* executable;  // one reference; NULL when it could not be compiled
  tpu_host_step_t* host;         // owned; runs in the executable's place
  tpu_status_t error;            // why there is neither; owned
  tpu_op_t op;                   // first op, for error texts
  uint32_t record;               // the same, in the window
  uint32_t record_count;
  uint32_t* records;  // of the window, in the order in which they are computed
  uint32_t input_count;
  uint32_t* inputs;    // references
  uint8_t* donatable;  // [input_count + 2] the program may take the content; packed numbers: 0
  uint32_t output_count;
  uint32_t* outputs;      // window value numbers
  tpu_op_t* output_ops;   // that made them, for reports
  int64_t* output_bytes;  // [output_count], and those of the checks
  tpu_packed_t packed;    // its last arguments; owned
  tpu_checks_t* checks;   // what its last result, behind the outputs, says; a reference or NULL
  uint32_t release_count;
  uint32_t* releases;  // window values that no later step reads and nobody else holds
  void* memory;        // of the arrays above
} tpu_step_t;

/* What runs a step. */
typedef struct tpu_step_runner_t {
  tpu_executable_t* executable;
  tpu_host_step_t* host;  // in the executable's place
  tpu_status_t error;     // why there is neither
} tpu_step_runner_t;
/* The step of a program. Takes what runs it and what is in `lowered` but its text, also when it
 * fails. It releases nothing yet: see tpu_steps_plan_releases. */
TPU_MUST_USE tpu_status_t tpu_step_make(const tpu_program_t* program, tpu_lowered_t* lowered,
                                        const tpu_step_runner_t* runner, tpu_step_t* out_step);
/* Frees what the step owns; zeroes are fine. */
void tpu_step_free(tpu_step_t* step);

/* Lets each of a window's steps, in order, give back the values that nobody needs after it.
 * `live[v]` [value_count]: value v is needed after the window. */
TPU_MUST_USE tpu_status_t tpu_steps_plan_releases(tpu_step_t* steps, uint32_t count,
                                                  const uint8_t* live, uint32_t value_count);

#endif  // TPU_LAUNCH_STEP_H_
