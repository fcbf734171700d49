/* Reading and writing tensors from and to host memory. */
#include <string.h>

#include "engine/append.h"
#include "engine/errors.h"
#include "engine/flags.h"
#include "engine/flight.h"
#include "engine/flush.h"
#include "engine/holders.h"
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

static bool is_cut(const tpu_engine_t* e, const tpu_value_t* value, const tpu_meta_t* view) {
  int64_t whole = tpu_meta_bytes(tpu_meta_get(value->meta));
  return !tpu_device_platform(e->device)->host_addressable && whole >= CUT_FROM_BYTES &&
         tpu_meta_bytes(view) <= whole / 2;
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
static tpu_status_t readable_value(tpu_engine_t* e, const tpu_operand_t* tensor,
                                   tpu_value_t** out_value, int64_t* out_offset) {
  tpu_storage_t* storage = tensor->storage;
  const tpu_meta_t* view = tpu_meta_get(tensor->view);
  *out_offset = 0;
  tpu_value_t* value = storage->value;
  if (value->state == TPU_VALUE_FAILED) {
    tpui_told(e, value);
    return tpu_status_copy(value->failed.error);
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
  return tpui_record_internal(e, TPU_OP_VIEW_READ, 1, &operand, dense, out_value);
}

/* Gives a READY value with one reference, or none when `dst` is filled already. */
static tpu_status_t read_locked(tpu_engine_t* e, const tpu_operand_t* tensor, void* dst,
                                int64_t size, tpu_value_t** out_value, int64_t* out_offset) {
  const tpu_meta_t* view = tpu_meta_get(tensor->view);
  if (view == NULL || size != tpu_meta_bytes(view)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "read of %lld bytes from a tensor of %lld",
                           (long long)size, view == NULL ? -1ll : (long long)tpu_meta_bytes(view));
  }
  if (TPU_UNLIKELY(e->capture != NULL) && tpui_capture_is_mine(e)) {
    tpui_capture_touched(e, "it reads a tensor's content on the host");
  }
  if (size == 0) return NULL;
  if (tensor->storage->value == NULL) {
    memset(dst, 0, (size_t)size);
    return NULL;
  }
  tpu_value_t* value = NULL;
  TPU_RETURN_IF_ERROR(readable_value(e, tensor, &value, out_offset));
  tpu_status_t status = value->state == TPU_VALUE_RECORDED ? tpui_flush(e) : NULL;
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

tpu_status_t tpu_engine_read(tpu_engine_t* engine, const tpu_operand_t* tensor, void* dst,
                             int64_t size) {
  tpu_value_t* value = NULL;
  int64_t offset = 0;
  tpu_mutex_lock(&engine->lock);
  tpu_status_t status = read_locked(engine, tensor, dst, size, &value, &offset);
  tpu_mutex_unlock(&engine->lock);
  if (status != NULL || value == NULL) return status;
  // The copy itself needs no lock: the value is held, so that no program may take its buffer.
  status = tpu_buffer_await_unless(value->ready.buffer, engine->stop);
  bool stopped = tpu_status_code(status) == TPU_CANCELLED;
  if (status == NULL) status = tpu_buffer_read(value->ready.buffer, offset, dst, size);
  tpu_mutex_lock(&engine->lock);
  if (!stopped) {
    // What went wrong up to here is told now: the content may come from it.
    tpu_status_t wrong = tpui_flags_look(engine, tpu_buffer_run(value->ready.buffer));
    if (status == NULL) {
      status = wrong;
    } else {
      tpu_status_free(wrong);
    }
    tpu_value_set_awaited(&engine->pool, value);
  }
  tpu_value_release(&engine->pool, value);
  tpu_mutex_unlock(&engine->lock);
  return status;
}

static tpu_status_t write_locked(tpu_engine_t* e, tpu_storage_t* storage, tpu_meta_id_t view,
                                 int64_t offset, tpu_meta_id_t meta, tpu_buffer_t* buffer) {
  tpu_value_t* value = NULL;
  tpu_status_t status = tpu_value_create(&e->pool, meta, &value);
  if (status != NULL) {
    tpu_buffer_release(buffer);
    return status;
  }
  tpu_value_fulfil(&e->pool, value, buffer);
  if (TPU_UNLIKELY(e->capture != NULL)) tpui_capture_constant(e, value);
  return tpui_storage_write(storage, view, offset, value);
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
  status = tpui_flush(e);
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
  TPU_RETURN_IF_ERROR(upload_content(engine, meta, src, &buffer));
  tpu_mutex_lock(&engine->lock);
  return tpui_recording_end(engine,
                            write_locked(engine, storage, view, offset, value_meta, buffer));
}
