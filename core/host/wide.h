/* Lines whose keys need 64 bits. Between keys.c and order.c. */
#ifndef TPU_HOST_WIDE_H_
#define TPU_HOST_WIDE_H_

#include "host/order.h"

typedef struct tpui_wide_t {
  uint64_t key;
  uint64_t position;
} tpui_wide_t;

bool tpui_order_is_wide(tpu_dtype_t dtype);
/* The next two are for wide dtypes only. */
uint64_t tpui_order_wide_key(tpu_dtype_t dtype, const void* line, int64_t position,
                             bool descending);
void tpui_order_widen(tpu_dtype_t dtype, const void* line, int64_t count, bool descending,
                      tpui_wide_t* out);

#endif  // TPU_HOST_WIDE_H_
