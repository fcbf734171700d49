/* Making a variant: partition -> lower -> compile, for one window. */
#include "engine/plan.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"

/* Programs at or below both bounds are compiled quickly rather than well. */
#define SMALL_RECORDS 4
#define SMALL_ELEMENTS 65536

typedef struct maker_t {
  const tpui_planner_t* planner;
  tpu_window_t window;  // the plan's, with this window's slots
  tpui_variant_t* variant;
  const uint8_t* external_dead;
  uint32_t* last_step;  // [value_count] last step that reads or makes it; UINT32_MAX: none
} maker_t;

/* Numbers that a program is worth specialising for: they let XLA drop or simplify work. */
static bool is_plain(double number) {
  return !isfinite(number) ||
         (number >= -8 && number <= 8 && number * 2 == (double)(int)(number * 2));
}

/* Seed and offset: the last two operands of ops that draw random numbers. */
static bool is_random_state(const tpu_record_t* r, int k) {
  return (tpu_op_info(r->op)->flags & TPU_OP_RANDOM) && k >= r->operand_count - 2;
}

/* What is an argument from the start: the state of random numbers changes with every call; a float
 * such as 0.0003 gains nothing from being a constant, and is often a learning rate. */
static bool starts_dynamic(const tpu_record_t* r, int k, tpu_slot_t number) {
  uint32_t ref = tpu_record_ref(r, k);
  if (tpu_ref_kind(ref) != TPU_REF_SCALAR) return false;
  if (is_random_state(r, k)) return true;
  return tpu_dtype_is_float(tpu_ref_scalar_dtype(ref)) && !is_plain(number.as_double);
}

static void mark_dynamic(const tpu_window_t* w, const tpu_slot_t* slots, uint8_t* dynamic) {
  for (uint32_t i = 0; i < w->record_count; ++i) {
    tpu_record_t r;
    tpu_window_record(w, i, &r);
    for (tpu_slot_walk_t at = tpu_record_slots(&r); tpu_record_next_slot(&r, &at);) {
      dynamic[at.slot] |= starts_dynamic(&r, at.operand, slots[at.slot]);
    }
  }
}

/* Numbers that differ from those of earlier variants become arguments. */
static void choose_dynamic(const tpui_plan_t* plan, const tpu_slot_t* slots, uint8_t* dynamic) {
  for (int i = 0; i < plan->variant_count; ++i) {
    const tpui_variant_t* old = plan->variants[i];
    for (uint32_t s = 0; s < plan->window.slot_count; ++s) {
      dynamic[s] |= old->slot_dynamic[s] | (old->slot_values[s].bits != slots[s].bits);
    }
  }
}

/* Numbers of a program become constants again, except those of random ops; true if some did. */
static bool fix_numbers(const tpu_window_t* w, const uint32_t* records, uint32_t count,
                        uint8_t* dynamic) {
  bool changed = false;
  for (uint32_t i = 0; i < count; ++i) {
    tpu_record_t r;
    tpu_window_record(w, records[i], &r);
    for (tpu_slot_walk_t at = tpu_record_slots(&r); tpu_record_next_slot(&r, &at);) {
      bool fixable = dynamic[at.slot] && !is_random_state(&r, at.operand);
      changed |= fixable;
      if (fixable) dynamic[at.slot] = 0;
    }
  }
  return changed;
}

/* Lowers a program; when it cannot do without a fixed number, fixes them and tries again. */
static tpu_status_t lower_program(maker_t* m, const tpu_program_t* program, tpu_lowered_t* out) {
  tpu_status_t status = tpu_lower_program(program, out);
  if (tpu_status_code(status) == TPU_UNIMPLEMENTED &&
      fix_numbers(&m->window, program->records, program->record_count, m->variant->slot_dynamic)) {
    tpu_status_free(status);
    status = tpu_lower_program(program, out);
  }
  return status;
}

static bool is_small(const tpu_window_t* w, const tpu_program_t* program) {
  if (program->record_count > SMALL_RECORDS) return false;
  for (uint32_t i = 0; i < program->record_count; ++i) {
    tpu_record_t r;
    tpu_window_record(w, program->records[i], &r);
    for (int k = 0; k < r.result_count; ++k) {
      if (tpu_meta_get(r.results[k])->numel > SMALL_ELEMENTS) return false;
    }
    for (int k = 0; k < r.operand_count; ++k) {
      tpu_meta_id_t meta = tpu_window_ref_meta(w, tpu_record_ref(&r, k));
      if (meta != 0 && tpu_meta_get(meta)->numel > SMALL_ELEMENTS) return false;
    }
  }
  return true;
}

static tpu_status_t fill_step(maker_t* m, const tpu_program_t* program, tpu_lowered_t* lowered,
                              tpu_step_t* step) {
  const tpu_window_t* w = &m->window;
  size_t inputs = program->input_count, outputs = program->output_count;
  TPU_RETURN_IF_ERROR(tpu_calloc(inputs + 1, sizeof(uint32_t), (void**)&step->inputs));
  TPU_RETURN_IF_ERROR(tpu_calloc(inputs + 2, 1, (void**)&step->donatable));
  TPU_RETURN_IF_ERROR(tpu_calloc(outputs + 1, sizeof(uint32_t), (void**)&step->outputs));
  TPU_RETURN_IF_ERROR(tpu_calloc(outputs + 1, sizeof(int64_t), (void**)&step->output_bytes));
  tpu_record_t first;
  tpu_window_record(w, program->records[0], &first);
  step->op = first.op;
  step->record_count = program->record_count;
  step->input_count = (uint32_t)inputs;
  step->output_count = (uint32_t)outputs;
  for (size_t i = 0; i < inputs; ++i) {
    step->inputs[i] = program->inputs[i].ref;
    step->donatable[i] = program->inputs[i].donatable;
  }
  for (size_t i = 0; i < outputs; ++i) {
    step->outputs[i] = program->outputs[i];
    step->output_bytes[i] = tpu_meta_bytes(tpu_meta_get(w->value_metas[program->outputs[i]]));
  }
  step->packed = lowered->packed;
  lowered->packed = (tpu_packed_t){0};
  return NULL;
}

/* The programs of a partition on their way to executables. */
typedef struct batch_t {
  tpu_partition_t* partition;
  tpu_lowered_t* lowered;           // [program_count] texts
  tpu_compile_request_t* requests;  // [program_count]
  tpu_step_t* steps;                // [program_count] the variant's
} batch_t;

static const char* first_op(const maker_t* m, const tpu_program_t* program) {
  tpu_record_t first;
  tpu_window_record(&m->window, program->records[0], &first);
  return tpu_op_info(first.op)->name;
}

/* Writes the text of program `p`. What is wrong with the program itself is left in its step. */
static tpu_status_t lower_step(maker_t* m, batch_t* batch, uint32_t p) {
  tpu_program_t* program = &batch->partition->programs[p];
  tpu_lowered_t* lowered = &batch->lowered[p];
  program->window = &m->window;
  program->slot_dynamic = m->variant->slot_dynamic;
  program->platform = m->planner->platform;
  program->host_calls = m->planner->host_calls;
  tpu_step_t* step = &batch->steps[m->variant->step_count++];
  step->error = tpu_status_annotate(lower_program(m, program, lowered), "%s", first_op(m, program));
  batch->requests[p] = (tpu_compile_request_t){
      .text = tpu_strbuf_text(&lowered->text),
      .text_size = step->error == NULL ? lowered->text.size : 0,
      .options = {.small = is_small(&m->window, program)},
  };
  return fill_step(m, program, lowered, step);
}

static tpu_status_t lower_steps(maker_t* m, batch_t* batch, bool keep_errors) {
  for (uint32_t p = 0; p < batch->partition->program_count; ++p) {
    TPU_RETURN_IF_ERROR(lower_step(m, batch, p));
    const tpu_step_t* step = &batch->steps[p];
    if (step->error != NULL && !keep_errors) return tpu_status_copy(step->error);
  }
  return NULL;
}

static tpu_status_t compile_steps(maker_t* m, batch_t* batch) {
  uint32_t count = batch->partition->program_count;
  TPU_RETURN_IF_ERROR(tpu_compiler_get_all(m->planner->compiler, count, batch->requests));
  for (uint32_t p = 0; p < count; ++p) {
    tpu_step_t* step = &batch->steps[p];
    step->executable = batch->requests[p].executable;
    tpu_status_t status = batch->requests[p].status;
    if (step->error != NULL) {  // there was no text to compile
      tpu_status_free(status);
    } else {
      step->error = tpu_status_annotate(status, "%s", first_op(m, &batch->partition->programs[p]));
    }
    m->variant->broken |= step->error != NULL;
  }
  return NULL;
}

static tpu_status_t first_error(tpui_variant_t* variant) {
  for (uint32_t s = 0; s < variant->step_count; ++s) {
    if (variant->steps[s].error != NULL) return tpu_status_copy(variant->steps[s].error);
  }
  return NULL;
}

/* Makes the steps of a partition. A failure is kept in the step when `keep_errors`. */
static tpu_status_t compile_all(maker_t* m, tpu_partition_t* partition, bool keep_errors) {
  uint32_t count = partition->program_count;
  batch_t batch = {.partition = partition};
  tpu_status_t status = tpu_calloc(count + 1, sizeof(tpu_step_t), (void**)&m->variant->steps);
  batch.steps = m->variant->steps;
  if (status == NULL) {
    status = tpu_calloc(count + 1, sizeof(*batch.lowered), (void**)&batch.lowered);
  }
  if (status == NULL) {
    status = tpu_calloc(count + 1, sizeof(*batch.requests), (void**)&batch.requests);
  }
  if (status == NULL) status = lower_steps(m, &batch, keep_errors);
  if (status == NULL) status = compile_steps(m, &batch);
  if (status == NULL && !keep_errors) status = first_error(m->variant);
  for (uint32_t p = 0; batch.lowered != NULL && p < count; ++p) {
    tpu_lowered_free(&batch.lowered[p]);
  }
  tpu_free(batch.lowered);
  tpu_free(batch.requests);
  return status;
}

/* Each step gives back the values that nobody needs after it. */
static tpu_status_t plan_releases(maker_t* m) {
  const tpu_window_t* w = &m->window;
  tpui_variant_t* variant = m->variant;
  memset(m->last_step, 0xff, w->value_count * sizeof(uint32_t));
  for (uint32_t s = 0; s < variant->step_count; ++s) {
    const tpu_step_t* step = &variant->steps[s];
    for (uint32_t i = 0; i < step->input_count; ++i) {
      if (tpu_ref_kind(step->inputs[i]) == TPU_REF_WINDOW) {
        m->last_step[tpu_ref_index(step->inputs[i])] = s;
      }
    }
    for (uint32_t i = 0; i < step->output_count; ++i) m->last_step[step->outputs[i]] = s;
  }
  for (uint32_t s = 0; s < variant->step_count; ++s) {
    tpu_step_t* step = &variant->steps[s];
    size_t room = step->input_count + step->output_count + 1;
    TPU_RETURN_IF_ERROR(tpu_calloc(room, sizeof(uint32_t), (void**)&step->releases));
    for (uint32_t i = 0; i < step->input_count + step->output_count; ++i) {
      bool input = i < step->input_count;
      uint32_t ref = input ? step->inputs[i] : step->outputs[i - step->input_count];
      if (input && tpu_ref_kind(ref) != TPU_REF_WINDOW) continue;
      uint32_t value = tpu_ref_index(ref);
      if (m->last_step[value] != s || variant->live[value]) continue;
      m->last_step[value] = UINT32_MAX;  // once is enough
      step->releases[step->release_count++] = value;
    }
  }
  return NULL;
}

static tpu_status_t fill_variant(maker_t* m) {
  tpu_partition_t partition;
  TPU_RETURN_IF_ERROR(tpu_partition(&m->window, m->variant->live, m->external_dead,
                                    m->planner->partition, &partition));
  tpu_status_t status = tpu_partition_share(&m->window, &partition, m->variant->slot_dynamic);
  if (status == NULL) status = compile_all(m, &partition, false);
  tpu_partition_free(&partition);
  return status;
}

/* One program per op, so that only the op that cannot be compiled fails; every result is kept and
 * no content is given away, so that what it would have overwritten can come back. */
static tpu_status_t fill_variant_singly(maker_t* m) {
  tpu_partition_t partition;
  tpu_partition_options_t options = *m->planner->partition;
  options.single = true;
  m->variant->single = true;
  memset(m->variant->live, 1, m->window.value_count);
  void* none_dead = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(m->window.external_count + 1, 1, &none_dead));
  tpu_status_t status =
      tpu_partition(&m->window, m->variant->live, none_dead, &options, &partition);
  if (status == NULL) status = compile_all(m, &partition, true);
  tpu_partition_free(&partition);
  tpu_free(none_dead);
  return status;
}

static tpu_status_t new_variant(const tpui_plan_t* plan, const tpu_slot_t* slots,
                                const uint8_t* live, tpui_variant_t** out_variant) {
  size_t n = plan->window.slot_count, v = plan->window.value_count;
  tpui_variant_t* variant = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(*variant), (void**)&variant));
  *out_variant = variant;
  TPU_RETURN_IF_ERROR(tpu_calloc(n + 1, 1, (void**)&variant->slot_dynamic));
  TPU_RETURN_IF_ERROR(tpu_calloc(n + 1, sizeof(tpu_slot_t), (void**)&variant->slot_values));
  TPU_RETURN_IF_ERROR(tpu_calloc(v + 1, 1, (void**)&variant->live));
  if (n > 0) memcpy(variant->slot_values, slots, n * sizeof(tpu_slot_t));
  memcpy(variant->live, live, v);
  choose_dynamic(plan, slots, variant->slot_dynamic);
  mark_dynamic(&plan->window, slots, variant->slot_dynamic);
  for (int i = 0; i < plan->variant_count; ++i) {
    if (plan->variants[i]->single) continue;  // it keeps everything
    for (size_t k = 0; k < v; ++k) variant->live[k] |= plan->variants[i]->live[k];
  }
  return NULL;
}

static tpu_status_t make_steps(maker_t* m) {
  tpu_status_t status = fill_variant(m);
  if (status == NULL) return NULL;
  tpu_log(TPU_LOG_COMPILE, "a program failed, trying single ops: %s", tpu_status_message(status));
  tpu_status_free(status);
  tpui_variant_free_steps(m->variant);
  return fill_variant_singly(m);
}

/* Below this, running costs less than waking the launch thread (about 10 us). */
#define HEAVY_ELEMENTS 65536

static bool is_heavy(const tpu_window_t* w) {
  int64_t elements = 0;
  for (uint32_t v = 0; v < w->value_count; ++v) {
    elements += tpu_meta_get(w->value_metas[v])->numel;
    if (elements > HEAVY_ELEMENTS) return true;
  }
  for (uint32_t i = 0; i < w->external_count; ++i) {
    elements += tpu_meta_get(w->external_metas[i])->numel;
  }
  return elements > HEAVY_ELEMENTS;
}

static void add_variant(tpui_plan_t* plan, tpui_variant_t* variant) {
  if (plan->variant_count == TPUI_MAX_VARIANTS) {
    tpui_variant_free(plan->variants[--plan->variant_count]);
  }
  memmove(plan->variants + 1, plan->variants, (size_t)plan->variant_count * sizeof(void*));
  plan->variants[0] = variant;
  ++plan->variant_count;
}

tpu_status_t tpui_plan_extend(const tpui_planner_t* planner, tpui_plan_t* plan,
                              const tpu_slot_t* slots, const uint8_t* live,
                              const uint8_t* external_dead, tpui_variant_t** out_variant) {
  *out_variant = NULL;
  maker_t m = {.planner = planner, .window = plan->window, .external_dead = external_dead};
  m.window.slots = slots;
  tpu_status_t status = new_variant(plan, slots, live, &m.variant);
  if (status == NULL) {
    status = tpu_calloc(plan->window.value_count + 1, sizeof(uint32_t), (void**)&m.last_step);
  }
  if (status == NULL) status = make_steps(&m);
  if (status == NULL) status = plan_releases(&m);
  tpu_free(m.last_step);
  if (status != NULL) {
    tpui_variant_free(m.variant);
    return status;
  }
  m.variant->heavy = is_heavy(&plan->window);
  add_variant(plan, m.variant);
  *out_variant = m.variant;
  return NULL;
}
