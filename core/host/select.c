/* The first places of an order, without all of it. */
#include "host/order.h"

/* Keeps the least k of `count` > k numbers, in no order; gives the greatest of them. `copy` has
 * room for `count`. */
static uint64_t keep_least(uint64_t* a, uint64_t* copy, int64_t count, int64_t k) {
  for (int64_t i = 0; i < count; ++i) copy[i] = a[i];
  uint64_t last = tpui_order_select_packed(copy, count, k - 1);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t x = a[i];
    a[kept] = x;
    kept += x <= last;
  }
  return last;
}

/* The least k of packed numbers, ascending. One pass over the line keeps those below the k-th
 * least so far; the buffer is thinned out whenever it is full. Needs room for 3 * count numbers. */
static tpui_order_t least_packed(const uint64_t* packed, int64_t count, int64_t k,
                                 uint64_t* buffer) {
  int64_t room = 2 * k + 512 < count ? 2 * k + 512 : count;
  uint64_t* copy = buffer + room;
  uint64_t bound = UINT64_MAX;
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    buffer[kept] = packed[i];
    kept += packed[i] <= bound;
    if (kept < room) continue;  // room > k, as k <= count / 4
    bound = keep_least(buffer, copy, kept, k);
    kept = k;
  }
  if (kept > k) (void)keep_least(buffer, copy, kept, k);
  return (tpui_order_t){tpui_order_sort_packed(buffer, copy, k), 1};
}

size_t tpui_order_first_scratch(tpu_dtype_t dtype, int64_t count) {
  size_t selecting = 3 * sizeof(uint64_t) * (size_t)count;
  size_t sorting = tpui_order_scratch(dtype, count);
  return selecting > sorting ? selecting : sorting;
}

tpui_order_t tpui_order_first(tpu_dtype_t dtype, const void* line, int64_t count, int64_t k,
                              bool descending, void* scratch) {
  uint64_t* packed = scratch;
  if (k > 0 && k <= count / 4 &&
      tpui_order_pack_heads(dtype, line, count, descending, packed) == 0) {
    return least_packed(packed, count, k, packed + count);
  }
  return tpui_order_line(dtype, line, count, descending, scratch);
}
