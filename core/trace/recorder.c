#include "trace/recorder.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"

static uint32_t next_window(tpu_value_pool_t* pool) {
  if (++pool->newest_window == 0) pool->newest_window = 1;
  return pool->newest_window;
}

void tpu_recorder_init(tpu_recorder_t* recorder, tpu_value_pool_t* pool) {
  *recorder = (tpu_recorder_t){.window_id = next_window(pool), .pool = pool};
  ++pool->recorder_count;
}

static void forget_found(tpu_recorder_t* r) {
  if (TPU_LIKELY(r->found_count == 0)) return;
  memset(r->found, 0, r->found_capacity * sizeof(*r->found));
  r->found_count = 0;
}

static void release_externals(tpu_recorder_t* r, size_t from) {
  if (r->found_count > from) forget_found(r);
  for (size_t i = from; i < r->external_count; ++i) {
    if (r->externals[i]->external_window == r->window_id) r->externals[i]->external_window = 0;
    tpu_value_release(r->pool, r->externals[i]);
  }
  r->external_count = from;
}

void tpu_recorder_free(tpu_recorder_t* r) {
  release_externals(r, 0);
  --r->pool->recorder_count;
  tpu_free(r->found);
  tpu_free(r->words);
  tpu_free(r->record_words);
  tpu_free(r->record_values);
  tpu_free(r->record_slots);
  tpu_free(r->record_locations);
  tpu_free(r->value_metas);
  tpu_free(r->value_records);
  tpu_free(r->values);
  tpu_free(r->externals);
  tpu_free(r->external_metas);
  tpu_free(r->slots);
  *r = (tpu_recorder_t){0};
}

void tpu_recorder_reset(tpu_recorder_t* r, const tpu_window_t* predicted) {
  release_externals(r, 0);
  r->word_count = r->record_count = r->value_count = r->slot_count = 0;
  r->window_id = next_window(r->pool);
  r->predicted = predicted;
}

/* Grows one of several arrays that share a capacity; the capacity moves only after all grew. */
static tpu_status_t grow_shared(void** data, size_t capacity, size_t needed, size_t size) {
  return tpu_grow(data, &capacity, needed, size);
}

static size_t doubled_capacity(size_t capacity, size_t needed) {
  size_t next = capacity < 64 ? 64 : capacity * 2;
  return next < needed ? needed : next;
}

static tpu_status_t reserve_records(tpu_recorder_t* r) {
  if (TPU_LIKELY(r->record_count + 1 < r->record_capacity)) return NULL;
  size_t want = doubled_capacity(r->record_capacity, r->record_count + 2), old = r->record_capacity;
  TPU_RETURN_IF_ERROR(grow_shared((void**)&r->record_words, old, want, sizeof(uint32_t)));
  TPU_RETURN_IF_ERROR(grow_shared((void**)&r->record_values, old, want, sizeof(uint32_t)));
  TPU_RETURN_IF_ERROR(grow_shared((void**)&r->record_slots, old, want, sizeof(uint32_t)));
  TPU_RETURN_IF_ERROR(
      grow_shared((void**)&r->record_locations, old, want, sizeof(*r->record_locations)));
  r->record_capacity = want;
  return NULL;
}

/* Live values point at their entry in `values`, so a move of the array must re-aim them. */
static tpu_status_t reserve_values(tpu_recorder_t* r, size_t count) {
  if (TPU_LIKELY(r->value_count + count <= r->value_capacity)) return NULL;
  size_t want = doubled_capacity(r->value_capacity, r->value_count + count),
         old = r->value_capacity;
  TPU_RETURN_IF_ERROR(grow_shared((void**)&r->value_metas, old, want, sizeof(tpu_meta_id_t)));
  TPU_RETURN_IF_ERROR(grow_shared((void**)&r->value_records, old, want, sizeof(uint32_t)));
  TPU_RETURN_IF_ERROR(grow_shared((void**)&r->values, old, want, sizeof(tpu_value_t*)));
  r->value_capacity = want;
  for (size_t i = 0; i < r->value_count; ++i) {
    if (r->values[i] != NULL) r->values[i]->pending.slot = &r->values[i];
  }
  return NULL;
}

/* Never more than half full, so that looking for a value comes to an end. */
static tpu_status_t reserve_found(tpu_recorder_t* r, size_t count) {
  if (r->found_capacity >= 2 * count) return NULL;
  size_t capacity = r->found_capacity < 64 ? 64 : r->found_capacity;
  while (capacity < 2 * count) capacity *= 2;
  uint32_t* found = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(capacity, sizeof(*found), (void**)&found));
  tpu_free(r->found);
  r->found = found;
  r->found_capacity = capacity;
  r->found_count = 0;
  return NULL;
}

static tpu_status_t reserve_externals(tpu_recorder_t* r, size_t count) {
  if (TPU_UNLIKELY(r->pool->recorder_count > 1)) {
    TPU_RETURN_IF_ERROR(reserve_found(r, r->external_count + count));
  }
  if (TPU_LIKELY(r->external_count + count <= r->external_capacity)) return NULL;
  size_t want = doubled_capacity(r->external_capacity, r->external_count + count);
  size_t old = r->external_capacity;
  TPU_RETURN_IF_ERROR(grow_shared((void**)&r->externals, old, want, sizeof(tpu_value_t*)));
  TPU_RETURN_IF_ERROR(grow_shared((void**)&r->external_metas, old, want, sizeof(tpu_meta_id_t)));
  r->external_capacity = want;
  return NULL;
}

tpu_status_t tpu_recorder_begin(tpu_recorder_t* r, int operand_count, int result_count) {
  size_t words = tpu_record_size(operand_count, result_count);
  if (TPU_UNLIKELY(r->word_count + words > r->word_capacity)) {
    TPU_RETURN_IF_ERROR(
        tpu_grow((void**)&r->words, &r->word_capacity, r->word_count + words, sizeof(uint32_t)));
  }
  if (TPU_UNLIKELY(r->slot_count + (size_t)operand_count > r->slot_capacity)) {
    TPU_RETURN_IF_ERROR(tpu_grow((void**)&r->slots, &r->slot_capacity,
                                 r->slot_count + (size_t)operand_count, sizeof(tpu_slot_t)));
  }
  TPU_RETURN_IF_ERROR(reserve_records(r));
  TPU_RETURN_IF_ERROR(reserve_values(r, (size_t)result_count));
  TPU_RETURN_IF_ERROR(reserve_externals(r, (size_t)operand_count));
  r->draft_words = (uint32_t)r->word_count + TPU_RECORD_HEADER_WORDS;
  r->draft_slots = (uint32_t)r->slot_count;
  r->draft_externals = (uint32_t)r->external_count;
  return NULL;
}

static void push_operand(tpu_recorder_t* r, uint32_t ref, uint32_t view) {
  r->words[r->draft_words++] = ref;
  r->words[r->draft_words++] = view;
}

/* The entry of `found` that has the value, or the empty one where it belongs. */
static uint32_t* probe_found(const tpu_recorder_t* r, const tpu_value_t* value) {
  size_t mask = r->found_capacity - 1;
  size_t i = tpu_hash_mix(0, (uint64_t)(uintptr_t)value) & mask;
  while (r->found[i] != 0 && r->externals[r->found[i] - 1] != value) i = (i + 1) & mask;
  return &r->found[i];
}

/* Number of the external, which gets one if it has none. */
static uint32_t find_external(tpu_recorder_t* r, const tpu_value_t* value) {
  for (; r->found_count < r->external_count; ++r->found_count) {
    *probe_found(r, r->externals[r->found_count]) = (uint32_t)r->found_count + 1;
  }
  const uint32_t* found = probe_found(r, value);
  return *found != 0 ? *found - 1 : (uint32_t)r->external_count;
}

static uint32_t external_ref(tpu_recorder_t* r, tpu_value_t* value) {
  if (value->external_window != r->window_id) {
    uint32_t number = (uint32_t)r->external_count;
    if (TPU_UNLIKELY(r->pool->recorder_count > 1)) number = find_external(r, value);
    value->external_window = r->window_id;
    value->external_number = number;
    if (number == r->external_count) {
      tpu_value_retain(value);
      r->externals[r->external_count] = value;
      r->external_metas[r->external_count++] = value->meta;
    }
  }
  return tpu_ref_make(TPU_REF_EXTERNAL, value->external_number);
}

void tpu_recorder_tensor(tpu_recorder_t* r, tpu_value_t* value, tpu_meta_id_t view,
                         int64_t offset) {
  uint32_t ref = value->state == TPU_VALUE_RECORDED
                     ? tpu_ref_make(TPU_REF_WINDOW, value->pending.number)
                     : external_ref(r, value);
  if (view != value->meta || offset != 0) {
    ref |= TPU_REF_VIEW_BIT;
    r->slots[r->draft_slots++].as_int = offset;
  }
  push_operand(r, ref, view);
}

void tpu_recorder_scalar(tpu_recorder_t* r, tpu_dtype_t dtype, bool wrapped, tpu_meta_id_t view,
                         tpu_slot_t number) {
  r->slots[r->draft_slots++] = number;
  push_operand(r, tpu_ref_scalar(dtype, wrapped), view);
}

void tpu_recorder_none(tpu_recorder_t* r) { push_operand(r, tpu_ref_make(TPU_REF_NONE, 0), 0); }

const uint32_t* tpu_recorder_match(tpu_recorder_t* r, tpu_op_t op, int operand_count,
                                   int result_count, uint8_t variant, tpu_attrs_id_t attrs) {
  if (r->predicted == NULL) return NULL;
  size_t size = r->draft_words - r->word_count;
  const uint32_t* known = r->predicted->words + r->word_count;
  uint32_t* draft = r->words + r->word_count;
  if (r->word_count + size + (size_t)result_count > r->predicted->word_count) {
    r->predicted = NULL;
    return NULL;
  }
  // The compute dtype is an answer, not a question: take the known one.
  tpu_record_encode(draft, op, operand_count, result_count, variant, attrs,
                    tpu_record_decode(known).compute_dtype);
  if (memcmp(draft, known, size * sizeof(uint32_t)) != 0) {
    r->predicted = NULL;
    return NULL;
  }
  return known;
}

void tpu_recorder_abandon(tpu_recorder_t* r) { release_externals(r, r->draft_externals); }

static tpu_status_t make_values(tpu_recorder_t* r, int count, const tpu_meta_id_t* metas,
                                tpu_value_t** out_values) {
  for (int k = 0; k < count; ++k) {
    tpu_status_t status = tpu_value_create(r->pool, metas[k], &out_values[k]);
    if (TPU_UNLIKELY(status != NULL)) {
      while (k-- > 0) tpu_value_release(r->pool, out_values[k]);
      return status;
    }
  }
  return NULL;
}

tpu_status_t tpu_recorder_commit(tpu_recorder_t* r, tpu_op_t op, int operand_count,
                                 int result_count, uint8_t variant, tpu_attrs_id_t attrs,
                                 tpu_dtype_t compute_dtype, const tpu_meta_id_t* result_metas,
                                 tpu_value_t** out_values) {
  tpu_status_t status = make_values(r, result_count, result_metas, out_values);
  if (TPU_UNLIKELY(status != NULL)) {
    tpu_recorder_abandon(r);
    return status;
  }
  uint32_t* draft = r->words + r->word_count;
  tpu_record_encode(draft, op, operand_count, result_count, variant, attrs, compute_dtype);
  for (int k = 0; k < result_count; ++k) r->words[r->draft_words++] = result_metas[k];
  if (r->predicted != NULL) {
    // Results that the caller gave (factories) were not part of the match.
    size_t size = r->draft_words - r->word_count;
    if (r->word_count + size > r->predicted->word_count ||
        memcmp(draft, r->predicted->words + r->word_count, size * sizeof(uint32_t)) != 0) {
      r->predicted = NULL;
    }
  }
  r->record_words[r->record_count] = (uint32_t)r->word_count;
  r->record_values[r->record_count] = (uint32_t)r->value_count;
  r->record_slots[r->record_count] = (uint32_t)r->slot_count;
  r->record_locations[r->record_count] = TPU_UNLIKELY(r->traces) ? tpu_location_get() : 0;
  for (int k = 0; k < result_count; ++k) {
    size_t number = r->value_count++;
    out_values[k]->pending.number = (uint32_t)number;
    out_values[k]->pending.slot = &r->values[number];
    out_values[k]->pending.window = r->window_id;
    r->values[number] = out_values[k];
    r->value_metas[number] = result_metas[k];
    r->value_records[number] = (uint32_t)r->record_count;
  }
  ++r->record_count;
  r->word_count = r->draft_words;
  r->slot_count = r->draft_slots;
  return NULL;
}

void tpu_recorder_window(const tpu_recorder_t* r, tpu_window_t* out) {
  *out = (tpu_window_t){
      .words = r->words,
      .word_count = (uint32_t)r->word_count,
      .record_words = r->record_words,
      .record_values = r->record_values,
      .record_slots = r->record_slots,
      .record_count = (uint32_t)r->record_count,
      .value_metas = r->value_metas,
      .value_records = r->value_records,
      .value_count = (uint32_t)r->value_count,
      .external_metas = r->external_metas,
      .external_count = (uint32_t)r->external_count,
      .slots = r->slots,
      .slot_count = (uint32_t)r->slot_count,
  };
}

void tpu_window_record(const tpu_window_t* window, uint32_t index, tpu_record_t* out) {
  *out = tpu_record_decode(window->words + window->record_words[index]);
  out->first_value = window->record_values[index];
  out->first_slot = window->record_slots[index];
}

tpu_op_t tpu_window_origin(const tpu_window_t* window, uint32_t index) {
  tpu_record_t r;
  tpu_window_record(window, index, &r);
  for (int k = r.operand_count - 1; tpu_op_info(r.op)->aten[0] == 0 && k >= 0; --k) {
    uint32_t ref = tpu_record_ref(&r, k);
    if (tpu_ref_kind(ref) != TPU_REF_WINDOW) continue;
    tpu_window_record(window, window->value_records[tpu_ref_index(ref)], &r);
    k = r.operand_count;
  }
  return r.op;
}
