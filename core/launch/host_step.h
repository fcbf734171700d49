/* Host steps: a record that runs as a function of the core's user over host memory, in the place of
 * a program. The core does not know what the function does; the op table says what it has to.
 */
#ifndef TPU_LAUNCH_HOST_STEP_H_
#define TPU_LAUNCH_HOST_STEP_H_

#include "partition/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One record with its content, as the function sees it; all borrowed. */
typedef struct tpu_host_op_t {
  const tpu_record_t* record;  // results' metadata are record->results
  const tpu_slot_t* slots;     // of the window; see tpu_record_slots
  // [operand_count] the value behind a WINDOW or EXTERNAL operand: dense row-major elements of
  // `value_metas[k]`, which the operand reads through its view. NULL and 0 for others.
  const tpu_host_input_t* const* operands;
  const tpu_meta_id_t* value_metas;
} tpu_host_op_t;

/* What the user of the core sets. */
typedef struct tpu_host_ops_t {
  /* What `run` needs to know about such records, or NULL: there is no host form. It lives forever;
   * equal records give equal answers. Called with the engine's lock. */
  void* (*prepare)(const tpu_record_t* record);
  /* Whether new windows may be interpreted just now. Called like prepare. */
  bool (*allowed)(void);
  /* Fills one block per result, in the order of the record: elements of its metadata's dtype, dense
   * row-major in its sizes. On any thread; must not touch the engine. */
  tpu_status_t (*run)(void* prepared, const tpu_host_op_t* op, tpu_host_block_t* out_blocks);
} tpu_host_ops_t;

typedef struct tpu_host_step_t tpu_host_step_t;

/* The step of a program with one record, whose window must outlive it; none if the record has no
 * host form. One allocation, free with tpu_free. */
TPU_MUST_USE tpu_status_t tpu_host_step_make(const tpu_host_ops_t* ops,
                                             const tpu_program_t* program,
                                             tpu_host_step_t** out_step);

/* Runs it: buffers as for tpu_device_run_host, inputs in the program's order, `outputs` in the
 * order of its outputs. `donated` NULL: nothing is given away. */
TPU_MUST_USE tpu_status_t tpu_host_step_run(const tpu_host_step_t* step, tpu_device_t* device,
                                            const tpu_slot_t* slots, tpu_buffer_t* const* inputs,
                                            const uint8_t* donated, tpu_buffer_t** outputs);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_LAUNCH_HOST_STEP_H_
