#include "trace/value.h"

#include <string.h>

#include "base/alloc.h"

_Static_assert(sizeof(tpu_value_t) <= 48, "every op makes one, and long windows hold many");

static tpu_status_t pool_grow(tpu_value_pool_t* pool) {
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&pool->slabs, &pool->slab_capacity, pool->slab_count + 1,
                               sizeof(*pool->slabs)));
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(TPU_VALUE_SLAB, sizeof(tpu_value_t), &memory));
  tpu_value_t* slab = memory;
  pool->slabs[pool->slab_count++] = slab;
  for (int i = TPU_VALUE_SLAB - 1; i >= 0; --i) {
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

static bool is_listed(const tpu_value_t* value) {
  return value->state == TPU_VALUE_READY && !value->awaited && !value->given;
}

static void list_value(tpu_value_pool_t* pool, tpu_value_t* value) {
  value->ready.older = pool->newest;
  value->ready.newer = NULL;
  *(pool->newest != NULL ? &pool->newest->ready.newer : &pool->oldest) = value;
  pool->newest = value;
  ++pool->unawaited_count;
}

static void unlist_value(tpu_value_pool_t* pool, tpu_value_t* value) {
  tpu_value_t *older = value->ready.older, *newer = value->ready.newer;
  *(older != NULL ? &older->ready.newer : &pool->oldest) = newer;
  *(newer != NULL ? &newer->ready.older : &pool->newest) = older;
  --pool->unawaited_count;
}

void tpu_value_release(tpu_value_pool_t* pool, tpu_value_t* value) {
  if (value == NULL || --value->refs > 0) return;
  if (value->state == TPU_VALUE_READY) {
    if (is_listed(value)) unlist_value(pool, value);
    tpu_buffer_release(value->ready.buffer);
  } else if (value->state == TPU_VALUE_FAILED) {
    tpu_status_free(value->failed.error);
  } else if (value->pending.slot != NULL) {
    *value->pending.slot = NULL;
  }
  value->next_free = pool->free_list;
  pool->free_list = value;
}

void tpu_value_fulfil(tpu_value_pool_t* pool, tpu_value_t* value, tpu_buffer_t* buffer) {
  value->state = TPU_VALUE_READY;
  value->ready.buffer = buffer;
  if (is_listed(value)) list_value(pool, value);
}

void tpu_value_fail(tpu_value_t* value, tpu_status_t error, uint64_t job) {
  value->state = TPU_VALUE_FAILED;
  value->failed.error = error;
  value->failed.job = job;
}

void tpu_value_set_awaited(tpu_value_pool_t* pool, tpu_value_t* value) {
  if (is_listed(value)) unlist_value(pool, value);
  value->awaited = true;
}

void tpu_value_set_given(tpu_value_pool_t* pool, tpu_value_t* value, bool given) {
  bool listed = is_listed(value);
  value->given = given;
  if (listed && given) unlist_value(pool, value);
  if (!listed && is_listed(value)) list_value(pool, value);
}

void tpu_value_pool_free(tpu_value_pool_t* pool) {
  for (size_t i = 0; i < pool->slab_count; ++i) tpu_free(pool->slabs[i]);
  tpu_free(pool->slabs);
  *pool = (tpu_value_pool_t){0};
}
