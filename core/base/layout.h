/* Several arrays in one allocation.
 *
 *   tpu_layout_t layout;
 *   tpu_layout_init(&layout);
 *   TPU_LAYOUT_ADD(&layout, thing, 1);             // a pointer to set, and its number of elements
 *   TPU_LAYOUT_COPY(&layout, names, given, count);  // these are copied from `given`
 *   TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
 *
 * The allocation sets the pointers; when it fails they stay as they were. A pointer to no elements
 * points into the block as well: memcpy and memset take it, but it must not be read. Sums of bytes
 * are checked: one that does not fit is TPU_RESOURCE_EXHAUSTED, like memory that is not there.
 */
#ifndef TPU_BASE_LAYOUT_H_
#define TPU_BASE_LAYOUT_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TPU_LAYOUT_MAX_FIELDS 12

typedef struct tpu_layout_field_t {
  void* pointer;       // the address of the pointer to set
  const void* source;  // NULL: nothing is copied
  size_t offset, bytes;
} tpu_layout_field_t;

typedef struct tpu_layout_t {
  size_t bytes;
  tpu_status_code_t refused;  // TPU_OK unless a sum did not fit or there were too many fields
  int count;
  tpu_layout_field_t fields[TPU_LAYOUT_MAX_FIELDS];
} tpu_layout_t;

static inline void tpu_layout_init(tpu_layout_t* layout) {
  layout->bytes = 0;
  layout->refused = TPU_OK;
  layout->count = 0;
}

/* `pointer` is an lvalue of pointer type, and stays where it is until the allocation. */
#define TPU_LAYOUT_ADD(layout, pointer, count) \
  tpu_layout_add((layout), (void*)&(pointer), NULL, (count), sizeof(*(pointer)))
/* `source` is read by the allocation. It may be NULL when `count` is 0. */
#define TPU_LAYOUT_COPY(layout, pointer, source, count) \
  tpu_layout_add((layout), (void*)&(pointer), (source), (count), sizeof(*(pointer)))

/* Elements of `size` bytes lie at a multiple of the largest power of two up to 16 that divides
 * `size`: no type of ours needs more. */
void tpu_layout_add(tpu_layout_t* layout, void* pointer, const void* source, size_t count,
                    size_t size);

/* Zeroed memory for all fields, but for what is copied. Free `*out_memory` with tpu_free. */
TPU_MUST_USE tpu_status_t tpu_layout_allocate(const tpu_layout_t* layout, void** out_memory);

/* The same in memory that is kept from use to use and grown as needed. It is not zeroed. */
TPU_MUST_USE tpu_status_t tpu_layout_reuse(const tpu_layout_t* layout, void** inout_memory,
                                           size_t* inout_capacity);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_LAYOUT_H_
