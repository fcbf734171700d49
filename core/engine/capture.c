/* Captures: watching one thread's records from begin to end, and making a template of them.
 *
 * The records are a template when nothing but the inputs went in and nothing but the results came
 * out: no host read, no flush, no write to a storage from outside but to inputs where that is
 * allowed. Host writes become constants, since a number that did not come from the device is the
 * same at every call.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "engine/flush.h"
#include "engine/lane.h"
#include "engine/storage.h"
#include "engine/template.h"
#include "engine/watch.h"

static void free_capture(tpu_engine_t* e, tpui_capture_t* c) {
  for (int k = 0; k < c->input_count; ++k) tpu_value_release(&e->pool, c->inputs[k].value);
  for (size_t k = 0; k < c->constant_count; ++k) tpu_value_release(&e->pool, c->constants[k]);
  tpu_free(c->constants);
  tpu_free(c);
}

static int64_t item_bytes(tpu_meta_id_t view) {
  return (int64_t)tpu_dtype_bytes(tpu_meta_get(view)->dtype);
}

static void note_input(tpui_captured_input_t* input, const tpu_operand_t* operand, bool writes) {
  if (operand->kind != TPU_OPERAND_TENSOR) return;
  bool whole = tpui_storage_is_whole(operand->storage, operand->view, operand->offset);
  if (writes && whole) input->storage = operand->storage;
  input->value = operand->storage->value;
  tpu_value_retain(input->value);
  input->view = operand->view;
  int64_t item = item_bytes(operand->view);
  input->begin = operand->offset * item;
  input->end = input->begin + tpu_meta_get(operand->view)->span * item;
}

static tpu_status_t begin_locked(tpui_lane_t* lane, int input_count, const tpu_operand_t* inputs,
                                 const tpu_capture_options_t* options) {
  TPU_RETURN_IF_ERROR(tpui_prepare_operands(lane, input_count, inputs, "an operation"));
  void* memory = NULL;
  tpui_capture_t* c = NULL;
  tpui_captured_input_t* places = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, c, 1);
  TPU_LAYOUT_ADD(&layout, places, (size_t)input_count);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  c->thread = pthread_self();
  c->first_record = (uint32_t)lane->recorder.record_count;
  c->first_value = (uint32_t)lane->recorder.value_count;
  c->first_serial = lane->engine->next_serial;
  c->max_records = options->max_records;
  c->recurs = options->recurs;
  c->draws = options->random != NULL;
  if (c->draws) c->random = *options->random;
  c->inputs = places;
  c->input_count = input_count;
  for (int k = 0; k < input_count; ++k) note_input(&c->inputs[k], &inputs[k], options->writes);
  lane->capture = c;
  ++lane->engine->captures;
  return NULL;
}

/* The lane where this thread captures; NULL if it does not. */
static tpui_lane_t* capturing_lane(const tpu_engine_t* e) {
  tpui_lane_t* lane = e->lanes;
  while (lane != NULL && (lane->capture == NULL || !tpui_capture_is_mine(lane))) lane = lane->next;
  return lane;
}

static void drop_capture(tpui_lane_t* lane) {
  free_capture(lane->engine, lane->capture);
  lane->capture = NULL;
  --lane->engine->captures;
}

tpu_status_t tpu_engine_capture_begin(tpu_engine_t* e, int input_count, const tpu_operand_t* inputs,
                                      const tpu_capture_options_t* options, bool* out_began) {
  *out_began = false;
  tpui_lane_t* lane = NULL;
  const tpui_touch_t touch = {.operand_count = input_count, .operands = inputs};
  TPU_RETURN_IF_ERROR(tpui_lane_enter(e, &touch, &lane));
  tpu_status_t status = NULL;
  if (lane->capture == NULL && capturing_lane(e) == NULL) {
    status = begin_locked(lane, input_count, inputs, options);
    *out_began = status == NULL;
  }
  tpu_mutex_unlock(&e->lock);
  return status;
}

/* --- at its end --- */

typedef struct builder_t {
  const tpui_capture_t* capture;
  const tpu_recorder_t* recorder;
  tpu_template_t* made;
  uint32_t slot_count;
  const char* obstacle;
} builder_t;

/* The input that the reference reads a part of, or -1. An input's bytes beyond its view are none of
 * the call's business: they may lie elsewhere the next time. */
static int find_input(const builder_t* b, const tpu_value_t* value, tpu_meta_id_t view,
                      int64_t offset) {
  const tpui_capture_t* c = b->capture;
  int64_t item = item_bytes(view), begin = offset * item;
  int64_t end = begin + tpu_meta_get(view)->span * item;
  for (int k = 0; k < c->input_count; ++k) {
    const tpui_captured_input_t* input = &c->inputs[k];
    if (input->value != value || begin < input->begin || end > input->end) continue;
    // Where the input lies next time need not be a multiple of a wider dtype.
    if (item <= item_bytes(input->view)) return k;
  }
  return -1;
}

static int find_constant(const builder_t* b, const tpu_value_t* value) {
  for (size_t k = 0; k < b->capture->constant_count; ++k) {
    if (b->capture->constants[k] == value) return (int)k;
  }
  return -1;
}

/* A reference to a value from before the capture. */
static uint32_t outer_reference(builder_t* b, const tpu_value_t* value, tpu_meta_id_t view,
                                bool has_offset, int64_t offset) {
  tpu_template_t* t = b->made;
  int input = value == NULL ? -1 : find_input(b, value, view, offset);
  if (input >= 0) {
    t->slots[b->slot_count++].as_int = offset * item_bytes(view) - b->capture->inputs[input].begin;
    return tpu_ref_make(TPU_REF_EXTERNAL, (uint32_t)input) | TPU_REF_VIEW_BIT;
  }
  int constant = value == NULL ? -1 : find_constant(b, value);
  if (constant < 0) {
    b->obstacle = "it reads a tensor that is not among its arguments";
    return tpu_ref_make(TPU_REF_NONE, 0);
  }
  if (has_offset) t->slots[b->slot_count++].as_int = offset;
  return tpu_ref_make(TPU_REF_EXTERNAL, t->input_count + (uint32_t)constant) |
         (has_offset ? TPU_REF_VIEW_BIT : 0);
}

/* The template's reference for a window's; takes its slot along. */
static uint32_t translate_ref(builder_t* b, uint32_t ref, tpu_meta_id_t view, tpu_slot_t slot) {
  uint32_t index = tpu_ref_index(ref), view_bit = ref & TPU_REF_VIEW_BIT;
  int64_t offset = view_bit != 0 ? slot.as_int : 0;
  switch (tpu_ref_kind(ref)) {
    case TPU_REF_WINDOW:
      if (index < b->capture->first_value) {
        return outer_reference(b, b->recorder->values[index], view, view_bit != 0, offset);
      }
      if (view_bit != 0) b->made->slots[b->slot_count++] = slot;
      return tpu_ref_make(TPU_REF_WINDOW, index - b->capture->first_value) | view_bit;
    case TPU_REF_EXTERNAL:
      return outer_reference(b, b->recorder->externals[index], view, view_bit != 0, offset);
    case TPU_REF_SCALAR: b->made->slots[b->slot_count++] = slot; return ref;
    default: return ref;
  }
}

/* The record's last two operands, seed and offset, have just got their slots: the offset is kept as
 * the distance from where the generator stood. Those that draw only sometimes may have none. */
static void add_random_state(builder_t* b, const tpu_record_t* record) {
  tpu_template_t* t = b->made;
  const tpui_capture_t* c = b->capture;
  if (!c->draws) {
    b->obstacle = "it draws random numbers";
    return;
  }
  for (int k = 1; k <= 2 && k <= record->operand_count; ++k) {
    uint32_t ref = tpu_record_ref(record, record->operand_count - k);
    if (tpu_ref_kind(ref) != TPU_REF_SCALAR) return;
  }
  tpu_slot_t* state = t->slots + b->slot_count - 2;
  if (state[0].as_int != c->random.seed || state[1].as_int < c->random.offset) {
    b->obstacle = "it draws random numbers from another generator, or sets its state";
  }
  state[1].as_int -= c->random.offset;
  t->random_slots[t->random_slot_count++] = b->slot_count - 2;
  t->random_slots[t->random_slot_count++] = b->slot_count - 1;
}

static void add_record(builder_t* b, const tpu_window_t* window, uint32_t index) {
  tpu_record_t record;
  tpu_window_record(window, index, &record);
  if ((tpu_op_info(record.op)->flags & TPU_OP_HOST) != 0) {
    b->obstacle = "a part of it runs on the host";  // and each run is counted
    return;
  }
  tpu_template_t* t = b->made;
  const uint32_t* words = window->words + window->record_words[index];
  uint32_t size = tpu_record_size(record.operand_count, record.result_count);
  uint32_t *copy = t->words + t->word_count, slot = record.first_slot;
  memcpy(copy, words, size * sizeof(uint32_t));
  for (int k = 0; k < record.operand_count; ++k) {
    uint32_t ref = tpu_record_ref(&record, k);
    tpu_slot_t number = {0};
    if (tpu_ref_has_slot(ref)) number = window->slots[slot++];
    copy[TPU_RECORD_HEADER_WORDS + 2 * k] =
        translate_ref(b, ref, tpu_record_view(&record, k), number);
  }
  if ((tpu_op_info(record.op)->flags & TPU_OP_RANDOM) != 0) add_random_state(b, &record);
  t->word_count += size;
  ++t->record_count;
  t->value_count += (uint32_t)record.result_count;
}

static bool holds_own_value(const builder_t* b, const tpu_storage_t* storage) {
  const tpu_value_t* value = storage->value;
  return value != NULL && value->state == TPU_VALUE_RECORDED &&
         value->pending.window == b->recorder->window_id &&
         value->pending.number >= b->capture->first_value;
}

static uint32_t own_number(const builder_t* b, const tpu_value_t* value) {
  return value->pending.number - b->capture->first_value;
}

static void add_results(builder_t* b, int count, const tpu_operand_t* results) {
  tpu_template_t* t = b->made;
  for (int k = 0; k < count; ++k) {
    const tpu_storage_t* storage = results[k].storage;
    if (storage->serial <= b->capture->first_serial || !holds_own_value(b, storage)) {
      b->obstacle = "a result was not computed by it";
      return;
    }
    uint32_t first = 0;
    while (results[first].storage != storage) ++first;
    t->results[t->result_count++] = (tpui_template_result_t){
        .value = own_number(b, storage->value),
        .first = first,
        .view = results[k].view,
        .offset = results[k].offset,
        .storage_bytes = storage->nbytes,
    };
  }
}

/* Each of two inputs in one storage would have to see what is written to the other. */
static bool shares_memory(const tpui_capture_t* c, int k) {
  for (int j = 0; j < c->input_count; ++j) {
    if (j != k && c->inputs[j].value == c->inputs[k].value) return true;
  }
  return false;
}

/* Inputs whose storages have other content now. */
static void add_writes(builder_t* b) {
  const tpui_capture_t* c = b->capture;
  for (int k = 0; k < c->input_count; ++k) {
    const tpui_captured_input_t* input = &c->inputs[k];
    const tpu_storage_t* storage = input->storage;
    if (storage == NULL || storage->value == input->value) continue;
    if (!holds_own_value(b, storage)) {
      b->obstacle = "it writes to an argument from the host";
    } else if (!tpui_storage_is_whole(storage, input->view, 0)) {
      b->obstacle = "it resizes an argument";
    } else if (shares_memory(c, k)) {
      b->obstacle = "it writes to one of two arguments that share memory";
    } else {
      b->made->writes[k] = 1 + own_number(b, storage->value);
    }
  }
}

/* Leaves `*out_template` NULL and sets b->obstacle when the records are none. */
static tpu_status_t build_template(tpui_lane_t* lane, builder_t* b, const char* name,
                                   int result_count, const tpu_operand_t* results,
                                   tpu_template_t** out_template) {
  const tpui_capture_t* c = b->capture;
  tpu_window_t window;
  tpu_recorder_window(&lane->recorder, &window);
  if (window.record_count - c->first_record > c->max_records) {
    b->obstacle = "it takes too many steps";
  }
  if (c->first_record == window.record_count) b->obstacle = "it computes nothing";
  if (b->obstacle != NULL) return NULL;
  tpui_template_room_t room = {
      .words = window.word_count - window.record_words[c->first_record],
      .inputs = (size_t)c->input_count,
      .constants = c->constant_count,
      .results = (size_t)result_count,
  };
  TPU_RETURN_IF_ERROR(tpui_template_create(lane->engine, name, &room, &b->made));
  tpu_template_t* t = b->made;
  t->input_count = (uint32_t)c->input_count;
  t->recurs = c->recurs;
  for (int k = 0; k < c->input_count; ++k) t->input_views[k] = c->inputs[k].view;
  for (uint32_t i = c->first_record; i < window.record_count && b->obstacle == NULL; ++i) {
    add_record(b, &window, i);
  }
  if (b->obstacle == NULL) add_results(b, result_count, results);
  if (b->obstacle == NULL) add_writes(b);
  if (b->obstacle != NULL) {
    tpui_template_free(t);
    return NULL;
  }
  for (size_t k = 0; k < c->constant_count; ++k) {
    tpu_value_retain(c->constants[k]);
    t->constants[t->constant_count++] = c->constants[k];
  }
  lane->window_recurs |= t->recurs;
  *out_template = t;
  return NULL;
}

static tpu_status_t end_locked(tpui_lane_t* lane, const char* name, int result_count,
                               const tpu_operand_t* results, tpu_template_t** out_template,
                               const char** out_obstacle) {
  tpui_capture_t* c = lane->capture;
  builder_t b = {.capture = c, .recorder = &lane->recorder, .obstacle = c->obstacle};
  tpu_status_t status = NULL;
  if (!c->interrupted && c->obstacle == NULL) {
    status = tpui_prepare_operands(lane, result_count, results, name);
    if (status == NULL)
      status = build_template(lane, &b, name, result_count, results, out_template);
  }
  *out_obstacle = c->interrupted ? NULL : b.obstacle;
  return status;
}

tpu_status_t tpu_engine_capture_end(tpu_engine_t* e, const char* name, int result_count,
                                    const tpu_operand_t* results, tpu_template_t** out_template,
                                    const char** out_obstacle) {
  *out_template = NULL;
  *out_obstacle = NULL;
  tpu_mutex_lock(&e->lock);
  tpui_lane_t* lane = capturing_lane(e);
  tpu_status_t status = end_locked(lane, name, result_count, results, out_template, out_obstacle);
  drop_capture(lane);
  status = tpui_recording_end(lane, status);  // what the mode put off during the capture
  if (status != NULL) {
    tpu_template_destroy(*out_template);
    *out_template = NULL;
  }
  return status;
}

void tpu_engine_capture_cancel(tpu_engine_t* e) {
  tpu_mutex_lock(&e->lock);
  drop_capture(capturing_lane(e));
  tpu_mutex_unlock(&e->lock);
}
