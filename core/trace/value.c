#include "trace/value.h"

#include <string.h>

#include "base/alloc.h"

#define SLAB_VALUES 256

static tpu_status_t pool_grow(tpu_value_pool_t* pool) {
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&pool->slabs, &pool->slab_capacity, pool->slab_count + 1,
                               sizeof(*pool->slabs)));
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(SLAB_VALUES, sizeof(tpu_value_t), &memory));
  tpu_value_t* slab = memory;
  pool->slabs[pool->slab_count++] = slab;
  for (int i = SLAB_VALUES - 1; i >= 0; --i) {
    slab[i].next_free = pool->free_list;
    pool->free_list = &slab[i];
  }
  return NULL;
}

tpu_status_t tpu_value_create(tpu_value_pool_t* pool, tpu_meta_id_t meta, tpu_value_t** out_value) {
  *out_value = NULL;
  if (TPU_UNLIKELY(pool->free_list == NULL)) TPU_RETURN_IF_ERROR(pool_grow(pool));
  tpu_value_t* value = pool->free_list;
  pool->free_list = value->next_free;
  *value = (tpu_value_t){.refs = 1, .state = TPU_VALUE_RECORDED, .meta = meta};
  *out_value = value;
  return NULL;
}

void tpu_value_release(tpu_value_pool_t* pool, tpu_value_t* value) {
  if (value == NULL || --value->refs > 0) return;
  if (value->slot != NULL) *value->slot = NULL;
  tpu_buffer_release(value->buffer);
  tpu_status_free(value->error);
  value->buffer = NULL;
  value->error = NULL;
  value->next_free = pool->free_list;
  pool->free_list = value;
}

void tpu_value_fulfil(tpu_value_t* value, tpu_buffer_t* buffer) {
  value->state = TPU_VALUE_READY;
  value->slot = NULL;
  value->buffer = buffer;
}

void tpu_value_fail(tpu_value_t* value, tpu_status_t error) {
  value->state = TPU_VALUE_FAILED;
  value->slot = NULL;
  value->error = error;
}

void tpu_value_pool_free(tpu_value_pool_t* pool) {
  for (size_t i = 0; i < pool->slab_count; ++i) tpu_free(pool->slabs[i]);
  tpu_free(pool->slabs);
  *pool = (tpu_value_pool_t){0};
}
