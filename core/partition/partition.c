#include "partition/partition.h"

#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "partition/stages.h"

typedef struct maker_t {
  const tpu_window_t* window;
  const uint8_t* live;
  const uint8_t* external_dead;
  const uint8_t* slot_dynamic;
  tpu_program_t common;     // what all programs share
  uint32_t* value_program;  // [values] program that makes it; UINT32_MAX: dropped
  uint32_t* value_last;     // [values] last program that reads it; UINT32_MAX: none
  uint32_t* external_last;  // [externals]
  uint32_t* value_seen;     // [values] newest program that lists it as an input, plus 1
  uint32_t* external_seen;  // [externals]
  tpu_partition_t* out;
  uint32_t input_count, output_count;
} maker_t;

static void note_uses(maker_t* m, uint32_t program, const uint32_t* records, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    tpu_record_t r;
    tpu_window_record(m->window, records[i], &r);
    for (int k = 0; k < r.operand_count; ++k) {
      uint32_t ref = tpu_record_ref(&r, k), index = tpu_ref_index(ref);
      if (tpu_ref_kind(ref) == TPU_REF_WINDOW) m->value_last[index] = program;
      if (tpu_ref_kind(ref) == TPU_REF_EXTERNAL) m->external_last[index] = program;
    }
    for (int k = 0; k < r.result_count; ++k) {
      m->value_program[r.first_value + (uint32_t)k] = program;
    }
  }
}

static void add_inputs(maker_t* m, uint32_t program, const tpu_record_t* r) {
  for (int k = 0; k < r->operand_count; ++k) {
    uint32_t ref = tpu_record_ref(r, k) & ~TPU_REF_VIEW_BIT, index = tpu_ref_index(ref);
    bool donatable;
    if (tpu_ref_kind(ref) == TPU_REF_WINDOW) {
      if (m->value_program[index] == program || m->value_seen[index] == program + 1) continue;
      m->value_seen[index] = program + 1;
      donatable = !m->live[index] && m->value_last[index] == program;
    } else if (tpu_ref_kind(ref) == TPU_REF_EXTERNAL) {
      if (m->external_seen[index] == program + 1) continue;
      m->external_seen[index] = program + 1;
      donatable = m->external_dead[index] && m->external_last[index] == program;
    } else {
      continue;
    }
    m->out->inputs[m->input_count++] = (tpu_program_input_t){.ref = ref, .donatable = donatable};
  }
}

static void make_program(maker_t* m, uint32_t program, const uint32_t* records, uint32_t count) {
  tpu_program_t* p = &m->out->programs[program];
  *p = m->common;
  p->record_count = count;
  p->records = records;
  p->inputs = m->out->inputs + m->input_count;
  p->outputs = m->out->outputs + m->output_count;
  uint32_t inputs_before = m->input_count, outputs_before = m->output_count;
  for (uint32_t i = 0; i < count; ++i) {
    tpu_record_t r;
    tpu_window_record(m->window, records[i], &r);
    add_inputs(m, program, &r);
    for (int k = 0; k < r.result_count; ++k) {
      uint32_t value = r.first_value + (uint32_t)k, last = m->value_last[value];
      if (m->live[value] || (last != UINT32_MAX && last > program)) {
        m->out->outputs[m->output_count++] = value;
      }
    }
  }
  p->input_count = m->input_count - inputs_before;
  p->output_count = m->output_count - outputs_before;
}

/* Upper bounds for the shared arrays: every operand an input, every value an output. */
static tpu_status_t allocate_arrays(const tpu_window_t* w, const uint32_t* order, uint32_t count,
                                    uint32_t programs, tpu_partition_t* out) {
  size_t operands = 0;
  for (uint32_t i = 0; i < count; ++i) {
    tpu_record_t r;
    tpu_window_record(w, order[i], &r);
    operands += (size_t)r.operand_count;
  }
  TPU_RETURN_IF_ERROR(tpu_calloc(programs, sizeof(tpu_program_t), (void**)&out->programs));
  TPU_RETURN_IF_ERROR(tpu_calloc(operands, sizeof(tpu_program_input_t), (void**)&out->inputs));
  return tpu_calloc(w->value_count, sizeof(uint32_t), (void**)&out->outputs);
}

static tpu_status_t make_programs(maker_t* m, const uint32_t* cuts, uint32_t cut_count,
                                  uint32_t count) {
  size_t values = m->window->value_count, externals = m->window->external_count;
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, m->value_program, values);
  TPU_LAYOUT_ADD(&layout, m->value_last, values);
  TPU_LAYOUT_ADD(&layout, m->value_seen, values);
  TPU_LAYOUT_ADD(&layout, m->external_last, externals);
  TPU_LAYOUT_ADD(&layout, m->external_seen, externals);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  memset(m->value_program, 0xff, values * sizeof(uint32_t));
  memset(m->value_last, 0xff, values * sizeof(uint32_t));
  for (uint32_t p = 0; p < cut_count; ++p) {
    uint32_t end = p + 1 < cut_count ? cuts[p + 1] : count;
    note_uses(m, p, m->out->records + cuts[p], end - cuts[p]);
  }
  for (uint32_t p = 0; p < cut_count; ++p) {
    uint32_t end = p + 1 < cut_count ? cuts[p + 1] : count;
    make_program(m, p, m->out->records + cuts[p], end - cuts[p]);
  }
  m->out->program_count = cut_count;
  tpu_free(memory);
  return NULL;
}

static bool is_host_only(const maker_t* m, uint32_t place) {
  tpu_record_t r;
  tpu_window_record(m->window, m->out->records[place], &r);
  return (tpu_op_info(r.op)->flags & TPU_OP_HOST) != 0;
}

/* Also cuts around records that are no part of a program; `cuts` has room for `count`. */
static uint32_t cut_around_host(const maker_t* m, uint32_t count, uint32_t cut_count,
                                uint32_t* cuts) {
  uint32_t added = 0;
  for (uint32_t i = 1; i < count; ++i) added += is_host_only(m, i) || is_host_only(m, i - 1);
  if (added == 0) return cut_count;
  uint32_t next = 0, *old = cuts + (count - cut_count);  // read before it is written over
  memmove(old, cuts, cut_count * sizeof(*cuts));
  for (uint32_t i = 0, k = 0; i < count; ++i) {
    bool is_cut = k < cut_count && old[k] == i;
    k += is_cut;
    is_cut |= i > 0 && (is_host_only(m, i) || is_host_only(m, i - 1));
    if (is_cut) cuts[next++] = i;
  }
  return next;
}

/* Programs of out->records, cut as the options say. `whole`: not at all, unless at every record. */
static tpu_status_t cut_and_make(maker_t* m, uint32_t count, const tpu_partition_options_t* options,
                                 bool whole) {
  uint32_t cut_count = 0;
  uint32_t* cuts = NULL;
  tpu_status_t status = tpu_calloc(count, sizeof(uint32_t), (void**)&cuts);
  if (status == NULL && options->single) {
    for (uint32_t i = 0; i < count; ++i) cuts[i] = i;
    cut_count = count;
  } else if (status == NULL && whole) {
    cut_count = count > 0;
  } else if (status == NULL) {
    status = tpui_partition_cuts(m->window, m->out->records, count, options, cuts, &cut_count);
  }
  if (status == NULL) cut_count = cut_around_host(m, count, cut_count, cuts);
  if (status == NULL) {
    status = allocate_arrays(m->window, m->out->records, count, cut_count, m->out);
  }
  m->common = (tpu_program_t){.window = m->window,
                              .slot_dynamic = m->slot_dynamic,
                              .platform = options->platform,
                              .host_calls = options->host_calls,
                              .checks = options->checks};
  if (status == NULL) status = make_programs(m, cuts, cut_count, count);
  tpu_free(cuts);
  return status;
}

tpu_status_t tpu_partition(const tpu_window_t* window, const uint8_t* live,
                           const uint8_t* external_dead, const uint8_t* slot_dynamic,
                           const tpu_partition_options_t* options, tpu_partition_t* out) {
  *out = (tpu_partition_t){0};
  if (window->record_count == 0) return NULL;
  uint32_t count = 0;
  maker_t m = {.window = window,
               .live = live,
               .external_dead = external_dead,
               .slot_dynamic = slot_dynamic,
               .out = out};
  tpu_status_t status = tpu_calloc(window->record_count, sizeof(uint32_t), (void**)&out->records);
  if (status == NULL)
    status = tpui_partition_order(window, live, options->checks, out->records, &count);
  if (status == NULL) status = cut_and_make(&m, count, options, false);
  if (status != NULL) tpu_partition_free(out);
  return status;
}

tpu_status_t tpu_partition_records(const tpu_window_t* window, const uint32_t* records,
                                   uint32_t count, const uint8_t* live,
                                   const uint8_t* external_dead, const uint8_t* slot_dynamic,
                                   const tpu_partition_options_t* options, tpu_partition_t* out) {
  *out = (tpu_partition_t){0};
  if (count == 0) return NULL;
  maker_t m = {.window = window,
               .live = live,
               .external_dead = external_dead,
               .slot_dynamic = slot_dynamic,
               .out = out};
  tpu_status_t status = tpu_calloc(count, sizeof(uint32_t), (void**)&out->records);
  if (status == NULL) {
    memcpy(out->records, records, count * sizeof(uint32_t));
    status = cut_and_make(&m, count, options, true);
  }
  if (status != NULL) tpu_partition_free(out);
  return status;
}

void tpu_partition_free(tpu_partition_t* partition) {
  tpu_free(partition->programs);
  tpu_free(partition->records);
  tpu_free(partition->inputs);
  tpu_free(partition->outputs);
  *partition = (tpu_partition_t){0};
}
