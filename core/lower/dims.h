/* Dimension arguments of PyTorch as sets of dimensions. Internal to lower/. */
#ifndef TPU_LOWER_DIMS_H_
#define TPU_LOWER_DIMS_H_

#include "lower/builder.h"
#include "lower/gather.h"

typedef struct tpui_dims_t {
  int count;
  int dims[TPU_MAX_RANK];  // ascending
} tpui_dims_t;

/* Attribute `position` (int, int[] or none) for a tensor of `rank` dimensions, with negative ones
 * wrapped. None and an empty list mean all dimensions. A rank-0 tensor has none. */
tpui_dims_t tpui_dims_attr(const tpui_lowering_t* op, int position, int rank);
tpui_dims_t tpui_dims_all(int rank);
/* Number of elements that one result element is made from. */
int64_t tpui_dims_numel(const tpui_dims_t* dims, tpui_hlo_t x);
/* One dimension attribute; -1 for a rank-0 tensor, which has none. */
int tpui_dim_attr(const tpui_lowering_t* op, int position, int rank);

#endif  // TPU_LOWER_DIMS_H_
