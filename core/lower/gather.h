/* Gather, scatter and the pieces that index-like lowerings share. Internal to lower/.
 *
 * Indices wrap once when negative (PyTorch's rule). What is still outside afterwards never touches
 * other memory: gathers clamp it to the last valid place, scatters drop the update.
 */
#ifndef TPU_LOWER_GATHER_H_
#define TPU_LOWER_GATHER_H_

#include "lower/axes.h"

/* Dimension numbers of stablehlo.gather and, read the other way, of stablehlo.scatter:
 * window_dims      dimensions of the result (scatter: updates) that walk through the slice
 * collapsed_dims   operand dimensions that the slice has with size 1 and the result lacks
 * index_map        operand dimension that component i of an index addresses
 * index_vector_dim dimension of the indices that holds the components (may be their rank) */
typedef struct tpui_gather_dims_t {
  int window_count, collapsed_count, map_count;
  int64_t window_dims[TPU_VIEW_MAX_FACTORS];
  int64_t collapsed_dims[TPU_VIEW_MAX_FACTORS];
  int64_t index_map[TPU_VIEW_MAX_FACTORS];
  int index_vector_dim;
} tpui_gather_dims_t;

/* A dimension argument of PyTorch (-rank .. rank-1; 0-d tensors count as 1-d) as 0 .. rank-1. */
int tpui_wrap_dim(int64_t dim, int rank);
/* Rank-0 values become one element of rank 1, others stay. */
tpui_hlo_t tpui_at_least_1d(tpui_builder_t* b, tpui_hlo_t x);
/* Product of the sizes [first, last). */
int64_t tpui_count(tpui_hlo_t x, int first, int last);
/* One flat dimension. */
tpui_hlo_t tpui_flatten(tpui_builder_t* b, tpui_hlo_t x);
/* `x` with the sizes of result k (same number of elements), set as result k. */
void tpui_set_result_reshaped(const tpui_lowering_t* op, int k, tpui_hlo_t x);
/* Full of `value` with the sizes of `like`. */
tpui_hlo_t tpui_full_like(tpui_builder_t* b, tpui_hlo_t like, tpu_dtype_t dtype, double value);
/* F64 for F64, F32 for every other floating dtype; integral dtypes stay. */
tpu_dtype_t tpui_math_dtype(tpu_dtype_t dtype);
/* True where both indices are equal; two dimensions. */
tpui_hlo_t tpui_on_diagonal(tpui_builder_t* b, const int64_t sizes[2]);
/* A rank-1 value spread along dimension `dim` of a shape. */
tpui_hlo_t tpui_spread(tpui_builder_t* b, tpui_hlo_t x, int dim, int rank, const int64_t* sizes);

/* Index as int64 with negative ones wrapped by `size`. */
tpui_hlo_t tpui_wrap_index(tpui_builder_t* b, tpui_hlo_t index, int64_t size);
/* The same, then clamped into [0, size). */
tpui_hlo_t tpui_clamp_index(tpui_builder_t* b, tpui_hlo_t index, int64_t size);

/* The raw operations. `slice_sizes` has x.rank entries. */
tpui_hlo_t tpui_gather(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t indices,
                       const tpui_gather_dims_t* dims, const int64_t* slice_sizes, int rank,
                       const int64_t* sizes);
/* `kind`: "set", or a two-operand StableHLO op ("add", "multiply", "maximum", "minimum"). Bool
 * "add" is "or". Result has x's type. */
tpui_hlo_t tpui_scatter(tpui_builder_t* b, const char* kind, tpui_hlo_t x, tpui_hlo_t indices,
                        tpui_hlo_t updates, const tpui_gather_dims_t* dims);

/* The elements at `index` (inside, or for scattering: wrapped) along `dim`. */
tpui_pick_t tpui_pick_dim(int dim, tpui_hlo_t index);
/* torch.gather's: one for each element of `index`, of x's rank, which replaces coordinate `dim`. */
tpui_pick_t tpui_pick_along(tpui_builder_t* b, const tpui_axes_t* x, int dim, tpui_hlo_t index);
/* Those that lie at `index` (of any shape) of x's elements in row-major order. */
tpui_pick_t tpui_pick_flat(tpui_builder_t* b, const tpui_axes_t* x, tpui_hlo_t index);
/* x with dimension `dim` replaced by the dimensions of `index` (whole slices are taken). */
tpui_hlo_t tpui_take_dim(tpui_builder_t* b, tpui_hlo_t x, int dim, tpui_hlo_t index);
/* torch.gather: result[i..] = x[.., index[i..], ..]; same rank, index not larger elsewhere. */
tpui_hlo_t tpui_take_along(tpui_builder_t* b, tpui_hlo_t x, int dim, tpui_hlo_t index);
/* Combines slices of `source` into x at rank-1 `index` along `dim`. */
tpui_hlo_t tpui_scatter_dim(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int dim,
                            tpui_hlo_t index, tpui_hlo_t source);
/* torch.scatter and its reductions; `source` is cut to the sizes of `index`. */
tpui_hlo_t tpui_scatter_along(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int dim,
                              tpui_hlo_t index, tpui_hlo_t source);
/* A source (or a rank-0 value) cut to the sizes of `index`. */
tpui_hlo_t tpui_cut_to(tpui_builder_t* b, tpui_hlo_t source, tpui_hlo_t index);
/* Flat forms: x and index of any shape; result (take) has index's shape, (put) x's. */
tpui_hlo_t tpui_take_flat(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t index);
tpui_hlo_t tpui_put_flat(tpui_builder_t* b, const char* kind, tpui_hlo_t x, tpui_hlo_t index,
                         tpui_hlo_t source);

/* Inclusive scan along `dim` by doubling steps; `kind` as in tpui_reduce. */
tpui_hlo_t tpui_scan(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int dim);

#endif  // TPU_LOWER_GATHER_H_
