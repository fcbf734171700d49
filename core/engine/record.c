/* Recording: the hot path. */
#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "engine/channel.h"
#include "engine/flush.h"
#include "engine/lane.h"
#include "engine/storage.h"
#include "engine/watch.h"

#define INLINE_WORDS 96
#define INLINE_RESULTS 8

static void push_operands(tpu_recorder_t* recorder, const tpu_call_t* call) {
  for (int k = 0; k < call->operand_count; ++k) {
    const tpu_operand_t* operand = &call->operands[k];
    switch (operand->kind) {
      case TPU_OPERAND_TENSOR:
        tpu_recorder_tensor(recorder, operand->storage->value, operand->view, operand->offset);
        break;
      case TPU_OPERAND_SCALAR:
        tpu_recorder_scalar(recorder, (tpu_dtype_t)operand->scalar_dtype, operand->wrapped, 0,
                            (tpu_slot_t){.as_int = operand->number_int});
        break;
      default: tpu_recorder_none(recorder);
    }
  }
}

/* A written result is computed in the destination's dtype; where it does not become the whole
 * storage, it is laid out row-major and then written through the view. */
static tpu_status_t written_meta(const tpu_result_t* result, tpu_meta_id_t* out_meta) {
  if (TPU_LIKELY(tpui_storage_is_whole(result->storage, result->meta, result->offset))) {
    *out_meta = result->meta;
    return NULL;
  }
  const tpu_meta_t* meta = tpu_meta_get(result->meta);
  return tpu_meta_intern_contiguous(meta->dtype, meta->rank, meta->sizes, out_meta);
}

static tpu_status_t created_meta(tpu_meta_id_t wanted, tpu_meta_id_t* out_meta) {
  *out_meta = wanted;
  const tpu_meta_t* meta = tpu_meta_get(wanted);
  if (TPU_LIKELY(meta->dense)) return NULL;
  return tpu_meta_intern_contiguous(meta->dtype, meta->rank, meta->sizes, out_meta);
}

static size_t write_signature(const tpu_call_t* call, uint32_t* words) {
  size_t n = TPU_RECORD_HEADER_WORDS;
  tpu_record_encode(words, call->op, call->operand_count, call->result_count,
                    (uint8_t)call->variant, call->attrs, TPU_DTYPE_INVALID);
  for (int k = 0; k < call->operand_count; ++k) {
    const tpu_operand_t* operand = &call->operands[k];
    words[n++] = operand->kind == TPU_OPERAND_TENSOR ? operand->view
                 : operand->kind == TPU_OPERAND_SCALAR
                     ? tpu_ref_scalar((tpu_dtype_t)operand->scalar_dtype, operand->wrapped != 0)
                     : tpu_ref_make(TPU_REF_NONE, 0);
  }
  for (int k = 0; k < call->result_count; ++k) {
    if (call->results[k].storage != NULL) words[n++] = call->results[k].meta;
  }
  return n;
}

/* Answers metadata from the expected record. Written results have their own metadata already. */
static bool answer_from_match(tpu_call_t* call, const uint32_t* known, tpu_meta_id_t* metas) {
  tpu_record_t record = tpu_record_decode(known);
  for (int k = 0; k < call->result_count; ++k) {
    if (call->results[k].storage == NULL) {
      metas[k] = record.results[k];
    } else if (metas[k] != record.results[k]) {
      return false;
    }
  }
  call->compute_dtype = record.compute_dtype;
  return true;
}

static void answer_from_memo(tpu_call_t* call, const uint32_t* answer, tpu_meta_id_t* metas) {
  call->compute_dtype = (tpu_dtype_t)answer[0];
  for (int k = 0; k < call->result_count; ++k) {
    if (call->results[k].storage == NULL) metas[k] = answer[1 + k];
  }
}

static tpu_status_t learn_answer(tpu_engine_t* e, const tpu_call_t* call, const uint32_t* signature,
                                 size_t size, const tpu_meta_id_t* metas) {
  uint32_t answer[INLINE_WORDS + 1] = {(uint32_t)call->compute_dtype};
  if (call->result_count > INLINE_WORDS) return NULL;  // asked again next time
  for (int k = 0; k < call->result_count; ++k) answer[1 + k] = metas[k];
  return tpu_memo_learn(e->memo, signature, size, answer, 1 + (size_t)call->result_count);
}

/* Fills metas[] for all results; sets *out_unknown when nobody knows. */
static tpu_status_t resolve_metas(tpui_lane_t* lane, tpu_call_t* call, uint8_t variant,
                                  uint32_t* signature, tpu_meta_id_t* metas, bool* out_unknown) {
  tpu_engine_t* e = lane->engine;
  for (int k = 0; k < call->result_count; ++k) {
    const tpu_result_t* result = &call->results[k];
    if (TPU_UNLIKELY(variant == TPU_CALL_THROUGH)) {
      metas[k] = result->storage->value->meta;
    } else if (result->storage != NULL) {
      TPU_RETURN_IF_ERROR(written_meta(result, &metas[k]));
    } else if (call->has_metas) {
      TPU_RETURN_IF_ERROR(created_meta(result->meta, &metas[k]));
    }
  }
  if (call->has_metas) {
    if (!call->teach) return NULL;
    call->teach = false;
    return learn_answer(e, call, signature, write_signature(call, signature), metas);
  }
  const uint32_t* known = tpu_recorder_match(&lane->recorder, call->op, call->operand_count,
                                             call->result_count, variant, call->attrs);
  if (known != NULL && answer_from_match(call, known, metas)) {
    ++e->stats.predicted;
    return NULL;
  }
  size_t size = write_signature(call, signature);
  const uint32_t* answer = tpu_memo_find(e->memo, signature, size);
  if (answer == NULL) {
    *out_unknown = true;
    call->teach = true;
    return NULL;
  }
  answer_from_memo(call, answer, metas);
  return NULL;
}

/* Hands the new values to storages. Takes all of them. */
static tpu_status_t place_results(tpui_lane_t* lane, tpu_call_t* call, const tpu_meta_id_t* metas,
                                  tpu_value_t** values) {
  tpu_engine_t* e = lane->engine;
  tpu_status_t status = NULL;
  for (int k = 0; k < call->result_count; ++k) {
    tpu_result_t* result = &call->results[k];
    if (TPU_UNLIKELY(status != NULL)) {
      tpu_value_release(&e->pool, values[k]);
    } else if (result->storage != NULL) {
      status = tpui_storage_write(lane, result->storage, result->meta, result->offset, values[k]);
    } else {
      result->meta = metas[k];
      result->offset = 0;
      status = tpui_storage_make(e, tpu_meta_bytes(tpu_meta_get(metas[k])), &result->storage);
      if (TPU_LIKELY(status == NULL)) {
        tpui_storage_set(result->storage, values[k]);
      } else {
        tpu_value_release(&e->pool, values[k]);
      }
    }
  }
  return status;
}

/* Scratch of one call; on the stack unless the call is unusually wide. */
typedef struct scratch_t {
  uint32_t inline_signature[INLINE_WORDS];
  tpu_meta_id_t inline_metas[INLINE_RESULTS];
  tpu_value_t* inline_values[INLINE_RESULTS];
  uint32_t* signature;
  tpu_meta_id_t* metas;
  tpu_value_t** values;
  void* memory;
} scratch_t;

static tpu_status_t scratch_open(scratch_t* s, const tpu_call_t* call) {
  s->signature = s->inline_signature;
  s->metas = s->inline_metas;
  s->values = s->inline_values;
  s->memory = NULL;
  size_t words = 3 + (size_t)call->operand_count + (size_t)call->result_count;
  if (TPU_LIKELY(words <= INLINE_WORDS && call->result_count <= INLINE_RESULTS)) return NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, s->values, (size_t)call->result_count);
  TPU_LAYOUT_ADD(&layout, s->metas, (size_t)call->result_count);
  TPU_LAYOUT_ADD(&layout, s->signature, words);
  return tpu_layout_allocate(&layout, &s->memory);
}

static tpu_status_t record_locked(tpui_lane_t* lane, tpu_call_t* call, scratch_t* s,
                                  bool* out_unknown) {
  TPU_RETURN_IF_ERROR(tpui_prepare_operands(lane, call->operand_count, call->operands,
                                            tpu_op_info(call->op)->name));
  if (TPU_UNLIKELY(lane->engine->captures > 0)) {
    tpui_capture_recorded(lane, (tpu_op_info(call->op)->flags & TPU_OP_RANDOM) != 0);
  }
  bool through = false;
  TPU_RETURN_IF_ERROR(tpui_storage_prepare_through(lane, call, &through));
  uint8_t variant = through ? TPU_CALL_THROUGH : (uint8_t)call->variant;
  TPU_RETURN_IF_ERROR(tpu_recorder_begin(&lane->recorder, call->operand_count, call->result_count));
  push_operands(&lane->recorder, call);
  tpu_status_t status = resolve_metas(lane, call, variant, s->signature, s->metas, out_unknown);
  if (TPU_UNLIKELY(status != NULL || *out_unknown)) {
    tpu_recorder_abandon(&lane->recorder);
    return status;
  }
  TPU_RETURN_IF_ERROR(tpu_recorder_commit(&lane->recorder, call->op, call->operand_count,
                                          call->result_count, variant, call->attrs,
                                          call->compute_dtype, s->metas, s->values));
  ++lane->engine->stats.records;
  if (TPU_UNLIKELY(through)) {
    return tpui_storage_bind(lane, call->results[0].storage, s->values[0], true);
  }
  return place_results(lane, call, s->metas, s->values);
}

/* A window of its own. */
static tpu_status_t record_apart(tpui_lane_t* lane, tpu_call_t* call, const tpui_touch_t* touch,
                                 scratch_t* s, bool* out_unknown) {
  TPU_RETURN_IF_ERROR(tpui_channel_prepare(lane, call, touch));
  TPU_RETURN_IF_ERROR(record_locked(lane, call, s, out_unknown));
  return tpui_channel_launch(lane, call->channel);
}

/* A failed call must not leave references behind that the caller does not know of. */
static void drop_results(tpu_call_t* call, uint64_t created_before) {
  for (int k = 0; k < call->result_count; ++k) {
    tpu_storage_t* storage = call->results[k].storage;
    if (storage == NULL || storage->serial <= created_before) continue;
    tpu_storage_release(storage);
    call->results[k].storage = NULL;
  }
}

/* Gives the lock back. */
static tpu_status_t record_entered(tpui_lane_t* lane, tpu_call_t* call, const tpui_touch_t* touch,
                                   scratch_t* s, bool* out_unknown) {
  tpu_engine_t* e = lane->engine;
  uint64_t created_before = e->next_serial;
  tpu_status_t status = TPU_UNLIKELY(call->channel != NULL)
                            ? record_apart(lane, call, touch, s, out_unknown)
                            : record_locked(lane, call, s, out_unknown);
  if (TPU_UNLIKELY(*out_unknown)) {
    tpu_mutex_unlock(&e->lock);
  } else {
    status = tpui_recording_end(lane, status);
  }
  if (TPU_UNLIKELY(status != NULL)) drop_results(call, created_before);
  return status;
}

tpu_status_t tpu_engine_record(tpu_engine_t* e, tpu_call_t* call, bool* out_unknown) {
  *out_unknown = false;
  if (TPU_UNLIKELY(call->operand_count > TPU_RECORD_MAX_COUNT ||
                   call->result_count > TPU_RECORD_MAX_COUNT)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "%s: %d operands and %d results; at most %d each",
                           tpu_op_info(call->op)->name, call->operand_count, call->result_count,
                           TPU_RECORD_MAX_COUNT);
  }
  scratch_t scratch;
  TPU_RETURN_IF_ERROR(scratch_open(&scratch, call));
  const tpui_touch_t touch = {.operand_count = call->operand_count,
                              .result_count = call->result_count,
                              .operands = call->operands,
                              .results = call->results};
  tpui_lane_t* lane;
  tpu_status_t status = tpui_lane_enter(e, &touch, &lane);
  if (TPU_LIKELY(status == NULL))
    status = record_entered(lane, call, &touch, &scratch, out_unknown);
  tpu_free(scratch.memory);
  return status;
}
