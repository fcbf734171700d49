/* Linear maps along one dimension: resampling and adaptive pools are made of them. Internal to
 * lower/.
 */
#ifndef TPU_LOWER_LINEAR_MAP_H_
#define TPU_LOWER_LINEAR_MAP_H_

#include "lower/builder.h"

/* y[.., o, ..] = sum_i matrix[o, i] * x[.., i, ..] along `dim`; dtypes must agree. */
tpui_hlo_t tpui_apply_matrix(tpui_builder_t* b, tpui_hlo_t matrix, tpui_hlo_t x, int dim);
/* The same with the transposed matrix. */
tpui_hlo_t tpui_apply_transposed(tpui_builder_t* b, tpui_hlo_t matrix, tpui_hlo_t y, int dim);

#endif  // TPU_LOWER_LINEAR_MAP_H_
