/* Host memory for the core's own bookkeeping (never tensor data).
 *
 * Every allocation in core/ goes through these functions, so that tests can make the n-th one fail
 * and count what was not given back. Sizes go through checked arithmetic.
 */
#ifndef TPU_BASE_ALLOC_H_
#define TPU_BASE_ALLOC_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed memory for `count` elements of `size` bytes; TPU_RESOURCE_EXHAUSTED when out of memory or
 * when the product overflows. `*out` is NULL for zero bytes. Free with tpu_free. */
TPU_MUST_USE tpu_status_t tpu_calloc(size_t count, size_t size, void** out);

/* Grows (never shrinks) an array of `size`-byte elements to hold at least `needed` elements;
 * doubles the capacity. `*inout_data` and `*inout_capacity` stay as they were on failure. New
 * memory is not initialised. */
TPU_MUST_USE tpu_status_t tpu_grow(void** inout_data, size_t* inout_capacity, size_t needed,
                                   size_t size);

void tpu_free(void* pointer);

/* Not zeroed, and NULL when out of memory or for 0 bytes. Only for status.c, which cannot report a
 * failure through a status; everybody else uses tpu_calloc. */
void* tpui_alloc(size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_ALLOC_H_
