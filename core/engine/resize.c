/* Growing and shrinking storages. */
#include "engine/append.h"
#include "engine/flush.h"
#include "engine/lane.h"
#include "engine/storage.h"
#include "engine/watch.h"
#include "ops/op_ids.h"

static tpu_status_t resize_content(tpui_lane_t* lane, tpu_storage_t* storage, int64_t nbytes) {
  const tpu_meta_t* meta = tpu_meta_get(storage->value->meta);
  int64_t item = (int64_t)tpu_dtype_bytes(meta->dtype);
  tpu_dtype_t dtype = nbytes % item == 0 && storage->nbytes % item == 0 ? meta->dtype : TPU_U8;
  int64_t size = nbytes / (int64_t)tpu_dtype_bytes(dtype);
  tpu_value_t *flat = NULL, *resized = NULL;
  TPU_RETURN_IF_ERROR(tpui_storage_flat_value(lane, storage, dtype, &flat));
  tpu_meta_id_t result = 0;
  tpu_status_t status = tpu_meta_intern_contiguous(dtype, 1, &size, &result);
  if (status == NULL) {
    tpui_internal_operand_t operand = {.value = flat, .view = flat->meta};
    status = tpui_record_internal(lane, TPU_OP_STORAGE_RESIZE, 1, &operand, result, &resized);
  }
  tpu_value_release(&lane->engine->pool, flat);
  return status == NULL ? tpui_storage_bind(lane, storage, resized, false) : status;
}

static tpu_status_t resize_storage(tpui_lane_t* lane, tpu_storage_t* storage, int64_t nbytes) {
  tpu_engine_t* e = lane->engine;
  if (nbytes < 0) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "storage resize to %lld bytes", (long long)nbytes);
  }
  if (nbytes == storage->nbytes) return NULL;
  void* address = NULL;
  if (nbytes > 0) TPU_RETURN_IF_ERROR(tpu_address_take(e->addresses, nbytes, storage, &address));
  if (TPU_UNLIKELY(lane->capture != NULL)) tpui_capture_bound(lane, storage);
  if (nbytes == 0) {
    tpu_value_release(&e->pool, storage->value);
    tpui_storage_set(storage, NULL);
  } else if (storage->value != NULL) {
    tpu_status_t status = resize_content(lane, storage, nbytes);
    if (status != NULL) {
      tpu_address_give(e->addresses, address);
      return status;
    }
  }
  tpu_address_give(e->addresses, storage->address);
  storage->address = address;
  storage->nbytes = nbytes;
  return NULL;
}

tpu_status_t tpu_storage_resize(tpu_storage_t* storage, int64_t nbytes) {
  tpui_lane_t* lane = NULL;
  const tpu_result_t written = {.storage = storage};
  const tpui_touch_t touch = {.result_count = 1, .results = &written};
  TPU_RETURN_IF_ERROR(tpui_lane_enter(storage->engine, &touch, &lane));
  return tpui_recording_end(lane, resize_storage(lane, storage, nbytes));
}
