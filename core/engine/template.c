#include "engine/template.h"

#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "engine/state.h"

tpu_status_t tpui_template_create(tpu_engine_t* e, const char* name,
                                  const tpui_template_room_t* room, tpu_template_t** out_template) {
  *out_template = NULL;
  tpu_template_t *block = NULL, made = {.engine = e};
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, block, 1);
  TPU_LAYOUT_COPY(&layout, made.name, name, strlen(name) + 1);
  // Each slot belongs to an operand, which takes two words.
  TPU_LAYOUT_ADD(&layout, made.words, room->words);
  TPU_LAYOUT_ADD(&layout, made.slots, room->words / 2);
  TPU_LAYOUT_ADD(&layout, made.random_slots, room->words / 2);
  TPU_LAYOUT_ADD(&layout, made.number_slots, room->words / 2);
  TPU_LAYOUT_ADD(&layout, made.number_places, room->words / 2);
  TPU_LAYOUT_ADD(&layout, made.input_views, room->inputs);
  TPU_LAYOUT_ADD(&layout, made.writes, room->inputs);
  TPU_LAYOUT_ADD(&layout, made.constants, room->constants);
  TPU_LAYOUT_ADD(&layout, made.results, room->results);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  *block = made;
  *out_template = block;
  return NULL;
}

int tpu_template_result_count(const tpu_template_t* made) { return (int)made->result_count; }
int tpu_template_record_count(const tpu_template_t* made) { return (int)made->record_count; }
bool tpu_template_writes(const tpu_template_t* made, int k) { return made->writes[k] != 0; }

/* --- numbers --- */

static bool is_same(const void* a, const void* b, size_t count, size_t size) {
  return count == 0 || memcmp(a, b, count * size) == 0;
}

/* Whether the two differ in nothing but what stands in their slots. */
static bool is_alike(const tpu_template_t* a, const tpu_template_t* b) {
  return a->word_count == b->word_count && a->input_count == b->input_count &&
         a->constant_count == b->constant_count && a->result_count == b->result_count &&
         a->random_slot_count == b->random_slot_count &&
         is_same(a->words, b->words, a->word_count, sizeof(*a->words)) &&
         is_same(a->input_views, b->input_views, a->input_count, sizeof(*a->input_views)) &&
         is_same(a->writes, b->writes, a->input_count, sizeof(*a->writes)) &&
         is_same(a->constants, b->constants, a->constant_count, sizeof(tpu_value_t*)) &&
         is_same(a->results, b->results, a->result_count, sizeof(*a->results));
}

static bool is_number(const tpu_number_t* number, uint32_t ref, tpu_slot_t slot) {
  if (!tpu_dtype_is_float(tpu_ref_scalar_dtype(ref))) {
    return !number->is_float && number->as_int == slot.as_int;
  }
  return slot.as_double == (number->is_float ? number->as_double : (double)number->as_int);
}

/* Two templates on the way through their slots. */
typedef struct binder_t {
  const tpu_template_t *made, *other;
  const tpu_number_t *mine, *theirs;
  int count;
  uint32_t slot, random_slots;
  uint32_t *slots, *places, bound;  // what was found
} binder_t;

/* The only number of the call that this slot has in both templates, or -1. Narrow integers are
 * none: a call checks whether a number fits them, and a replay does not. */
static int find_number(const binder_t* b, uint32_t ref, tpu_dtype_t computed) {
  int found = -1;
  tpu_dtype_t dtype = tpu_ref_scalar_dtype(ref);
  if (!tpu_dtype_is_float(dtype) && tpu_dtype_bytes(computed) < 4) return -1;
  for (int k = 0; k < b->count; ++k) {
    if (!is_number(&b->mine[k], ref, b->made->slots[b->slot]) ||
        !is_number(&b->theirs[k], ref, b->other->slots[b->slot])) {
      continue;
    }
    if (found >= 0) return -1;
    found = k;
  }
  return found;
}

/* False when the slot differs and is no number of the call. */
static bool bind_slot(binder_t* b, uint32_t ref, tpu_dtype_t computed) {
  const tpu_template_t* t = b->made;
  bool is_random =
      b->random_slots < t->random_slot_count && t->random_slots[b->random_slots] == b->slot;
  b->random_slots += is_random;
  if (is_random || t->slots[b->slot].bits == b->other->slots[b->slot].bits) return true;
  if (tpu_ref_kind(ref) != TPU_REF_SCALAR) return false;
  int place = find_number(b, ref, computed);
  if (place < 0) return false;
  b->slots[b->bound] = b->slot;
  b->places[b->bound++] = (uint32_t)place;
  return true;
}

bool tpu_template_bind_numbers(tpu_template_t* made, const tpu_template_t* other, int count,
                               const tpu_number_t* mine, const tpu_number_t* theirs) {
  if (!is_alike(made, other)) return false;
  binder_t b = {.made = made,
                .other = other,
                .mine = mine,
                .theirs = theirs,
                .count = count,
                .slots = made->number_slots,
                .places = made->number_places};
  const uint32_t* words = made->words;
  for (uint32_t i = 0; i < made->record_count; ++i) {
    tpu_record_t r = tpu_record_decode(words);
    for (int k = 0; k < r.operand_count; ++k) {
      uint32_t ref = tpu_record_ref(&r, k);
      if (!tpu_ref_has_slot(ref)) continue;
      if (!bind_slot(&b, ref, r.compute_dtype)) return false;
      ++b.slot;
    }
    words = r.results + r.result_count;
  }
  made->number_count = b.bound;
  return true;
}

void tpui_template_free(tpu_template_t* made) {
  for (uint32_t k = 0; k < made->constant_count; ++k) {
    tpu_value_release(&made->engine->pool, made->constants[k]);
  }
  tpu_free(made);
}

void tpu_template_destroy(tpu_template_t* made) {
  if (made == NULL) return;
  tpu_engine_t* e = made->engine;
  tpu_mutex_lock(&e->lock);
  tpui_template_free(made);
  tpu_mutex_unlock(&e->lock);
}
