/* Replay: appending a template's records for new inputs. */
#include <string.h>

#include "base/alloc.h"
#include "engine/flush.h"
#include "engine/lane.h"
#include "engine/storage.h"
#include "engine/template.h"
#include "engine/watch.h"

#define INLINE_VALUES 64

/* A replay on its way through the template's words and slots. */
typedef struct replay_t {
  const tpu_template_t* made;
  const tpu_operand_t* inputs;
  const uint32_t* words;
  const tpu_slot_t* slots;
  const tpu_random_state_t* random;
  const tpu_number_t* numbers;
  uint32_t random_slots;  // how many were passed
  uint32_t number_slots;  // the same of the call's numbers
  tpu_value_t** values;   // what was made so far
  uint32_t value_count;
} replay_t;

static bool is_as_captured(const tpu_template_t* t, uint32_t k, const tpu_operand_t* input) {
  tpu_meta_id_t view = input->kind == TPU_OPERAND_TENSOR ? input->view : 0;
  if (view != t->input_views[k]) return false;
  return t->writes[k] == 0 || tpui_storage_is_whole(input->storage, view, input->offset);
}

static tpu_status_t check_inputs(const tpu_template_t* t, const tpu_operand_t* inputs) {
  for (uint32_t k = 0; k < t->input_count; ++k) {
    if (TPU_UNLIKELY(!is_as_captured(t, k, &inputs[k]))) {
      return tpu_status_make(TPU_INVALID_ARGUMENT,
                             "%s: input %u differs from the one that was captured", t->name, k);
    }
  }
  return NULL;
}

static void push_external(tpui_lane_t* lane, replay_t* p, uint32_t ref, tpu_meta_id_t view) {
  const tpu_template_t* t = p->made;
  tpu_recorder_t* r = &lane->recorder;
  uint32_t index = tpu_ref_index(ref);
  int64_t number = (ref & TPU_REF_VIEW_BIT) != 0 ? (p->slots++)->as_int : 0;
  if (index >= t->input_count) {
    tpu_value_t* constant = t->constants[index - t->input_count];
    if (TPU_UNLIKELY(lane->capture != NULL)) tpui_capture_constant(lane, constant);
    tpu_recorder_tensor(r, constant, view, number);
    return;
  }
  const tpu_operand_t* input = &p->inputs[index];
  int64_t item = (int64_t)tpu_dtype_bytes(tpu_meta_get(view)->dtype);
  int64_t begin = input->offset * (int64_t)tpu_dtype_bytes(tpu_meta_get(input->view)->dtype);
  tpu_recorder_tensor(r, input->storage->value, view, (begin + number) / item);
}

/* The number of the call for this slot of a SCALAR. */
static tpu_slot_t call_number(replay_t* p, uint32_t ref) {
  const tpu_number_t* given = &p->numbers[p->made->number_places[p->number_slots++]];
  tpu_slot_t number = {.as_int = given->as_int};
  if (tpu_dtype_is_float(tpu_ref_scalar_dtype(ref))) {
    number.as_double = given->is_float ? given->as_double : (double)given->as_int;
  }
  return number;
}

/* The number of the next slot; those of random states follow the generator. */
static tpu_slot_t next_number(replay_t* p, uint32_t ref) {
  const tpu_template_t* t = p->made;
  tpu_slot_t number = *p->slots;
  uint32_t slot = (uint32_t)(p->slots++ - t->slots);
  if (p->number_slots < t->number_count && t->number_slots[p->number_slots] == slot) {
    return call_number(p, ref);
  }
  if (TPU_LIKELY(p->random_slots == t->random_slot_count ||
                 t->random_slots[p->random_slots] != slot)) {
    return number;
  }
  bool is_seed = p->random_slots++ % 2 == 0;
  number.as_int = is_seed ? p->random->seed : p->random->offset + number.as_int;
  return number;
}

static void push_operand(tpui_lane_t* lane, replay_t* p, uint32_t ref, tpu_meta_id_t view) {
  tpu_recorder_t* r = &lane->recorder;
  switch (tpu_ref_kind(ref)) {
    case TPU_REF_WINDOW: {
      int64_t offset = (ref & TPU_REF_VIEW_BIT) != 0 ? (p->slots++)->as_int : 0;
      tpu_recorder_tensor(r, p->values[tpu_ref_index(ref)], view, offset);
      break;
    }
    case TPU_REF_EXTERNAL: push_external(lane, p, ref, view); break;
    case TPU_REF_SCALAR:
      tpu_recorder_scalar(r, tpu_ref_scalar_dtype(ref), tpu_ref_scalar_is_weak(ref), view,
                          next_number(p, ref));
      break;
    default: tpu_recorder_none(r);
  }
}

static tpu_status_t append_record(tpui_lane_t* lane, replay_t* p) {
  tpu_record_t r = tpu_record_decode(p->words);
  TPU_RETURN_IF_ERROR(tpu_recorder_begin(&lane->recorder, r.operand_count, r.result_count));
  for (int k = 0; k < r.operand_count; ++k) {
    push_operand(lane, p, tpu_record_ref(&r, k), tpu_record_view(&r, k));
  }
  TPU_RETURN_IF_ERROR(tpu_recorder_commit(&lane->recorder, r.op, r.operand_count, r.result_count,
                                          r.variant, r.attrs, r.compute_dtype, r.results,
                                          p->values + p->value_count));
  p->value_count += (uint32_t)r.result_count;
  p->words = r.results + r.result_count;
  ++lane->engine->stats.records;
  if (lane->recorder.predicted != NULL) ++lane->engine->stats.predicted;
  return NULL;
}

static tpu_status_t place_results(tpu_engine_t* e, const replay_t* p, tpu_result_t* results) {
  for (uint32_t k = 0; k < p->made->result_count; ++k) {
    const tpui_template_result_t* made = &p->made->results[k];
    tpu_result_t* result = &results[k];
    result->meta = made->view;
    result->offset = made->offset;
    if (made->first != k) {
      result->storage = results[made->first].storage;
      tpu_storage_retain(result->storage);
      continue;
    }
    TPU_RETURN_IF_ERROR(tpui_storage_make(e, made->storage_bytes, &result->storage));
    tpu_value_retain(p->values[made->value]);
    tpui_storage_set(result->storage, p->values[made->value]);
  }
  return NULL;
}

static tpu_status_t write_inputs(tpui_lane_t* lane, const replay_t* p) {
  const tpu_template_t* t = p->made;
  for (uint32_t k = 0; k < t->input_count; ++k) {
    if (TPU_LIKELY(t->writes[k] == 0)) continue;
    tpu_value_t* value = p->values[t->writes[k] - 1];
    tpu_value_retain(value);
    TPU_RETURN_IF_ERROR(tpui_storage_bind(lane, p->inputs[k].storage, value, true));
  }
  return NULL;
}

static tpu_status_t replay_locked(tpui_lane_t* lane, replay_t* p, tpu_result_t* results) {
  tpu_engine_t* e = lane->engine;
  const tpu_template_t* t = p->made;
  TPU_RETURN_IF_ERROR(check_inputs(t, p->inputs));
  TPU_RETURN_IF_ERROR(tpui_prepare_operands(lane, (int)t->input_count, p->inputs, t->name));
  tpu_status_t status = NULL;
  for (uint32_t i = 0; i < t->record_count && status == NULL; ++i) status = append_record(lane, p);
  lane->window_recurs |= t->recurs;
  if (status == NULL) status = place_results(e, p, results);
  if (status == NULL) status = write_inputs(lane, p);
  // Steps in between live on only where a result keeps them; without results nothing does.
  for (uint32_t i = 0; i < p->value_count; ++i) tpu_value_release(&e->pool, p->values[i]);
  if (e->captures > 0) tpui_capture_recorded(lane, t->random_slot_count > 0);
  return status;
}

tpu_status_t tpu_engine_replay(tpu_engine_t* e, const tpu_template_t* made,
                               const tpu_operand_t* inputs, const tpu_random_state_t* random,
                               const tpu_number_t* numbers, tpu_result_t* results) {
  for (uint32_t k = 0; k < made->result_count; ++k) results[k] = (tpu_result_t){0};
  if (made->random_slot_count > 0 && random == NULL) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "%s: it draws numbers from no generator",
                           made->name);
  }
  if (made->number_count > 0 && numbers == NULL) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "%s: it was given none of its numbers",
                           made->name);
  }
  tpu_value_t* inline_values[INLINE_VALUES];
  void* memory = inline_values;
  if (made->value_count > INLINE_VALUES) {
    TPU_RETURN_IF_ERROR(tpu_calloc(made->value_count, sizeof(void*), &memory));
  }
  replay_t replay = {
      .made = made, .inputs = inputs, .words = made->words, .slots = made->slots, .random = random};
  replay.values = memory;
  replay.numbers = numbers;
  tpui_lane_t* lane = NULL;
  const tpui_touch_t touch = {.operand_count = (int)made->input_count, .operands = inputs};
  tpu_status_t status = tpui_lane_enter(e, &touch, &lane);
  if (status == NULL) status = tpui_recording_end(lane, replay_locked(lane, &replay, results));
  for (uint32_t k = 0; k < made->result_count && status != NULL; ++k) {
    tpu_storage_release(results[k].storage);
    results[k].storage = NULL;
  }
  if (memory != inline_values) tpu_free(memory);
  return status;
}
