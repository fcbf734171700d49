#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc_hooks.h"

static _Atomic int64_t allocations;
static _Atomic int64_t frees;
static _Atomic int64_t fail_countdown;

// True once per tpu_alloc_fail_at, for the allocation it named. Threads that race for the last
// count must not both fail, so the step from 1 to 0 is a compare-and-swap.
static bool injected_failure(void) {
  int64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
  while (TPU_UNLIKELY(left > 0)) {
    if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) return left == 1;
  }
  return false;
}

static void count_allocation(void) {
  atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
}

static void count_free(void) { atomic_fetch_add_explicit(&frees, 1, memory_order_relaxed); }

static tpu_status_t out_of_memory(size_t count, size_t size) {
  return tpu_status_make(TPU_RESOURCE_EXHAUSTED,
                         "out of host memory: %zu elements of %zu bytes for bookkeeping", count,
                         size);
}

void* tpui_alloc(size_t bytes) {
  if (bytes == 0 || injected_failure()) return NULL;
  void* pointer = malloc(bytes);
  if (pointer != NULL) count_allocation();
  return pointer;
}

tpu_status_t tpu_calloc(size_t count, size_t size, void** out) {
  *out = NULL;
  if (count == 0 || size == 0) return NULL;
  size_t bytes;
  bool fails = injected_failure() || __builtin_mul_overflow(count, size, &bytes);
  void* pointer = fails ? NULL : calloc(1, bytes);
  if (pointer == NULL) return out_of_memory(count, size);
  count_allocation();
  *out = pointer;
  return NULL;
}

// The next capacity, or 0 when its byte size does not fit into a size_t.
static size_t grown_capacity(size_t capacity, size_t needed, size_t size) {
  size_t next = capacity < 8 ? 8 : capacity;
  while (next < needed) {
    if (next > SIZE_MAX / 2) return 0;
    next *= 2;
  }
  size_t bytes;
  return __builtin_mul_overflow(next, size, &bytes) ? 0 : next;
}

tpu_status_t tpu_grow(void** inout_data, size_t* inout_capacity, size_t needed, size_t size) {
  if (needed <= *inout_capacity || size == 0) return NULL;
  size_t capacity = grown_capacity(*inout_capacity, needed, size);
  if (capacity == 0 || injected_failure()) return out_of_memory(needed, size);
  bool had_data = *inout_data != NULL;
  void* data = realloc(*inout_data, capacity * size);
  if (data == NULL) return out_of_memory(capacity, size);
  count_allocation();
  if (had_data) count_free();
  *inout_data = data;
  *inout_capacity = capacity;
  return NULL;
}

void tpu_free(void* pointer) {
  if (pointer == NULL) return;
  count_free();
  free(pointer);
}

void tpu_alloc_fail_at(int64_t n) { atomic_store(&fail_countdown, n > 0 ? n : 0); }

bool tpu_alloc_fail_pending(void) { return atomic_load(&fail_countdown) > 0; }

int64_t tpu_alloc_live_count(void) { return atomic_load(&allocations) - atomic_load(&frees); }

int64_t tpu_alloc_total_count(void) { return atomic_load(&allocations); }
