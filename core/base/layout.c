#include "base/layout.h"

#include <string.h>

#include "base/alloc.h"

#define MOST_ALIGNMENT 16

static size_t alignment_of(size_t size) {
  size_t power = size & (~size + 1);
  return power > 0 && power < MOST_ALIGNMENT ? power : MOST_ALIGNMENT;
}

void tpu_layout_add(tpu_layout_t* layout, void* pointer, const void* source, size_t count,
                    size_t size) {
  size_t alignment = alignment_of(size), bytes, reached, offset;
  if (layout->count == TPU_LAYOUT_MAX_FIELDS) {
    layout->refused = TPU_INTERNAL;
    return;
  }
  bool overflow = __builtin_mul_overflow(count, size, &bytes);
  overflow |= __builtin_add_overflow(layout->bytes, alignment - 1, &reached);
  offset = reached - reached % alignment;
  overflow |= __builtin_add_overflow(offset, bytes, &layout->bytes);
  if (TPU_UNLIKELY(overflow)) layout->refused = TPU_RESOURCE_EXHAUSTED;
  layout->fields[layout->count++] = (tpu_layout_field_t){pointer, source, offset, bytes};
}

static tpu_status_t check_size(const tpu_layout_t* layout) {
  if (TPU_LIKELY(layout->refused == TPU_OK)) return NULL;
  return tpu_status_make(
      layout->refused, layout->refused == TPU_INTERNAL
                           ? "a layout of too many fields"
                           : "out of host memory: more bytes for bookkeeping than can be counted");
}

/* A block of no bytes would be NULL, which its pointers must not be. */
static size_t block_bytes(const tpu_layout_t* layout) {
  return layout->bytes > 0 ? layout->bytes : 1;
}

static void set_pointers(const tpu_layout_t* layout, void* memory) {
  for (int i = 0; i < layout->count; ++i) {
    const tpu_layout_field_t* field = &layout->fields[i];
    void* at = (char*)memory + field->offset;
    memcpy(field->pointer, &at, sizeof(at));
    if (field->source != NULL) memcpy(at, field->source, field->bytes);
  }
}

tpu_status_t tpu_layout_allocate(const tpu_layout_t* layout, void** out_memory) {
  *out_memory = NULL;
  TPU_RETURN_IF_ERROR(check_size(layout));
  TPU_RETURN_IF_ERROR(tpu_calloc(block_bytes(layout), 1, out_memory));
  set_pointers(layout, *out_memory);
  return NULL;
}

tpu_status_t tpu_layout_reuse(const tpu_layout_t* layout, void** inout_memory,
                              size_t* inout_capacity) {
  TPU_RETURN_IF_ERROR(check_size(layout));
  TPU_RETURN_IF_ERROR(tpu_grow(inout_memory, inout_capacity, block_bytes(layout), 1));
  set_pointers(layout, *inout_memory);
  return NULL;
}
