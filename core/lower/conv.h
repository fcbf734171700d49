/* Convolution geometry and the ways to compute one. Internal to lower/.
 *
 * x [N, C, in..], w [O, C / groups, k..], y [N, O, out..]. Three functions serve plain and
 * transposed convolutions and their gradients: y = forward(x, w), dx = input_grad(y, w),
 * dw = weight_grad(x, y). Both operands have one dtype, the result its math dtype. Sizes of the
 * result are given, because they do not follow from the operands.
 */
#ifndef TPU_LOWER_CONV_H_
#define TPU_LOWER_CONV_H_

#include "lower/builder.h"

#define TPUI_MAX_SPATIAL 6
/* Where grouped convolutions are slow, depthwise kernels up to this many places are written as sums
 * of shifted products. */
#define TPUI_MAX_DEPTHWISE_PLACES 49
/* So many terms a sum over the places of any other kernel may have. */
#define TPUI_MAX_SUMMED_PLACES 512

typedef struct tpui_conv_t {
  tpui_builder_t* b;
  int spatial;
  int64_t stride[TPUI_MAX_SPATIAL], padding[TPUI_MAX_SPATIAL], dilation[TPUI_MAX_SPATIAL];
  int64_t groups;
  bool depthwise;  // as sums: one input channel per group and a small kernel
  bool pointwise;  // as a matrix product: all kernel sizes 1, no padding
  bool summed;     // as a sum of such products, one per place of the kernel
} tpui_conv_t;

/* Sums over kernel places; w is [C * m, 1, k..]. */
tpui_hlo_t tpui_conv_depthwise_forward(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                       const int64_t* y_sizes);
tpui_hlo_t tpui_conv_depthwise_input_grad(const tpui_conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                                          const int64_t* x_sizes);
tpui_hlo_t tpui_conv_depthwise_weight_grad(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t y,
                                           const int64_t* w_sizes);

/* Matrix products over channels; kernels of size 1. */
tpui_hlo_t tpui_conv_pointwise_forward(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                       const int64_t* y_sizes);
tpui_hlo_t tpui_conv_pointwise_input_grad(const tpui_conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                                          const int64_t* x_sizes);
tpui_hlo_t tpui_conv_pointwise_weight_grad(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t y,
                                           const int64_t* w_sizes);

/* The sum over kernel places of matrix products over channels; x is padded already. */
tpui_hlo_t tpui_conv_summed_forward(const tpui_conv_t* c, tpui_hlo_t padded, tpui_hlo_t w,
                                    const int64_t* y_sizes);

#endif  // TPU_LOWER_CONV_H_
