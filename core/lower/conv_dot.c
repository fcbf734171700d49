/* Convolutions with kernels of size 1 as matrix products, and others as sums of them. Groups and
 * images are batch dimensions of the product. */
#include "lower/conv.h"
#include "lower/gather.h"

/* [N, C, in..] at the places that a strided convolution reads, as [N, groups, C / groups, P]. */
static tpui_hlo_t group_places(const tpui_conv_t* c, tpui_hlo_t x, const int64_t* y_spatial) {
  int64_t starts[TPUI_MAX_SPATIAL + 2] = {0}, steps[TPUI_MAX_SPATIAL + 2] = {1, 1};
  int64_t limits[TPUI_MAX_SPATIAL + 2] = {x.sizes[0], x.sizes[1]};
  int64_t places = 1;
  bool cut = false;
  for (int i = 0; i < c->spatial; ++i) {
    steps[2 + i] = c->stride[i];
    limits[2 + i] = (y_spatial[i] - 1) * c->stride[i] + 1;
    places *= y_spatial[i];
    cut = cut || c->stride[i] != 1 || limits[2 + i] != x.sizes[2 + i];
  }
  if (cut) x = tpui_slice(c->b, x, starts, limits, steps);
  return tpui_reshape(c->b, x, 4,
                      (const int64_t[]){x.sizes[0], c->groups, x.sizes[1] / c->groups, places});
}

/* [O, C / groups, 1..] for every image: [N, groups, O / groups, C / groups]. */
static tpui_hlo_t spread_kernel(const tpui_conv_t* c, tpui_hlo_t w, int64_t batch) {
  const int64_t sizes[] = {batch, c->groups, w.sizes[0] / c->groups, w.sizes[1]};
  const int dims[] = {1, 2, 3};
  w = tpui_reshape(c->b, w, 3, sizes + 1);
  return tpui_broadcast_in_dim(c->b, w, 4, sizes, dims);
}

static tpui_hlo_t batched_dot(const tpui_conv_t* c, tpui_hlo_t x, int x_contract, tpui_hlo_t y,
                              int y_contract) {
  const int batch[] = {0, 1};
  return tpui_dot_general(c->b, x, y, 2, batch, batch, 1, &x_contract, &y_contract,
                          tpui_math_dtype(x.dtype));
}

tpui_hlo_t tpui_conv_pointwise_forward(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                       const int64_t* y_sizes) {
  tpui_hlo_t places = group_places(c, x, y_sizes + 2);
  tpui_hlo_t y = batched_dot(c, spread_kernel(c, w, x.sizes[0]), 3, places, 2);
  return tpui_reshape(c->b, y, c->spatial + 2, y_sizes);
}

tpui_hlo_t tpui_conv_pointwise_input_grad(const tpui_conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                                          const int64_t* x_sizes) {
  tpui_builder_t* b = c->b;
  int64_t places = tpui_count(y, 2, y.rank);
  tpui_hlo_t grouped = tpui_reshape(
      b, y, 4, (const int64_t[]){y.sizes[0], c->groups, y.sizes[1] / c->groups, places});
  tpui_hlo_t x = batched_dot(c, spread_kernel(c, w, y.sizes[0]), 2, grouped, 2);
  int64_t sizes[TPUI_MAX_SPATIAL + 2] = {y.sizes[0], w.sizes[1] * c->groups};
  int64_t low[TPUI_MAX_SPATIAL + 2] = {0}, high[TPUI_MAX_SPATIAL + 2] = {0};
  int64_t interior[TPUI_MAX_SPATIAL + 2] = {0};
  bool padded = false;
  for (int i = 0; i < c->spatial; ++i) {
    sizes[2 + i] = y.sizes[2 + i];
    interior[2 + i] = c->stride[i] - 1;
    high[2 + i] = x_sizes[2 + i] - ((y.sizes[2 + i] - 1) * c->stride[i] + 1);
    padded = padded || x_sizes[2 + i] != y.sizes[2 + i];
  }
  x = tpui_reshape(b, x, c->spatial + 2, sizes);
  if (!padded) return x;
  return tpui_pad(b, x, tpui_constant(b, x.dtype, 0), low, high, interior);
}

/* Sum over images of [N, groups, O / groups, K] products, shaped as the weight. */
static tpui_hlo_t sum_images(const tpui_conv_t* c, tpui_hlo_t products, const int64_t* w_sizes) {
  const int images = 0;
  return tpui_reshape(c->b, tpui_reduce(c->b, "add", products, 1, &images), c->spatial + 2,
                      w_sizes);
}

tpui_hlo_t tpui_conv_pointwise_weight_grad(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t y,
                                           const int64_t* w_sizes) {
  tpui_hlo_t places = group_places(c, x, y.sizes + 2);
  tpui_hlo_t grouped = tpui_reshape(
      c->b, y, 4,
      (const int64_t[]){y.sizes[0], c->groups, y.sizes[1] / c->groups, places.sizes[3]});
  return sum_images(c, batched_dot(c, grouped, 3, places, 3), w_sizes);
}

tpui_hlo_t tpui_conv_summed_forward(const tpui_conv_t* c, tpui_hlo_t padded, tpui_hlo_t w,
                                    const int64_t* y_sizes) {
  tpui_builder_t* b = c->b;
  tpui_hlo_t sum = tpui_constant(b, tpui_math_dtype(w.dtype), 0);
  int64_t places = tpui_count(w, 2, w.rank);
  for (int64_t place = 0; place < places; ++place) {
    int64_t x_starts[TPUI_MAX_SPATIAL + 2] = {0}, w_starts[TPUI_MAX_SPATIAL + 2] = {0};
    int64_t x_limits[TPUI_MAX_SPATIAL + 2] = {padded.sizes[0], padded.sizes[1]};
    int64_t w_limits[TPUI_MAX_SPATIAL + 2] = {w.sizes[0], w.sizes[1]}, left = place;
    for (int i = c->spatial + 1; i >= 2; --i) {
      w_starts[i] = left % w.sizes[i];
      w_limits[i] = w_starts[i] + 1;
      x_starts[i] = w_starts[i] * c->dilation[i - 2];
      x_limits[i] = x_starts[i] + (y_sizes[i] - 1) * c->stride[i - 2] + 1;
      left /= w.sizes[i];
    }
    tpui_hlo_t term =
        tpui_conv_pointwise_forward(c, tpui_slice(b, padded, x_starts, x_limits, NULL),
                                    tpui_slice(b, w, w_starts, w_limits, NULL), y_sizes);
    sum = place == 0 ? term : tpui_add(b, sum, term);
  }
  return sum;
}
