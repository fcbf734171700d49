/* The order of one line: keys that compare like PyTorch's values, and sorting by them. Internal to
 * host/.
 *
 * PyTorch's order: NaN is the greatest value, all NaN are equal, -0 equals 0, and equal values
 * keep their places (also when descending). A key is an unsigned number that orders this way. Keys
 * of up to 32 bits are packed with their positions into one 64-bit number, key above position:
 * these numbers are distinct, so any way to sort or select is stable.
 */
#ifndef TPU_HOST_ORDER_H_
#define TPU_HOST_ORDER_H_

#include "types/dtype.h"

/* Longest line: positions have 32 bits. */
#define TPUI_MAX_ORDER INT64_C(0xffffffff)

/* Whether lines of this dtype can be ordered: all but complex and float8. */
bool tpui_order_takes(tpu_dtype_t dtype);

/* Packs a line; `count` is at most TPUI_MAX_ORDER. Returns how many low bits of each key were left
 * out, 0 when 32 bits are enough for what the line holds. */
int tpui_order_pack_heads(tpu_dtype_t dtype, const void* line, int64_t count, bool descending,
                          uint64_t* out_packed);

/* Sorts packed numbers ascending; the result is in `a` or in `b`, both of `count` numbers. */
uint64_t* tpui_order_sort_packed(uint64_t* a, uint64_t* b, int64_t count);

/* The number of rank `rank` (0 is the least). Reorders and overwrites `a`. */
uint64_t tpui_order_select_packed(uint64_t* a, int64_t count, int64_t rank);

/* Positions of a line of one-byte elements, in order. Needs no scratch. */
void tpui_order_bytes(tpu_dtype_t dtype, const void* line, int64_t count, bool descending,
                      int64_t* out_positions);

/* Position of the greatest (or least) element up to each place; the latest of equal ones, and NaN
 * beats everything. */
void tpui_order_running(tpu_dtype_t dtype, const void* line, int64_t count, bool least,
                        int64_t* out_positions);

/* out[k] = line[positions[k]] */
void tpui_order_gather(tpu_dtype_t dtype, const void* line, int64_t count, const int64_t* positions,
                       void* out);

/* Positions of a line in order: position of rank k is (uint32_t)entries[k * step]. */
typedef struct tpui_order_t {
  const uint64_t* entries;
  int step;
} tpui_order_t;

/* Memory that tpui_order_line needs, in bytes; aligned for uint64_t. */
size_t tpui_order_scratch(tpu_dtype_t dtype, int64_t count);
tpui_order_t tpui_order_line(tpu_dtype_t dtype, const void* line, int64_t count, bool descending,
                             void* scratch);

/* The same, of which only the first k <= count places count; most lines are not sorted for it. */
size_t tpui_order_first_scratch(tpu_dtype_t dtype, int64_t count);
tpui_order_t tpui_order_first(tpu_dtype_t dtype, const void* line, int64_t count, int64_t k,
                              bool descending, void* scratch);

static inline int64_t tpui_order_position(tpui_order_t order, int64_t rank) {
  return (int64_t)(uint32_t)order.entries[rank * order.step];
}

#endif  // TPU_HOST_ORDER_H_
