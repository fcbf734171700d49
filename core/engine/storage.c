#include "engine/storage.h"

#include "base/alloc.h"
#include "engine/append.h"
#include "engine/errors.h"
#include "engine/watch.h"
#include "ops/op_ids.h"

static tpu_status_t grow_storages(tpu_engine_t* e) {
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&e->storage_slabs, &e->storage_slab_capacity,
                               e->storage_slab_count + 1, sizeof(void*)));
  tpu_storage_t* slab = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(TPUI_SLAB_STORAGES, sizeof(tpu_storage_t), (void**)&slab));
  e->storage_slabs[e->storage_slab_count++] = slab;
  for (int i = TPUI_SLAB_STORAGES - 1; i >= 0; --i) {
    slab[i].next_free = e->free_storages;
    e->free_storages = &slab[i];
  }
  return NULL;
}

tpu_status_t tpui_storage_make(tpu_engine_t* e, int64_t nbytes, tpu_storage_t** out_storage) {
  *out_storage = NULL;
  if (TPU_UNLIKELY(nbytes < 0)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT,
                           "a storage of %lld bytes: size must not be negative", (long long)nbytes);
  }
  if (TPU_UNLIKELY(e->free_storages == NULL)) TPU_RETURN_IF_ERROR(grow_storages(e));
  tpu_storage_t* storage = e->free_storages;
  void* address = NULL;
  if (nbytes > 0) {
    TPU_RETURN_IF_ERROR(tpu_address_take(e->addresses, nbytes, storage, &address));
  }
  e->free_storages = storage->next_free;
  storage->engine = e;
  tpui_storage_set(storage, NULL);
  storage->nbytes = nbytes;
  storage->address = address;
  storage->serial = ++e->next_serial;
  atomic_store_explicit(&storage->refs, 1, memory_order_relaxed);
  *out_storage = storage;
  return NULL;
}

tpu_status_t tpu_storage_create(tpu_engine_t* engine, int64_t nbytes, tpu_storage_t** out_storage) {
  tpu_mutex_lock(&engine->lock);
  tpu_status_t status = tpui_storage_make(engine, nbytes, out_storage);
  tpu_mutex_unlock(&engine->lock);
  return status;
}

void tpu_storage_retain(tpu_storage_t* storage) {
  if (storage != NULL) atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
}

void tpu_storage_release(tpu_storage_t* storage) {
  if (storage == NULL) return;
  int32_t refs = atomic_load_explicit(&storage->refs, memory_order_relaxed);
  while (refs > 1) {
    if (atomic_compare_exchange_weak_explicit(&storage->refs, &refs, refs - 1, memory_order_release,
                                              memory_order_relaxed)) {
      return;
    }
  }
  tpu_engine_t* e = storage->engine;
  tpu_mutex_lock(&e->lock);
  // The last reference goes under the lock: tpu_storage_find makes new ones under it.
  if (atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) == 1) {
    tpu_value_release(&e->pool, storage->value);
    tpu_address_give(e->addresses, storage->address);
    tpui_storage_set(storage, NULL);
    storage->next_free = e->free_storages;
    e->free_storages = storage;
  }
  tpu_mutex_unlock(&e->lock);
}

void* tpu_storage_address(const tpu_storage_t* storage) { return storage->address; }
int64_t tpu_storage_nbytes(const tpu_storage_t* storage) { return storage->nbytes; }

tpu_storage_state_t tpu_storage_state(const tpu_storage_t* storage) {
  static const tpu_storage_state_t states[] = {
      [TPU_VALUE_RECORDED] = TPU_STORAGE_RECORDED, [TPU_VALUE_LAUNCHED] = TPU_STORAGE_LAUNCHED,
      [TPU_VALUE_READY] = TPU_STORAGE_READY,       [TPU_VALUE_FAILED] = TPU_STORAGE_FAILED,
      [TPU_VALUE_HOLLOW] = TPU_STORAGE_READY,
  };
  tpu_engine_t* e = storage->engine;
  tpu_mutex_lock(&e->lock);
  const tpu_value_t* value = storage->value;
  tpu_storage_state_t state = value != NULL ? states[value->state] : TPU_STORAGE_READY;
  tpu_mutex_unlock(&e->lock);
  return state;
}

tpu_storage_t* tpu_storage_find(tpu_engine_t* engine, const void* address) {
  tpu_mutex_lock(&engine->lock);
  tpu_storage_t* storage = tpu_address_owner(engine->addresses, address);
  tpu_storage_retain(storage);
  tpu_mutex_unlock(&engine->lock);
  return storage;
}

tpu_status_t tpu_storage_view(const tpu_storage_t* storage, tpu_dtype_t dtype, int rank,
                              const int64_t* sizes, const int64_t* strides,
                              tpu_meta_id_t* out_view) {
  // Without the lock this is a guess that the comparison proves or refutes; metadata lives forever.
  tpu_meta_id_t guess = atomic_load_explicit(&storage->layout, memory_order_relaxed);
  const tpu_meta_t* meta = tpu_meta_get(guess);
  if (TPU_LIKELY(meta != NULL) && meta->dtype == dtype &&
      tpu_meta_matches(meta, rank, sizes, strides)) {
    *out_view = guess;
    return NULL;
  }
  return tpu_meta_intern(dtype, rank, sizes, strides, out_view);
}

tpu_status_t tpui_storage_flat(const tpu_storage_t* storage, tpu_dtype_t dtype,
                               tpu_meta_id_t* out_meta) {
  int64_t item = (int64_t)tpu_dtype_bytes(dtype), size = storage->nbytes / (item > 0 ? item : 1);
  if (storage->nbytes % (item > 0 ? item : 1) != 0) {
    dtype = TPU_U8;
    size = storage->nbytes;
  }
  return tpu_meta_intern_contiguous(dtype, 1, &size, out_meta);
}

bool tpui_storage_is_whole(const tpu_storage_t* storage, tpu_meta_id_t view, int64_t offset) {
  const tpu_meta_t* meta = tpu_meta_get(view);
  return offset == 0 && meta->dense && tpu_meta_bytes(meta) == storage->nbytes;
}

static tpu_status_t push_undo(tpui_lane_t* lane, tpu_storage_t* storage, uint32_t number) {
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&lane->undo, &lane->undo_capacity, lane->undo_count + 1,
                               sizeof(tpui_undo_t)));
  tpu_value_t* old = storage->value;
  tpui_undo_t undo = {.storage = storage, .serial = storage->serial, .number = number};
  if (old->state != TPU_VALUE_RECORDED) {
    undo.old = old;
    tpu_value_retain(old);
  } else {
    undo.old_number = old->pending.number;
  }
  lane->undo[lane->undo_count++] = undo;
  return NULL;
}

tpu_status_t tpui_storage_bind(tpui_lane_t* lane, tpu_storage_t* storage, tpu_value_t* value,
                               bool undoable) {
  tpu_engine_t* e = lane->engine;
  if (TPU_UNLIKELY(lane->capture != NULL)) tpui_capture_bound(lane, storage);
  if (undoable && storage->value != NULL && storage->value->state != TPU_VALUE_FAILED &&
      value->state == TPU_VALUE_RECORDED) {
    tpu_status_t status = push_undo(lane, storage, value->pending.number);
    if (TPU_UNLIKELY(status != NULL)) {
      tpu_value_release(&e->pool, value);
      return status;
    }
  }
  tpu_value_release(&e->pool, storage->value);
  tpui_storage_set(storage, value);
  return NULL;
}

tpu_status_t tpui_storage_ensure_value(tpui_lane_t* lane, tpu_storage_t* storage,
                                       tpu_meta_id_t view) {
  if (TPU_LIKELY(storage->value != NULL)) return NULL;
  tpu_meta_id_t meta = view;
  if (!tpui_storage_is_whole(storage, view, 0)) {
    TPU_RETURN_IF_ERROR(tpui_storage_flat(storage, tpu_meta_get(view)->dtype, &meta));
  }
  tpu_value_t* value = NULL;
  if (TPU_UNLIKELY(lane->ahead)) {
    TPU_RETURN_IF_ERROR(tpu_value_create(&lane->engine->pool, meta, &value));
    value->state = TPU_VALUE_HOLLOW;
  } else {
    TPU_RETURN_IF_ERROR(tpui_record_internal(lane, TPU_OP_STORAGE_ZERO, 0, NULL, meta, &value));
  }
  return tpui_storage_bind(lane, storage, value, false);
}

tpu_status_t tpui_storage_flat_value(tpui_lane_t* lane, tpu_storage_t* storage, tpu_dtype_t dtype,
                                     tpu_value_t** out_value) {
  tpu_meta_id_t flat;
  TPU_RETURN_IF_ERROR(tpui_storage_flat(storage, dtype, &flat));
  if (storage->value->meta == flat) {
    *out_value = storage->value;
    tpu_value_retain(storage->value);
    return NULL;
  }
  tpui_internal_operand_t base = {.value = storage->value, .view = flat};
  return tpui_record_internal(lane, TPU_OP_VIEW_READ, 1, &base, flat, out_value);
}

tpu_status_t tpui_storage_write(tpui_lane_t* lane, tpu_storage_t* storage, tpu_meta_id_t view,
                                int64_t offset, tpu_value_t* value) {
  tpu_engine_t* e = lane->engine;
  if (tpui_storage_is_whole(storage, view, offset)) {
    return tpui_storage_bind(lane, storage, value, true);
  }
  const tpu_meta_t* meta = tpu_meta_get(view);
  tpu_status_t status = tpui_storage_ensure_value(lane, storage, view);
  tpu_value_t* base = NULL;
  if (status == NULL && tpu_meta_get(storage->value->meta)->dtype != meta->dtype) {
    status = tpui_storage_flat_value(lane, storage, meta->dtype, &base);
  } else if (status == NULL) {
    base = storage->value;
    tpu_value_retain(base);
  }
  tpu_value_t* written = NULL;
  if (status == NULL) {
    tpui_internal_operand_t operands[3] = {{.value = base, .view = base->meta},
                                           {.value = value, .view = value->meta},
                                           {.view = view, .number = offset}};
    status = tpui_record_internal(lane, TPU_OP_VIEW_WRITE, 3, operands, base->meta, &written);
  }
  if (status == NULL) status = tpui_storage_bind(lane, storage, written, true);
  tpu_value_release(&e->pool, base);
  tpu_value_release(&e->pool, value);
  return status;
}

static bool goes_through(const tpu_call_t* call) {
  if (call->variant != TPU_CALL_IN_PLACE || call->result_count != 1) return false;
  const tpu_operand_t* self = &call->operands[0];
  const tpu_result_t* result = &call->results[0];
  const tpu_meta_t* view = tpu_meta_get(result->meta);
  return self->kind == TPU_OPERAND_TENSOR && self->storage == result->storage &&
         self->view == result->meta && self->offset == result->offset && view->numel > 0 &&
         (self->offset != 0 || result->meta != self->storage->value->meta);
}

tpu_status_t tpui_storage_prepare_through(tpui_lane_t* lane, const tpu_call_t* call,
                                          bool* out_through) {
  *out_through = false;
  if (TPU_LIKELY((tpu_op_info(call->op)->flags & TPU_OP_SPARSE) == 0)) return NULL;
  if (!goes_through(call)) return NULL;
  *out_through = true;
  tpu_storage_t* storage = call->results[0].storage;
  const tpu_meta_t* content = tpu_meta_get(storage->value->meta);
  tpu_dtype_t dtype = tpu_meta_get(call->results[0].meta)->dtype;
  if (TPU_LIKELY(content->contiguous && content->dtype == dtype)) return NULL;
  tpu_value_t* flat = NULL;
  TPU_RETURN_IF_ERROR(tpui_storage_flat_value(lane, storage, dtype, &flat));
  return tpui_storage_bind(lane, storage, flat, true);
}

/* Operands must have values before the draft begins, since giving one records an op. */
tpu_status_t tpui_prepare_operands(tpui_lane_t* lane, int count, const tpu_operand_t* operands,
                                   const char* reader) {
  for (int k = 0; k < count; ++k) {
    const tpu_operand_t* operand = &operands[k];
    if (operand->kind != TPU_OPERAND_TENSOR) continue;
    tpu_storage_t* storage = operand->storage;
    if (TPU_UNLIKELY(storage->value == NULL)) {
      TPU_RETURN_IF_ERROR(tpui_storage_ensure_value(lane, storage, operand->view));
    }
    if (TPU_UNLIKELY(storage->value->state == TPU_VALUE_FAILED)) {
      tpui_told(lane->engine, storage->value);
      return tpu_status_annotate(tpu_status_copy(storage->value->failed.error),
                                 "%s reads a tensor whose computation failed", reader);
    }
    if (TPU_UNLIKELY(storage->value->state == TPU_VALUE_HOLLOW && !lane->ahead)) {
      return tpu_status_make(TPU_FAILED_PRECONDITION,
                             "%s reads a tensor of another thread's program for later", reader);
    }
  }
  return NULL;
}
