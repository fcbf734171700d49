#include "engine/reason.h"

#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "engine/lane.h"

static tpu_record_t record_of(const tpu_window_t* w, uint32_t index) {
  tpu_record_t r;
  tpu_window_record(w, index, &r);
  return r;
}

static void append_meta(tpu_strbuf_t* text, tpu_meta_id_t id) {
  const tpu_meta_t* meta = tpu_meta_get(id);
  tpu_strbuf_printf(text, "%s[", tpu_dtype_hlo(meta->dtype));
  for (int i = 0; i < meta->rank; ++i) {
    tpu_strbuf_printf(text, "%s%lld", i > 0 ? "," : "", (long long)meta->sizes[i]);
  }
  tpu_strbuf_append(text, "]");
}

/* --- another set of a plan that has some --- */

static void append_slot(tpu_strbuf_t* text, uint32_t ref, tpu_slot_t slot) {
  bool is_float =
      tpu_ref_kind(ref) == TPU_REF_SCALAR && tpu_dtype_is_float(tpu_ref_scalar_dtype(ref));
  if (is_float) {
    tpu_strbuf_printf(text, "%.9g", slot.as_double);
  } else {
    tpu_strbuf_printf(text, "%lld", (long long)slot.as_int);
  }
}

/* The first number that is fixed in the newest set and differs. */
static bool explain_number(const tpui_plan_t* plan, const tpu_slot_t* slots, tpu_strbuf_t* text) {
  const tpui_variant_t* old = plan->variants[0];
  for (uint32_t i = 0; i < plan->window.record_count; ++i) {
    tpu_record_t r = record_of(&plan->window, i);
    for (tpu_slot_walk_t at = tpu_record_slots(&r); tpu_record_next_slot(&r, &at);) {
      if (old->slot_dynamic[at.slot] || old->slot_values[at.slot].bits == slots[at.slot].bits) {
        continue;
      }
      uint32_t ref = tpu_record_ref(&r, at.operand);
      bool is_number = tpu_ref_kind(ref) == TPU_REF_SCALAR;
      tpu_strbuf_printf(text, "%s: operand %d of operation %u (%s) is ",
                        is_number ? "number" : "offset", at.operand, i, tpu_op_info(r.op)->name);
      append_slot(text, ref, slots[at.slot]);
      tpu_strbuf_append(text, ", was ");
      append_slot(text, ref, old->slot_values[at.slot]);
      return true;
    }
  }
  return false;
}

static bool explain_results(const tpui_plan_t* plan, const uint8_t* live, tpu_strbuf_t* text) {
  const tpui_variant_t* old = plan->variants[0];
  for (uint32_t v = 0; v < plan->window.value_count; ++v) {
    if (old->single || (live[v] != 0) == (old->live[v] != 0)) continue;
    uint32_t record = plan->window.value_records[v];
    tpu_strbuf_printf(text, "results: that of operation %u (%s) is %s", record,
                      tpu_op_info(record_of(&plan->window, record).op)->name,
                      live[v] ? "needed now" : "no longer needed");
    return true;
  }
  return false;
}

/* --- the first set of a plan --- */

static bool has_equal_ops(const tpu_window_t* a, const tpu_window_t* b) {
  if (a->record_count != b->record_count || a->external_count != b->external_count) return false;
  for (uint32_t i = 0; i < a->record_count; ++i) {
    if (a->words[a->record_words[i]] != b->words[b->record_words[i]]) return false;
  }
  return true;
}

/* The plan used last that has the same operations; NULL if there is none. */
static const tpui_plan_t* similar_plan(const tpui_plan_cache_t* cache, const tpui_plan_t* plan) {
  const tpui_plan_t* found = NULL;
  for (size_t i = 0; i < cache->capacity; ++i) {
    const tpui_plan_t* other = cache->plans[i];
    if (other == NULL || other == plan || !has_equal_ops(&other->window, &plan->window)) continue;
    if (found == NULL || other->last_use > found->last_use) found = other;
  }
  return found;
}

static const char* kind_of_change(tpu_meta_id_t now, tpu_meta_id_t before) {
  const tpu_meta_t *a = tpu_meta_get(now), *b = tpu_meta_get(before);
  if (a->dtype != b->dtype) return "dtype";
  bool same =
      a->rank == b->rank && memcmp(a->sizes, b->sizes, (size_t)a->rank * sizeof(*a->sizes)) == 0;
  return same ? "layout" : "shape";
}

static bool explain_metas(const char* what, const tpu_meta_id_t* now, const tpu_meta_id_t* before,
                          uint32_t count, tpu_strbuf_t* text) {
  for (uint32_t k = 0; k < count; ++k) {
    if (now[k] == before[k]) continue;
    tpu_strbuf_printf(text, "%s: %s %u is ", kind_of_change(now[k], before[k]), what, k);
    append_meta(text, now[k]);
    tpu_strbuf_append(text, ", was ");
    append_meta(text, before[k]);
    return true;
  }
  return false;
}

static void explain_plan(const tpui_plan_cache_t* cache, const tpui_plan_t* plan,
                         tpu_strbuf_t* text) {
  const tpu_window_t* w = &plan->window;
  const tpui_plan_t* other = similar_plan(cache, plan);
  if (other == NULL) {
    tpu_strbuf_append(text, "structure: these operations were not seen together before");
    return;
  }
  const tpu_window_t* o = &other->window;
  uint32_t values = w->value_count < o->value_count ? w->value_count : o->value_count;
  if (explain_metas("input", w->external_metas, o->external_metas, w->external_count, text)) return;
  if (explain_metas("value", w->value_metas, o->value_metas, values, text)) return;
  tpu_strbuf_append(text, "structure: the same operations with other operands or attributes");
}

/* --- notes --- */

static void append_reason(const tpu_engine_t* e, const tpui_plan_t* plan, const tpu_slot_t* slots,
                          const uint8_t* live, tpu_strbuf_t* text) {
  if (plan->variant_count == 0) {
    explain_plan(&e->plans, plan, text);
  } else if (!explain_number(plan, slots, text) && !explain_results(plan, live, text)) {
    tpu_strbuf_append(text, "again: the programs could not be compiled or kept before");
  }
}

void tpui_reason_note(tpu_engine_t* e, const tpui_plan_t* plan, const tpu_slot_t* slots,
                      const uint8_t* live) {
  const tpu_window_t* w = &plan->window;
  tpu_strbuf_t text = {0};
  tpu_strbuf_printf(&text, "%u operations (%s ... %s), ", w->record_count,
                    tpu_op_info(record_of(w, 0).op)->name,
                    tpu_op_info(record_of(w, w->record_count - 1).op)->name);
  append_reason(e, plan, slots, live, &text);
  tpu_log(TPU_LOG_COMPILE, "programs for %s", tpu_strbuf_text(&text));
  char** place = &e->reasons[e->reason_count++ % TPUI_REASONS_KEPT];
  tpu_free(*place);
  *place = text.data;  // NULL when memory is out: a note less
  if (e->told_reason != NULL) e->told_reason();
}

void tpui_reasons_free(tpu_engine_t* e) {
  for (int i = 0; i < TPUI_REASONS_KEPT; ++i) tpu_free(e->reasons[i]);
}

tpu_status_t tpu_engine_reasons(tpu_engine_t* e, uint64_t since, tpu_strbuf_t* out_lines,
                                uint64_t* out_next) {
  tpu_mutex_lock(&e->lock);
  uint64_t oldest = e->reason_count > TPUI_REASONS_KEPT ? e->reason_count - TPUI_REASONS_KEPT : 0;
  for (uint64_t i = since > oldest ? since : oldest; i < e->reason_count; ++i) {
    const char* text = e->reasons[i % TPUI_REASONS_KEPT];
    if (text != NULL) tpu_strbuf_printf(out_lines, "%s\n", text);
  }
  *out_next = e->reason_count;
  tpu_mutex_unlock(&e->lock);
  return tpu_strbuf_status(out_lines);
}
