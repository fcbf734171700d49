/* Shared by pool.c and adaptive_pool.c. Internal to lower/. */
#ifndef TPU_LOWER_POOL_H_
#define TPU_LOWER_POOL_H_

#include "lower/builder.h"

/* Adds `grad` to a zero tensor of x's sizes at `index`, flat positions within the last `spatial`
 * dimensions. */
tpui_hlo_t tpui_pool_scatter(tpui_builder_t* b, tpui_hlo_t grad, tpui_hlo_t index, tpui_hlo_t x,
                             int spatial);

#endif  // TPU_LOWER_POOL_H_
