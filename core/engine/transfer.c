/* Reading and writing tensors from and to host memory. */
#include <string.h>

#include "base/events.h"
#include "engine/append.h"
#include "engine/errors.h"
#include "engine/flags.h"
#include "engine/flight.h"
#include "engine/flush.h"
#include "engine/holders.h"
#include "engine/lane.h"
#include "engine/storage.h"
#include "engine/watch.h"
#include "ops/op_ids.h"

/* A device whose memory the host cannot address hands out whole values. From this size on, half of
 * one or less is cut out by a program first: a launch costs about what such a transfer does. */
#define CUT_FROM_BYTES (1 << 20)

/* True where the tensor's bytes are a contiguous piece of the value's, whatever the dtypes. */
static bool is_piece(const tpu_value_t* value, const tpu_operand_t* tensor) {
  const tpu_meta_t* base = tpu_meta_get(value->meta);
  const tpu_meta_t* view = tpu_meta_get(tensor->view);
  if (value->meta == tensor->view && tensor->offset == 0) return true;
  if (!base->contiguous || !view->contiguous) return false;
  int64_t offset = tensor->offset * (int64_t)tpu_dtype_bytes(view->dtype);
  return offset + tpu_meta_bytes(view) <= tpu_meta_bytes(base);
}

/* Where memory is all but full, what is there must still be readable. */
static bool has_room(const tpu_engine_t* e, int64_t bytes) {
  tpu_memory_stats_t stats;
  tpu_device_memory_stats(e->device, &stats);
  return stats.bytes_limit == 0 || stats.bytes_limit - stats.bytes_in_use > bytes + CUT_FROM_BYTES;
}

static bool is_cut(const tpu_engine_t* e, const tpu_value_t* value, const tpu_meta_t* view) {
  int64_t whole = tpu_meta_bytes(tpu_meta_get(value->meta)), part = tpu_meta_bytes(view);
  return !tpu_device_platform(e->device)->host_addressable && whole >= CUT_FROM_BYTES &&
         part <= whole / 2 && has_room(e, part);
}

/* A contiguous tensor as numbers of the value's own dtype, where it consists of whole ones: a
 * program that takes numbers apart compiles for as long as there are bytes. */
static tpu_status_t as_own_dtype(const tpu_value_t* value, tpu_meta_id_t* inout_view,
                                 int64_t* inout_offset) {
  const tpu_meta_t* view = tpu_meta_get(*inout_view);
  tpu_dtype_t dtype = tpu_meta_get(value->meta)->dtype;
  int64_t number = (int64_t)tpu_dtype_bytes(dtype);
  int64_t offset = *inout_offset * (int64_t)tpu_dtype_bytes(view->dtype);
  int64_t bytes = tpu_meta_bytes(view);
  if (view->dtype == dtype || !view->contiguous || (offset | bytes) % number != 0) return NULL;
  int64_t count = bytes / number;
  *inout_offset = offset / number;
  return tpu_meta_intern_contiguous(dtype, 1, &count, inout_view);
}

/* The content as it leaves the device: a piece of a value has its bytes there already; otherwise
 * the view is recorded as an op of its own. */
static tpu_status_t readable_value(tpui_lane_t* lane, const tpu_operand_t* tensor,
                                   tpu_value_t** out_value, int64_t* out_offset) {
  tpu_engine_t* e = lane->engine;
  tpu_storage_t* storage = tensor->storage;
  const tpu_meta_t* view = tpu_meta_get(tensor->view);
  *out_offset = 0;
  tpu_value_t* value = storage->value;
  if (value->state == TPU_VALUE_FAILED) {
    tpui_told(e, value);
    return tpu_status_copy(value->failed.error);
  }
  if (value->state == TPU_VALUE_HOLLOW) {
    return tpu_status_make(TPU_FAILED_PRECONDITION,
                           "a tensor of another thread's program for later has no content");
  }
  if (is_piece(value, tensor) && !is_cut(e, value, view)) {
    *out_offset = tensor->offset * (int64_t)tpu_dtype_bytes(view->dtype);
    tpu_value_retain(value);
    *out_value = value;
    return NULL;
  }
  tpui_internal_operand_t operand = {
      .value = value, .view = tensor->view, .number = tensor->offset};
  TPU_RETURN_IF_ERROR(as_own_dtype(value, &operand.view, &operand.number));
  view = tpu_meta_get(operand.view);
  tpu_meta_id_t dense;
  TPU_RETURN_IF_ERROR(tpu_meta_intern_contiguous(view->dtype, view->rank, view->sizes, &dense));
  return tpui_record_internal(lane, TPU_OP_VIEW_READ, 1, &operand, dense, out_value);
}

/* A READY value with one reference; none when there is nothing to read, or nothing was written. */
static tpu_status_t read_locked(tpui_lane_t* lane, const tpu_operand_t* tensor, int64_t size,
                                tpu_value_t** out_value, int64_t* out_offset) {
  tpu_engine_t* e = lane->engine;
  const tpu_meta_t* view = tpu_meta_get(tensor->view);
  if (view == NULL || size != tpu_meta_bytes(view)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "read of %lld bytes from a tensor of %lld",
                           (long long)size, view == NULL ? -1ll : (long long)tpu_meta_bytes(view));
  }
  if (TPU_UNLIKELY(lane->capture != NULL) && tpui_capture_is_mine(lane)) {
    tpui_capture_touched(lane, "it reads a tensor's content on the host");
  }
  if (size > 0 && TPU_UNLIKELY(lane->ahead)) {
    return tpu_status_make(
        TPU_FAILED_PRECONDITION,
        "a program for later asks for a tensor's content, which is not known yet "
        "(item(), a print, a branch on data, a copy to the host)");
  }
  if (size == 0 || tensor->storage->value == NULL) return NULL;
  tpu_value_t* value = NULL;
  TPU_RETURN_IF_ERROR(readable_value(lane, tensor, &value, out_offset));
  tpu_status_t status = value->state == TPU_VALUE_RECORDED ? tpui_flush(lane) : NULL;
  if (status == NULL) status = tpui_wait_value(e, value);
  if (status == NULL && value->state == TPU_VALUE_FAILED) {
    status = tpu_status_copy(value->failed.error);
    tpui_told(e, value);
  }
  if (status == NULL) {
    *out_value = value;
  } else {
    tpu_value_release(&e->pool, value);
  }
  return status;
}

/* Waits for the content of a value that is held, and tells what went wrong up to here. */
static tpu_status_t await_held(tpu_engine_t* e, tpu_value_t* value) {
  tpu_status_t status = tpu_buffer_await_unless(value->ready.buffer, e->stop);
  if (tpu_status_code(status) == TPU_CANCELLED) return status;
  tpu_mutex_lock(&e->lock);
  // The content may come from what went wrong.
  tpu_status_t wrong = tpui_flags_look(e, tpu_buffer_run(value->ready.buffer));
  if (status == NULL) {
    status = wrong;
  } else {
    tpu_status_free(wrong);
  }
  tpu_value_set_awaited(&e->pool, value);
  tpu_mutex_unlock(&e->lock);
  return status;
}

/* A value whose content is there, held with one reference: no program may take its buffer, and no
 * lock is needed to read it. None as in read_locked. */
static tpu_status_t hold_content(tpu_engine_t* engine, const tpu_operand_t* tensor, int64_t size,
                                 tpu_value_t** out_value, int64_t* out_offset) {
  tpui_lane_t* lane = NULL;
  const tpui_touch_t touch = {.operand_count = 1, .operands = tensor};
  *out_value = NULL;
  TPU_RETURN_IF_ERROR(tpui_lane_enter(engine, &touch, &lane));
  tpu_status_t status = read_locked(lane, tensor, size, out_value, out_offset);
  tpu_mutex_unlock(&engine->lock);
  if (status != NULL || *out_value == NULL) return status;
  status = await_held(engine, *out_value);
  if (status == NULL) return NULL;
  tpu_engine_end_loan(engine, *out_value);
  *out_value = NULL;
  return status;
}

tpu_status_t tpu_engine_read(tpu_engine_t* engine, const tpu_operand_t* tensor, void* dst,
                             int64_t size) {
  tpu_value_t* value = NULL;
  int64_t offset = 0;
  TPU_RETURN_IF_ERROR(hold_content(engine, tensor, size, &value, &offset));
  if (value == NULL) {
    if (size > 0) memset(dst, 0, (size_t)size);
    return NULL;
  }
  int64_t begin = tpu_event_begin();
  tpu_status_t status = tpu_buffer_read(value->ready.buffer, offset, dst, size);
  tpu_event_end(TPU_EVENT_TO_HOST, begin, "read", size);
  tpu_engine_end_loan(engine, value);
  return status;
}

tpu_status_t tpu_engine_lend(tpu_engine_t* engine, const tpu_operand_t* tensor, int64_t size,
                             tpu_loan_t** out_loan, void** out_data) {
  tpu_value_t* value = NULL;
  int64_t offset = 0;
  void* content = NULL;
  *out_loan = NULL;
  *out_data = NULL;
  if (!tpu_device_platform(engine->device)->host_addressable) return NULL;
  TPU_RETURN_IF_ERROR(hold_content(engine, tensor, size, &value, &offset));
  if (value == NULL) return NULL;
  tpu_status_t status = tpu_buffer_host_pointer(value->ready.buffer, &content);
  if (status != NULL) {
    tpu_engine_end_loan(engine, value);
    return status;
  }
  tpu_event_end(TPU_EVENT_TO_HOST, tpu_event_begin(), "lend", size);
  *out_loan = value;
  *out_data = (char*)content + offset;
  return NULL;
}

void tpu_engine_end_loan(tpu_engine_t* engine, tpu_loan_t* loan) {
  tpu_mutex_lock(&engine->lock);
  tpu_value_release(&engine->pool, loan);
  tpu_mutex_unlock(&engine->lock);
}

static tpu_status_t write_locked(tpui_lane_t* lane, tpu_storage_t* storage, tpu_meta_id_t view,
                                 int64_t offset, tpu_meta_id_t meta, tpu_buffer_t* buffer) {
  tpu_engine_t* e = lane->engine;
  tpu_value_t* value = NULL;
  tpu_status_t status = tpu_value_create(&e->pool, meta, &value);
  if (status != NULL) {
    tpu_buffer_release(buffer);
    return status;
  }
  tpu_value_fulfil(&e->pool, value, buffer);
  if (TPU_UNLIKELY(lane->capture != NULL)) tpui_capture_constant(lane, value);
  return tpui_storage_write(lane, storage, view, offset, value);
}

/* A buffer with this content. When it does not fit, what is recorded runs first: it holds inputs
 * that nobody else does. */
static tpu_status_t upload_content(tpu_engine_t* e, const tpu_meta_t* meta, const void* src,
                                   tpu_buffer_t** out_buffer) {
  tpu_status_t status =
      tpu_buffer_from_host(e->device, src, meta->dtype, meta->rank, meta->sizes, out_buffer);
  if (TPU_LIKELY(tpu_status_code(status) != TPU_RESOURCE_EXHAUSTED)) return status;
  tpu_status_free(status);
  tpu_mutex_lock(&e->lock);
  status = tpui_lanes_flush(e, true);
  if (status == NULL) status = tpui_wait_idle(e);
  if (status == NULL) {
    status = tpu_buffer_from_host(e->device, src, meta->dtype, meta->rank, meta->sizes, out_buffer);
  }
  status = tpui_add_holders(e, NULL, status);
  tpu_mutex_unlock(&e->lock);
  return status;
}

tpu_status_t tpu_engine_write(tpu_engine_t* engine, tpu_storage_t* storage, tpu_meta_id_t view,
                              int64_t offset, const void* src, int64_t size) {
  const tpu_meta_t* meta = tpu_meta_get(view);
  if (meta == NULL || size != tpu_meta_bytes(meta)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "write of %lld bytes to a tensor of %lld",
                           (long long)size, meta == NULL ? -1ll : (long long)tpu_meta_bytes(meta));
  }
  if (size == 0) return NULL;
  // A value that becomes the whole storage keeps the view's strides as its layout.
  tpu_meta_id_t value_meta = view;
  if (!tpui_storage_is_whole(storage, view, offset)) {
    TPU_RETURN_IF_ERROR(
        tpu_meta_intern_contiguous(meta->dtype, meta->rank, meta->sizes, &value_meta));
  }
  tpu_buffer_t* buffer = NULL;
  int64_t begin = tpu_event_begin();
  TPU_RETURN_IF_ERROR(upload_content(engine, meta, src, &buffer));
  tpu_event_end(TPU_EVENT_TO_DEVICE, begin, "write", size);
  tpui_lane_t* lane = NULL;
  const tpu_result_t written = {.storage = storage};
  const tpui_touch_t touch = {.result_count = 1, .results = &written};
  tpu_status_t status = tpui_lane_enter(engine, &touch, &lane);
  if (status != NULL) {
    tpu_buffer_release(buffer);
    return status;
  }
  return tpui_recording_end(lane, write_locked(lane, storage, view, offset, value_meta, buffer));
}
