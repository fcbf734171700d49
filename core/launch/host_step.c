#include "launch/host_step.h"

#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"

#define NO_INPUT UINT32_MAX
#define INLINE_OPERANDS 24

struct tpu_host_step_t {
  const tpu_host_ops_t* ops;
  void* prepared;
  tpu_record_t record;
  uint32_t input_count, output_count;
  uint32_t* operand_inputs;     // [operand_count] the program's input, or NO_INPUT
  tpu_meta_id_t* value_metas;   // [operand_count]
  uint8_t* once;                // [input_count] one operand only reads it
  uint32_t* output_results;     // [output_count] result of the record
  tpu_meta_id_t* output_metas;  // [output_count]
};

static uint32_t input_of(const tpu_program_t* program, uint32_t ref) {
  for (uint32_t i = 0; i < program->input_count; ++i) {
    if (program->inputs[i].ref == ref) return i;
  }
  return NO_INPUT;
}

static void fill_step(const tpu_program_t* program, tpu_host_step_t* step) {
  const tpu_record_t* r = &step->record;
  memset(step->once, 0, program->input_count);
  for (int k = 0; k < r->operand_count; ++k) {
    uint32_t ref = tpu_record_ref(r, k) & ~TPU_REF_VIEW_BIT, kind = tpu_ref_kind(ref);
    bool is_value = kind == TPU_REF_WINDOW || kind == TPU_REF_EXTERNAL;
    uint32_t input = is_value ? input_of(program, ref) : NO_INPUT;
    step->operand_inputs[k] = input;
    step->value_metas[k] = is_value ? tpu_window_ref_meta(program->window, ref) : 0;
    if (input == NO_INPUT) continue;
    bool again = false;
    for (int j = 0; j < k; ++j) again |= step->operand_inputs[j] == input;
    step->once[input] = !again;
  }
  for (uint32_t i = 0; i < program->output_count; ++i) {
    step->output_results[i] = program->outputs[i] - r->first_value;
    step->output_metas[i] = r->results[step->output_results[i]];
  }
}

tpu_status_t tpu_host_step_make(const tpu_host_ops_t* ops, const tpu_program_t* program,
                                tpu_host_step_t** out_step) {
  *out_step = NULL;
  tpu_record_t record;
  tpu_window_record(program->window, program->records[0], &record);
  void* prepared = ops->prepare(&record);
  if (prepared == NULL) return NULL;
  size_t operands = (size_t)record.operand_count;
  tpu_host_step_t *step = NULL, made = {.ops = ops,
                                        .prepared = prepared,
                                        .record = record,
                                        .input_count = program->input_count,
                                        .output_count = program->output_count};
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, step, 1);
  TPU_LAYOUT_ADD(&layout, made.operand_inputs, operands);
  TPU_LAYOUT_ADD(&layout, made.value_metas, operands);
  TPU_LAYOUT_ADD(&layout, made.output_results, program->output_count);
  TPU_LAYOUT_ADD(&layout, made.output_metas, program->output_count);
  TPU_LAYOUT_ADD(&layout, made.once, program->input_count);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  *step = made;
  fill_step(program, step);
  *out_step = step;
  return NULL;
}

/* What a run adds to the step. */
typedef struct running_t {
  const tpu_host_step_t* step;
  const tpu_slot_t* slots;
  const tpu_host_input_t** operands;  // [operand_count]
  tpu_host_block_t* results;          // [result_count]
} running_t;

/* Hands over the blocks of results that are outputs, and gives back those nobody wants. */
static void hand_over(const running_t* r, tpu_host_block_t* out_blocks) {
  const tpu_host_step_t* step = r->step;
  for (uint32_t i = 0; i < step->output_count; ++i) {
    out_blocks[i] = r->results[step->output_results[i]];
    r->results[step->output_results[i]].owner = NULL;
  }
  for (int k = 0; k < step->record.result_count; ++k) {
    if (r->results[k].owner != NULL) r->results[k].release(r->results[k].owner);
  }
}

static tpu_status_t call_user(void* context, const tpu_host_input_t* inputs,
                              tpu_host_block_t* out_blocks) {
  running_t* r = context;
  const tpu_host_step_t* step = r->step;
  for (int k = 0; k < step->record.operand_count; ++k) {
    uint32_t input = step->operand_inputs[k];
    r->operands[k] = input == NO_INPUT ? NULL : &inputs[input];
  }
  tpu_host_op_t op = {.record = &step->record,
                      .slots = r->slots,
                      .operands = r->operands,
                      .value_metas = step->value_metas};
  TPU_RETURN_IF_ERROR(step->ops->run(step->prepared, &op, r->results));
  hand_over(r, out_blocks);
  return NULL;
}

tpu_status_t tpu_host_step_run(const tpu_host_step_t* step, tpu_device_t* device,
                               const tpu_slot_t* slots, tpu_buffer_t* const* inputs,
                               const uint8_t* donated, tpu_buffer_t** outputs) {
  const tpu_host_input_t* inline_operands[INLINE_OPERANDS];
  tpu_host_block_t inline_results[INLINE_OPERANDS];
  uint8_t inline_given[INLINE_OPERANDS], *given = inline_given;
  running_t r = {
      .step = step, .slots = slots, .operands = inline_operands, .results = inline_results};
  size_t operands = (size_t)step->record.operand_count;
  size_t results = (size_t)step->record.result_count;
  void* memory = NULL;
  if (operands > INLINE_OPERANDS || results > INLINE_OPERANDS) {
    tpu_layout_t layout;
    tpu_layout_init(&layout);
    TPU_LAYOUT_ADD(&layout, r.operands, operands);
    TPU_LAYOUT_ADD(&layout, r.results, results);
    TPU_LAYOUT_ADD(&layout, given, operands);
    TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  }
  for (uint32_t i = 0; i < step->input_count; ++i)
    given[i] = donated != NULL && donated[i] && step->once[i];
  tpu_status_t status =
      tpu_device_run_host(device, call_user, &r, (int)step->input_count, inputs, given,
                          (int)step->output_count, step->output_metas, outputs);
  tpu_free(memory);
  return status;
}
