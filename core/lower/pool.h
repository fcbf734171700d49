/* Windows over the last dimensions of a tensor: pools, unfold and fold are made of them. Internal
 * to lower/.
 */
#ifndef TPU_LOWER_POOL_H_
#define TPU_LOWER_POOL_H_

#include "lower/builder.h"

#define TPUI_MAX_POOLED 3

typedef struct tpui_windows_t {
  tpui_builder_t* b;
  int spatial;  // dimensions that windows move in: the last ones
  int64_t kernel[TPUI_MAX_POOLED], stride[TPUI_MAX_POOLED];
  int64_t padding[TPUI_MAX_POOLED], dilation[TPUI_MAX_POOLED];
} tpui_windows_t;

/* Place `k` of every window along windowed dimension `i`:
 * out[j] = x[j * stride + k * dilation - padding], with `fill` (rank 0) outside. */
tpui_hlo_t tpui_window_place(const tpui_windows_t* p, tpui_hlo_t x, int i, int64_t k,
                             int64_t out_size, tpui_hlo_t fill);
/* The adjoint: values of every window put back to place `k` of a dimension of `in_size`, zero
 * elsewhere. */
tpui_hlo_t tpui_window_unplace(const tpui_windows_t* p, tpui_hlo_t y, int i, int64_t k,
                               int64_t in_size);

/* --- all windows in one operation (pool_window.c) --- */

/* Sum of every window, x's dtype; `sizes` are the result's. */
tpui_hlo_t tpui_window_sum(const tpui_windows_t* p, tpui_hlo_t x, const int64_t* sizes);
/* The adjoint, for windows without dilation: the sum of the windows that cover a place. */
tpui_hlo_t tpui_window_spread(const tpui_windows_t* p, tpui_hlo_t y, const int64_t* sizes);
/* Maximum of every window and what `index` (INT32, x's sizes, not negative) has there: at the first
 * of equal maxima, or at the last NaN. */
void tpui_window_max(const tpui_windows_t* p, tpui_hlo_t x, tpui_hlo_t index, const int64_t* sizes,
                     tpui_hlo_t* out_value, tpui_hlo_t* out_index);
/* Adds every window's `grad` to zeros where x has the window's maximum; no dilation, one dtype. */
tpui_hlo_t tpui_window_scatter_max(const tpui_windows_t* p, tpui_hlo_t x, tpui_hlo_t grad);

/* --- gradients of pools --- */

/* How a pool's backward begins: converts `grad` to the dtype of the sums. False when there is
 * nothing left to do, since lowering has failed or a tensor is empty; the result is set then. */
bool tpui_pool_grad_opens(const tpui_lowering_t* op, tpui_hlo_t x, tpui_hlo_t* grad);

/* Adds `grad` to a zero tensor of x's sizes at `index`, flat positions within the last `spatial`
 * dimensions. */
tpui_hlo_t tpui_pool_scatter(tpui_builder_t* b, tpui_hlo_t grad, tpui_hlo_t index, tpui_hlo_t x,
                             int spatial);

#endif  // TPU_LOWER_POOL_H_
