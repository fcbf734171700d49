/* Which records run, and in which order. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "partition/stages.h"

/* Shorter runs are left alone: they are cheap in any order. */
#define MIN_RUN 24

/* Whether wrong data must raise an error even when nobody asks for the result. */
static bool is_checked(const tpu_record_t* r) {
  uint32_t flags = tpu_op_info(r->op)->flags;
  if (flags & TPU_OP_CHECK_INDEX) return true;
  if (flags & TPU_OP_CHECK_INTEGERS) return tpu_dtype_is_integral(r->compute_dtype);
  if (!(flags & TPU_OP_CHECK_VALUES)) return false;
  // A number in front of seed and offset was looked at when the op was called.
  return !(flags & TPU_OP_RANDOM) ||
         tpu_ref_kind(tpu_record_ref(r, r->operand_count - 3)) != TPU_REF_SCALAR;
}

static void mark_needed(const tpu_window_t* w, const uint8_t* live, bool checks,
                        uint8_t* value_needed, uint8_t* record_needed) {
  memcpy(value_needed, live, w->value_count);
  for (uint32_t i = w->record_count; i-- > 0;) {
    tpu_record_t r;
    tpu_window_record(w, i, &r);
    record_needed[i] = checks && is_checked(&r);
    for (int k = 0; k < r.result_count; ++k) record_needed[i] |= value_needed[r.first_value + k];
    if (!record_needed[i]) continue;
    for (int k = 0; k < r.operand_count; ++k) {
      uint32_t ref = tpu_record_ref(&r, k);
      if (tpu_ref_kind(ref) == TPU_REF_WINDOW) value_needed[tpu_ref_index(ref)] = 1;
    }
  }
}

static uint32_t find_root(uint32_t* parents, uint32_t i) {
  while (parents[i] != i) i = parents[i] = parents[parents[i]];
  return i;
}

static bool is_pointwise(const tpu_window_t* w, uint32_t record) {
  tpu_op_t op = tpu_record_decode(w->words + w->record_words[record]).op;
  tpu_op_family_t family = tpu_op_info(op)->family;
  return family == TPU_FAMILY_POINTWISE || family == TPU_FAMILY_CREATE;
}

typedef struct run_t {
  uint64_t* keys;          // component << 32 | place
  uint32_t* parents;       // union-find over places in the run
  uint8_t* front;          // by place in the run; see is_front
  uint32_t* value_places;  // [value_count] place in the run that makes the value, else UINT32_MAX
} run_t;

/* What stands in front of the run: values of one element (step counts, clip coefficients), which
 * are shared by many tensors and must not tie those together, and fresh tensors (an optimizer's
 * state at its first step), so that what is done with them looks the same as in later steps. Their
 * operands must stand there too, or be made before the run. */
static bool is_front(const tpu_record_t* r, const run_t* run) {
  bool created = tpu_op_info(r->op)->family == TPU_FAMILY_CREATE;
  for (int k = 0; k < r->result_count && !created; ++k) {
    if (tpu_meta_get(r->results[k])->numel != 1) return false;
  }
  for (int k = 0; k < r->operand_count; ++k) {
    uint32_t ref = tpu_record_ref(r, k);
    if (tpu_ref_kind(ref) != TPU_REF_WINDOW) continue;
    uint32_t source = run->value_places[tpu_ref_index(ref)];
    if (source != UINT32_MAX && !run->front[source]) return false;
  }
  return true;
}

/* Stable-sorts order[begin, end) by connected component, in order of first appearance. */
static int compare_keys(const void* a, const void* b) {
  uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
  return x < y ? -1 : x > y;
}

static void join_operands(const tpu_record_t* r, uint32_t place, run_t* run) {
  for (int k = 0; k < r->operand_count; ++k) {
    uint32_t ref = tpu_record_ref(r, k);
    if (tpu_ref_kind(ref) != TPU_REF_WINDOW) continue;
    uint32_t source = run->value_places[tpu_ref_index(ref)];
    if (source == UINT32_MAX || run->front[source]) continue;
    uint32_t a = find_root(run->parents, source), b = find_root(run->parents, place);
    if (a < b) run->parents[b] = a;
    if (b < a) run->parents[a] = b;
  }
}

static void sort_run(const tpu_window_t* w, uint32_t* order, uint32_t begin, uint32_t end,
                     run_t* run, uint32_t* scratch) {
  for (uint32_t i = begin; i < end; ++i) {
    uint32_t place = i - begin;
    tpu_record_t r;
    tpu_window_record(w, order[i], &r);
    run->parents[place] = place;
    run->front[place] = is_front(&r, run);
    join_operands(&r, place, run);
    for (int k = 0; k < r.result_count; ++k) run->value_places[r.first_value + k] = place;
  }
  for (uint32_t i = begin; i < end; ++i) {
    uint32_t place = i - begin;
    // Component 0 is what stands in front; the others keep the order of their first record.
    uint64_t component = run->front[place] ? 0 : 1 + find_root(run->parents, place);
    run->keys[place] = component << 32 | place;
  }
  qsort(run->keys, end - begin, sizeof(uint64_t), compare_keys);
  for (uint32_t i = begin; i < end; ++i) {
    scratch[i - begin] = order[begin + (uint32_t)run->keys[i - begin]];
  }
  memcpy(order + begin, scratch, (end - begin) * sizeof(uint32_t));
  memset(run->value_places, 0xff, w->value_count * sizeof(uint32_t));
}

static void sort_runs(const tpu_window_t* w, uint32_t* order, uint32_t count, run_t* run,
                      uint32_t* scratch) {
  memset(run->value_places, 0xff, w->value_count * sizeof(uint32_t));
  for (uint32_t begin = 0; begin < count;) {
    uint32_t end = begin;
    while (end < count && is_pointwise(w, order[end])) ++end;
    if (end - begin >= MIN_RUN) sort_run(w, order, begin, end, run, scratch);
    begin = end + 1;
  }
}

tpu_status_t tpui_partition_order(const tpu_window_t* w, const uint8_t* live, bool checks,
                                  uint32_t* out_order, uint32_t* out_count) {
  *out_count = 0;
  size_t n = w->record_count, v = w->value_count;
  void* memory = NULL;
  run_t run = {0};
  uint32_t* scratch = NULL;
  uint8_t *value_needed = NULL, *record_needed = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, run.keys, n);
  TPU_LAYOUT_ADD(&layout, run.parents, n);
  TPU_LAYOUT_ADD(&layout, run.front, n);
  TPU_LAYOUT_ADD(&layout, run.value_places, v);
  TPU_LAYOUT_ADD(&layout, scratch, n);
  TPU_LAYOUT_ADD(&layout, value_needed, v);
  TPU_LAYOUT_ADD(&layout, record_needed, n);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  mark_needed(w, live, checks, value_needed, record_needed);
  for (uint32_t i = 0; i < n; ++i) {
    if (record_needed[i]) out_order[(*out_count)++] = i;
  }
  sort_runs(w, out_order, *out_count, &run, scratch);
  tpu_free(memory);
  return NULL;
}
