/* Making a variant: partition -> lower -> compile, for one window. */
#include "engine/plan.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "base/log.h"

/* Programs at or below both bounds are compiled quickly rather than well. */
#define SMALL_RECORDS 4
#define SMALL_ELEMENTS 65536

typedef struct maker_t {
  const tpui_planner_t* planner;
  tpu_window_t window;  // the plan's, with this window's slots
  tpui_variant_t* variant;
  const uint8_t* external_dead;
  const tpui_program_sink_t* sink;  // NULL: programs become steps
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

/* Numbers that differ from those of earlier occurrences become arguments. */
static void choose_dynamic(const tpui_plan_t* plan, const tpu_slot_t* slots, uint8_t* dynamic) {
  for (uint32_t s = 0; s < plan->window.slot_count && plan->interpretations > 0; ++s) {
    dynamic[s] |= plan->seen_varied[s] | (plan->seen_slots[s].bits != slots[s].bits);
  }
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

/* The programs of a partition on their way to executables. */
typedef struct batch_t {
  const tpu_partition_t* partition;
  tpu_lowered_t* lowered;           // [program_count] texts
  tpu_status_t* errors;             // [program_count] why there is no text, or no executable
  tpu_compile_request_t* requests;  // [program_count]
  tpu_host_step_t** hosts;          // [program_count] what runs in the place of an executable
  void* memory;                     // of the four
} batch_t;

static tpu_status_t open_batch(const tpu_partition_t* partition, batch_t* batch) {
  size_t count = partition->program_count;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  *batch = (batch_t){.partition = partition};
  TPU_LAYOUT_ADD(&layout, batch->lowered, count);
  TPU_LAYOUT_ADD(&layout, batch->errors, count);
  TPU_LAYOUT_ADD(&layout, batch->requests, count);
  TPU_LAYOUT_ADD(&layout, batch->hosts, count);
  return tpu_layout_allocate(&layout, &batch->memory);
}

static void close_batch(batch_t* batch) {
  for (uint32_t p = 0; p < batch->partition->program_count; ++p) {
    tpu_lowered_free(&batch->lowered[p]);
    tpu_status_free(batch->errors[p]);
    tpu_executable_release(batch->requests[p].executable);
    tpu_free(batch->hosts[p]);
  }
  tpu_free(batch->memory);
}

static tpu_op_t first_op(const tpu_program_t* program) {
  tpu_record_t first;
  tpu_window_record(program->window, program->records[0], &first);
  return first.op;
}

/* Host steps for what has no lowering and, where the device's memory is the host's, for all that is
 * interpreted, as far as there are host forms. */
static tpu_status_t make_hosts(const maker_t* m, batch_t* batch) {
  bool all = m->variant->interpreted && m->planner->partition.platform->host_addressable;
  if (m->planner->host_ops == NULL) return NULL;
  for (uint32_t p = 0; p < batch->partition->program_count; ++p) {
    const tpu_program_t* program = &batch->partition->programs[p];
    if (!all && (tpu_op_info(first_op(program))->flags & TPU_OP_HOST) == 0) continue;
    TPU_RETURN_IF_ERROR(tpu_host_step_make(m->planner->host_ops, program, &batch->hosts[p]));
  }
  return NULL;
}

static const char* first_name(const tpu_program_t* program) {
  return tpu_op_info(first_op(program))->name;
}

static tpu_status_t lower_all(maker_t* m, batch_t* batch, bool keep_errors) {
  for (uint32_t p = 0; p < batch->partition->program_count; ++p) {
    if (batch->hosts[p] != NULL) continue;
    const tpu_program_t* program = &batch->partition->programs[p];
    tpu_lowered_t* lowered = &batch->lowered[p];
    batch->errors[p] =
        tpu_status_annotate(lower_program(m, program, lowered), "%s", first_name(program));
    batch->requests[p] = (tpu_compile_request_t){
        .text = tpu_strbuf_text(&lowered->text),
        .text_size = batch->errors[p] == NULL ? lowered->text.size : 0,
        .options = {.small = m->variant->interpreted || is_small(program->window, program)},
    };
    if (batch->errors[p] != NULL && !keep_errors) return tpu_status_copy(batch->errors[p]);
  }
  return NULL;
}

static tpu_status_t compile_all(maker_t* m, batch_t* batch) {
  uint32_t count = batch->partition->program_count;
  uint32_t hosts = 0;
  for (uint32_t p = 0; p < count; ++p) hosts += batch->hosts[p] != NULL;
  if (hosts == count) return NULL;
  TPU_RETURN_IF_ERROR(tpu_compiler_get_all(m->planner->compiler, count, batch->requests));
  for (uint32_t p = 0; p < count; ++p) {
    tpu_status_t status = batch->requests[p].status;
    if (batch->errors[p] != NULL || batch->hosts[p] != NULL) {  // there was no text to compile
      tpu_status_free(status);
    } else {
      batch->errors[p] =
          tpu_status_annotate(status, "%s", first_name(&batch->partition->programs[p]));
    }
  }
  return NULL;
}

static tpu_status_t first_error(const batch_t* batch) {
  for (uint32_t p = 0; p < batch->partition->program_count; ++p) {
    if (batch->errors[p] != NULL) return tpu_status_copy(batch->errors[p]);
  }
  return NULL;
}

/* Moves what was made into the variant's steps. */
static tpu_status_t make_steps(maker_t* m, batch_t* batch) {
  tpui_variant_t* variant = m->variant;
  uint32_t count = batch->partition->program_count;
  TPU_RETURN_IF_ERROR(tpu_calloc(count, sizeof(tpu_step_t), (void**)&variant->steps));
  for (uint32_t p = 0; p < count; ++p) {
    tpu_step_runner_t runner = {.executable = batch->requests[p].executable,
                                .host = batch->hosts[p],
                                .error = batch->errors[p]};
    batch->requests[p].executable = NULL;
    batch->hosts[p] = NULL;
    batch->errors[p] = NULL;
    variant->broken |= runner.error != NULL;
    TPU_RETURN_IF_ERROR(tpu_step_make(&batch->partition->programs[p], &batch->lowered[p], &runner,
                                      &variant->steps[p]));
    ++variant->step_count;
  }
  return tpu_steps_plan_releases(variant->steps, count, variant->live, m->window.value_count);
}

/* Hands all texts over. */
static tpu_status_t pour_out(const maker_t* m, const batch_t* batch) {
  for (uint32_t p = 0; p < batch->partition->program_count; ++p) {
    TPU_RETURN_IF_ERROR(
        m->sink->take(m->sink->user, &batch->partition->programs[p], &batch->lowered[p]));
  }
  return NULL;
}

/* Makes the steps of a partition. A program's failure is kept in its step when `keep_errors`. */
static tpu_status_t realize_partition(maker_t* m, const tpu_partition_t* partition,
                                      bool keep_errors) {
  batch_t batch;
  TPU_RETURN_IF_ERROR(open_batch(partition, &batch));
  tpu_status_t status = make_hosts(m, &batch);
  if (status == NULL) status = lower_all(m, &batch, keep_errors);
  if (m->sink != NULL) {
    if (status == NULL) status = pour_out(m, &batch);
  } else {
    if (status == NULL) status = compile_all(m, &batch);
    if (status == NULL && !keep_errors) status = first_error(&batch);
    if (status == NULL) status = make_steps(m, &batch);
  }
  close_batch(&batch);
  return status;
}

static tpu_status_t fill_variant(maker_t* m) {
  tpu_partition_t partition;
  TPU_RETURN_IF_ERROR(tpu_partition(&m->window, m->variant->live, m->external_dead,
                                    m->variant->slot_dynamic, &m->planner->partition, &partition));
  tpu_status_t status = tpu_partition_share(&m->window, &partition, m->variant->slot_dynamic);
  if (status == NULL) status = realize_partition(m, &partition, false);
  tpu_partition_free(&partition);
  return status;
}

/* A step per op, each with its own error. */
static tpu_status_t realize_singly(maker_t* m, const uint8_t* external_dead) {
  tpu_partition_t partition;
  tpu_partition_options_t options = m->planner->partition;
  options.single = true;
  TPU_RETURN_IF_ERROR(tpu_partition(&m->window, m->variant->live, external_dead,
                                    m->variant->slot_dynamic, &options, &partition));
  tpu_status_t status = realize_partition(m, &partition, true);
  tpu_partition_free(&partition);
  return status;
}

/* One program per op, so that only the op that cannot be compiled fails; every result is kept and
 * no content is given away, so that what it would have overwritten can come back. */
static tpu_status_t fill_variant_singly(maker_t* m) {
  m->variant->single = true;
  memset(m->variant->live, 1, m->window.value_count);
  void* none_dead = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(m->window.external_count + 1, 1, &none_dead));
  tpu_status_t status = realize_singly(m, none_dead);
  tpu_free(none_dead);
  return status;
}

/* A variant without steps; nothing is an argument yet. */
static tpu_status_t allocate_variant(const tpui_plan_t* plan, const tpu_slot_t* slots,
                                     const uint8_t* live, tpui_variant_t** out_variant) {
  size_t n = plan->window.slot_count, v = plan->window.value_count;
  tpui_variant_t *variant = NULL, made = {0};
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, variant, 1);
  TPU_LAYOUT_COPY(&layout, made.slot_values, slots, n);
  TPU_LAYOUT_ADD(&layout, made.slot_dynamic, n);
  TPU_LAYOUT_COPY(&layout, made.live, live, v);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  *variant = made;
  *out_variant = variant;
  return NULL;
}

tpu_status_t tpui_variant_make(const tpui_plan_t* plan, const tpu_slot_t* slots,
                               const uint8_t* live, tpui_variant_t** out_variant) {
  size_t v = plan->window.value_count;
  TPU_RETURN_IF_ERROR(allocate_variant(plan, slots, live, out_variant));
  tpui_variant_t* variant = *out_variant;
  choose_dynamic(plan, slots, variant->slot_dynamic);
  mark_dynamic(&plan->window, slots, variant->slot_dynamic);
  if (tpui_plan_is_exact(plan)) return NULL;
  for (size_t k = 0; k < v; ++k) variant->live[k] |= plan->seen_live[k];
  for (int i = 0; i < plan->variant_count; ++i) {
    if (plan->variants[i]->single) continue;  // it keeps everything
    for (size_t k = 0; k < v; ++k) variant->live[k] |= plan->variants[i]->live[k];
  }
  return NULL;
}

tpu_status_t tpui_plan_write(const tpui_planner_t* planner, const tpu_window_t* window,
                             const uint8_t* live, const uint8_t* external_dead,
                             const tpui_program_sink_t* sink) {
  tpui_plan_t* plan = NULL;
  TPU_RETURN_IF_ERROR(tpui_plan_make(window, &plan));
  maker_t m = {
      .planner = planner, .window = plan->window, .external_dead = external_dead, .sink = sink};
  tpu_status_t status = tpui_variant_make(plan, window->slots, live, &m.variant);
  if (status == NULL) {
    m.window.slots = m.variant->slot_values;
    status = fill_variant(&m);
  }
  tpui_variant_free(m.variant);
  tpui_plan_free(plan);
  return status;
}

static tpu_status_t fill_or_single(maker_t* m) {
  tpu_status_t status = fill_variant(m);
  if (status == NULL) return NULL;
  tpu_log(TPU_LOG_COMPILE, "a program failed, trying single ops: %s", tpu_status_message(status));
  tpu_status_free(status);
  tpui_variant_free_steps(m->variant);
  return fill_variant_singly(m);
}

/* Below this, running costs less than waking the launch thread (about 10 us). */
#define HEAVY_ELEMENTS 65536

static bool is_heavy(const tpu_window_t* w) { return tpui_window_elements(w) > HEAVY_ELEMENTS; }

double tpui_window_elements(const tpu_window_t* w) {
  double elements = 0;
  for (uint32_t v = 0; v < w->value_count; ++v) {
    elements += (double)tpu_meta_get(w->value_metas[v])->numel;
  }
  for (uint32_t i = 0; i < w->external_count; ++i) {
    elements += (double)tpu_meta_get(w->external_metas[i])->numel;
  }
  return elements;
}

tpu_status_t tpui_variant_fill(const tpui_planner_t* planner, const tpui_plan_t* plan,
                               tpui_variant_t* variant, const uint8_t* external_dead) {
  maker_t m = {.planner = planner,
               .window = plan->window,
               .variant = variant,
               .external_dead = external_dead};
  m.window.slots = variant->slot_values;
  TPU_RETURN_IF_ERROR(fill_or_single(&m));
  variant->heavy = is_heavy(&plan->window);
  return NULL;
}

void tpui_plan_adopt(tpui_plan_t* plan, tpui_variant_t* variant) {
  if (plan->variant_count == TPUI_MAX_VARIANTS) {
    tpui_variant_free(plan->variants[--plan->variant_count]);
  }
  for (uint32_t v = 0; v < plan->window.value_count; ++v) variant->output_count += variant->live[v];
  memmove(plan->variants + 1, plan->variants, (size_t)plan->variant_count * sizeof(void*));
  plan->variants[0] = variant;
  ++plan->variant_count;
  tpui_variant_free(plan->interpreted);
  plan->interpreted = NULL;
}

tpu_status_t tpui_plan_extend(const tpui_planner_t* planner, tpui_plan_t* plan,
                              const tpu_slot_t* slots, const uint8_t* live,
                              const uint8_t* external_dead, tpui_variant_t** out_variant) {
  *out_variant = NULL;
  tpui_variant_t* variant = NULL;
  tpu_status_t status = tpui_variant_make(plan, slots, live, &variant);
  if (status == NULL) status = tpui_variant_fill(planner, plan, variant, external_dead);
  if (status != NULL) {
    tpui_variant_free(variant);
    return status;
  }
  tpui_plan_adopt(plan, variant);
  *out_variant = variant;
  return NULL;
}

/* --- interpreting --- */

/* What the variants to come shall know: numbers that vary, and results that are needed. */
static void remember_occurrence(tpui_plan_t* plan, const tpu_slot_t* slots, const uint8_t* live) {
  const tpu_window_t* w = &plan->window;
  if (plan->interpreted == NULL && w->slot_count > 0) {
    memcpy(plan->seen_slots, slots, w->slot_count * sizeof(*slots));
  }
  for (uint32_t s = 0; s < w->slot_count; ++s) {
    plan->seen_varied[s] |= plan->seen_slots[s].bits != slots[s].bits;
  }
  for (uint32_t v = 0; v < w->value_count; ++v) plan->seen_live[v] |= live[v];
}

/* Numbers are arguments wherever a program can be made with them. */
static tpu_status_t fill_interpreted(maker_t* m) {
  m->variant->interpreted = true;
  memset(m->variant->slot_dynamic, 1, m->window.slot_count);
  return realize_singly(m, m->external_dead);
}

tpu_status_t tpui_plan_interpret(const tpui_planner_t* planner, tpui_plan_t* plan,
                                 const tpu_slot_t* slots, const uint8_t* live,
                                 const uint8_t* external_dead, bool may_make,
                                 tpui_variant_t** out_variant) {
  *out_variant = NULL;
  if (plan->interpreted != NULL &&
      tpui_variant_fits(plan->interpreted, &plan->window, slots, live)) {
    remember_occurrence(plan, slots, live);
    *out_variant = plan->interpreted;
    return NULL;
  }
  if (!may_make) return NULL;
  remember_occurrence(plan, slots, live);
  maker_t m = {.planner = planner, .window = plan->window, .external_dead = external_dead};
  m.window.slots = slots;
  tpu_status_t status = tpui_variant_make(plan, slots, live, &m.variant);
  if (status == NULL) status = fill_interpreted(&m);
  if (status != NULL) {
    tpui_variant_free(m.variant);
    return status;
  }
  m.variant->heavy = is_heavy(&plan->window);
  tpui_variant_free(plan->interpreted);
  plan->interpreted = m.variant;
  *out_variant = m.variant;
  return NULL;
}

tpu_status_t tpui_plan_pieces(const tpui_planner_t* planner, const tpui_plan_t* plan,
                              const tpui_variant_t* like, const tpu_slot_t* slots,
                              const tpui_pieces_t* pieces, tpui_variant_t** out_variant) {
  *out_variant = NULL;
  maker_t m = {.planner = planner, .window = plan->window};
  m.window.slots = slots;
  TPU_RETURN_IF_ERROR(allocate_variant(plan, slots, pieces->live, &m.variant));
  if (plan->window.slot_count > 0) {
    memcpy(m.variant->slot_dynamic, like->slot_dynamic, plan->window.slot_count);
  }
  tpu_partition_t partition;
  tpu_partition_options_t options = planner->partition;
  options.single = pieces->single;
  options.checks = pieces->checks;
  tpu_status_t status =
      tpu_partition_records(&m.window, pieces->records, pieces->record_count, m.variant->live,
                            pieces->external_dead, m.variant->slot_dynamic, &options, &partition);
  if (status == NULL) status = realize_partition(&m, &partition, true);
  if (status == NULL) *out_variant = m.variant;
  if (status != NULL) tpui_variant_free(m.variant);
  tpu_partition_free(&partition);
  return status;
}
