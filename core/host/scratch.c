#include "host/scratch.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "base/alloc.h"

/* What counts as large, and the most that is kept. */
enum { LARGE_BYTES = 1 << 20, KEPT_BYTES = 1 << 26, PAGE_BYTES = 4096 };

/* In front of the memory; 16 bytes, so that what follows stays aligned. */
typedef struct block_t {
  size_t bytes;
  size_t unused;
} block_t;

static _Atomic(block_t*) kept;

static tpu_status_t allocate_block(size_t bytes, block_t** out_block) {
  void* memory = NULL;
  size_t capacity = 0;
  TPU_RETURN_IF_ERROR(tpu_grow(&memory, &capacity, sizeof(block_t) + bytes, 1));
  if (bytes >= LARGE_BYTES) {
    uintptr_t first = ((uintptr_t)memory + PAGE_BYTES - 1) & ~(uintptr_t)(PAGE_BYTES - 1);
    uintptr_t last = ((uintptr_t)memory + capacity) & ~(uintptr_t)(PAGE_BYTES - 1);
    (void)madvise((void*)first, last - first, MADV_HUGEPAGE);  // where the kernel has them
  }
  *out_block = memory;
  (*out_block)->bytes = capacity - sizeof(block_t);
  return NULL;
}

tpu_status_t tpui_scratch_take(size_t bytes, void** out_memory) {
  *out_memory = NULL;
  block_t* block = bytes >= LARGE_BYTES ? atomic_exchange(&kept, NULL) : NULL;
  if (block != NULL && block->bytes < bytes) {
    tpu_free(block);
    block = NULL;
  }
  if (block == NULL) TPU_RETURN_IF_ERROR(allocate_block(bytes, &block));
  *out_memory = block + 1;
  return NULL;
}

void tpui_scratch_give(void* memory) {
  if (memory == NULL) return;
  block_t* block = (block_t*)memory - 1;
  if (block->bytes >= LARGE_BYTES && block->bytes <= KEPT_BYTES) {
    block = atomic_exchange(&kept, block);
  }
  tpu_free(block);
}
