/* Programs that do the same with other numbers: one executable can serve them, when those numbers
 * are arguments. The steps of a recurrent layer are such programs: each reads another place of one
 * sequence.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/layout.h"
#include "partition/partition.h"

/* A program written down so that equal words mean equal texts but for the numbers: values are named
 * by where the program makes or receives them. */
typedef struct shape_t {
  uint64_t hash;
  size_t first_word, word_count;
  uint32_t first_slot, slot_count;  // in writer_t.slots
  uint32_t first_alike;             // the first program with these words; may be itself
} shape_t;

typedef struct writer_t {
  const tpu_window_t* window;
  uint32_t* words;
  size_t word_count, word_capacity;
  uint32_t* slots;  // the window's slots in the order in which programs use them
  uint32_t slot_count;
  uint32_t *value_names, *external_names;  // within the current program
} writer_t;

/* Room for `words` must have been made. */
static void put_word(writer_t* w, uint32_t word) { w->words[w->word_count++] = word; }

static void put_operand(writer_t* w, const tpu_record_t* r, int k) {
  uint32_t ref = tpu_record_ref(r, k), index = tpu_ref_index(ref);
  uint32_t name = index;  // of a SCALAR: its dtype
  if (tpu_ref_kind(ref) == TPU_REF_WINDOW) name = w->value_names[index];
  if (tpu_ref_kind(ref) == TPU_REF_EXTERNAL) name = w->external_names[index];
  // What a value was made from does not matter: WINDOW and EXTERNAL inputs are arguments alike.
  bool value = tpu_ref_kind(ref) == TPU_REF_WINDOW || tpu_ref_kind(ref) == TPU_REF_EXTERNAL;
  put_word(w, value ? 0 : 1 + (uint32_t)tpu_ref_kind(ref));
  put_word(w, name);
  put_word(w, (ref & TPU_REF_VIEW_BIT) != 0);
  put_word(w, tpu_record_view(r, k));
}

static tpu_status_t put_record(writer_t* w, uint32_t record, uint32_t* made) {
  tpu_record_t r;
  tpu_window_record(w->window, record, &r);
  size_t room = 6 + 4 * (size_t)r.operand_count + (size_t)r.result_count;
  TPU_RETURN_IF_ERROR(
      tpu_grow((void**)&w->words, &w->word_capacity, w->word_count + room, sizeof(uint32_t)));
  put_word(w, (uint32_t)r.op);
  put_word(w, (uint32_t)r.variant);
  put_word(w, (uint32_t)r.compute_dtype);
  put_word(w, r.attrs);
  put_word(w, (uint32_t)r.operand_count);
  put_word(w, (uint32_t)r.result_count);
  for (int k = 0; k < r.operand_count; ++k) put_operand(w, &r, k);
  for (int k = 0; k < r.result_count; ++k) {
    put_word(w, r.results[k]);
    w->value_names[r.first_value + (uint32_t)k] = (*made)++;
  }
  for (tpu_slot_walk_t at = tpu_record_slots(&r); tpu_record_next_slot(&r, &at);) {
    w->slots[w->slot_count++] = at.slot;
  }
  return NULL;
}

static tpu_status_t put_program(writer_t* w, const tpu_program_t* program, shape_t* shape) {
  uint32_t made = program->input_count;
  size_t ends = 2 * (size_t)program->input_count + program->output_count + 3;
  shape->first_word = w->word_count;
  shape->first_slot = w->slot_count;
  TPU_RETURN_IF_ERROR(
      tpu_grow((void**)&w->words, &w->word_capacity, w->word_count + ends, sizeof(uint32_t)));
  put_word(w, program->input_count);
  for (uint32_t i = 0; i < program->input_count; ++i) {
    uint32_t ref = program->inputs[i].ref, index = tpu_ref_index(ref);
    *(tpu_ref_kind(ref) == TPU_REF_WINDOW ? &w->value_names[index] : &w->external_names[index]) = i;
    put_word(w, tpu_window_ref_meta(w->window, ref));
    put_word(w, program->inputs[i].donatable);
  }
  for (uint32_t i = 0; i < program->record_count; ++i) {
    TPU_RETURN_IF_ERROR(put_record(w, program->records[i], &made));
  }
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&w->words, &w->word_capacity,
                               w->word_count + program->output_count, sizeof(uint32_t)));
  for (uint32_t i = 0; i < program->output_count; ++i) {
    put_word(w, w->value_names[program->outputs[i]]);
  }
  shape->word_count = w->word_count - shape->first_word;
  shape->slot_count = w->slot_count - shape->first_slot;
  shape->hash = tpu_hash_bytes(w->words + shape->first_word, shape->word_count * sizeof(uint32_t),
                               shape->word_count);
  return NULL;
}

static bool are_alike(const writer_t* w, const shape_t* a, const shape_t* b) {
  return a->hash == b->hash && a->word_count == b->word_count &&
         memcmp(w->words + a->first_word, w->words + b->first_word,
                a->word_count * sizeof(uint32_t)) == 0;
}

/* Marks the slots of `first` that differ from those of `other`. */
static void mark_differences(const writer_t* w, const shape_t* first, const shape_t* other,
                             uint8_t* dynamic) {
  for (uint32_t i = 0; i < first->slot_count; ++i) {
    uint32_t a = w->slots[first->first_slot + i], b = w->slots[other->first_slot + i];
    if (w->window->slots[a].bits != w->window->slots[b].bits) dynamic[a] = 1;
  }
}

/* What is an argument of the first program of a kind is one of all of them. */
static void copy_marks(const writer_t* w, const shape_t* first, const shape_t* other,
                       uint8_t* dynamic) {
  for (uint32_t i = 0; i < first->slot_count; ++i) {
    dynamic[w->slots[other->first_slot + i]] |= dynamic[w->slots[first->first_slot + i]];
  }
}

static void mark_dynamic(const writer_t* w, shape_t* shapes, uint32_t count, uint8_t* dynamic) {
  for (uint32_t p = 0; p < count; ++p) {
    uint32_t first = 0;
    while (first < p && !are_alike(w, &shapes[first], &shapes[p])) ++first;
    shapes[p].first_alike = first;
    mark_differences(w, &shapes[first], &shapes[p], dynamic);
  }
  for (uint32_t p = 0; p < count; ++p) {
    copy_marks(w, &shapes[shapes[p].first_alike], &shapes[p], dynamic);
  }
}

tpu_status_t tpu_partition_share(const tpu_window_t* window, const tpu_partition_t* partition,
                                 uint8_t* dynamic) {
  writer_t w = {.window = window};
  shape_t* shapes = NULL;
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, shapes, partition->program_count);
  TPU_LAYOUT_ADD(&layout, w.slots, window->slot_count);
  TPU_LAYOUT_ADD(&layout, w.value_names, window->value_count);
  TPU_LAYOUT_ADD(&layout, w.external_names, window->external_count);
  tpu_status_t status = tpu_layout_allocate(&layout, &memory);
  for (uint32_t p = 0; status == NULL && p < partition->program_count; ++p) {
    status = put_program(&w, &partition->programs[p], &shapes[p]);
  }
  if (status == NULL) mark_dynamic(&w, shapes, partition->program_count, dynamic);
  tpu_free(w.words);
  tpu_free(memory);
  return status;
}
