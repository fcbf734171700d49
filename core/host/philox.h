/* Philox 4x32-10. Internal to host/. */
#ifndef TPU_HOST_PHILOX_H_
#define TPU_HOST_PHILOX_H_

#include <stdbool.h>
#include <stdint.h>

/* Blocks are made in groups of this many. */
#define TPUI_PHILOX_GROUP 8

/* Four words per block, block after block. Block i has the counter (low, high), two words each, low
 * one first, with i added to `high` when `count_high` and to `low` otherwise. `key` is two words.
 * `blocks` is rounded up to a multiple of TPUI_PHILOX_GROUP, and `out` must have room for that. */
void tpui_philox(uint64_t key, uint64_t low, uint64_t high, bool count_high, int64_t blocks,
                 uint32_t* out);

#endif  // TPU_HOST_PHILOX_H_
