/* From random words to a distribution's numbers, a chunk at a time. Internal to host/. */
#ifndef TPU_HOST_DISTRIBUTIONS_H_
#define TPU_HOST_DISTRIBUTIONS_H_

#include "host/random.h"

/* Elements of a chunk: a few arrays of this size stay in the first-level cache. */
enum { TPUI_CHUNK = 1024 };

typedef struct tpui_chunk_t {
  const tpu_random_draw_t* draw;
  tpu_dtype_t result;
  int count;              // elements wanted, at most TPUI_CHUNK
  int drawn;              // count rounded up to what Philox makes
  const uint32_t* words;  // [drawn]
  const uint32_t* low;    // [drawn]: the second stream; see tpui_chunk_needs_low
  const void *a, *b;      // [count] parameters in the draw's math dtype
  void* out;              // [count] of the result's dtype
} tpui_chunk_t;

/* Whether draws take two words. */
bool tpui_chunk_needs_low(const tpu_random_draw_t* draw);
/* Fills `out`. tpu_random_takes must hold. */
void tpui_chunk_fill(const tpui_chunk_t* chunk);

#endif  // TPU_HOST_DISTRIBUTIONS_H_
