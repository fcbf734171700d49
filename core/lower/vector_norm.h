/* p-norms. Internal to lower/. */
#ifndef TPU_LOWER_VECTOR_NORM_H_
#define TPU_LOWER_VECTOR_NORM_H_

#include "lower/dims.h"

/* Norm of non-negative numbers over `dims`, which disappear. The order is scalar operand `order` (2
 * when it was not given); it may vary at run time. */
tpui_hlo_t tpui_vector_norm(const tpui_lowering_t* op, int order, tpui_hlo_t x,
                            const tpui_dims_t* dims);

#endif  // TPU_LOWER_VECTOR_NORM_H_
