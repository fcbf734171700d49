/* Depthwise convolutions as sums over kernel places; w is [C * m, 1, k..]. */
#include "lower/conv.h"
#include "lower/gather.h"

/* Position of kernel place number `place` per spatial dimension (last one fastest). */
static void place_position(const tpui_conv_t* c, const int64_t* w_sizes, int64_t place,
                           int64_t* out) {
  for (int i = c->spatial - 1; i >= 0; --i) {
    out[i] = place % w_sizes[2 + i];
    place /= w_sizes[2 + i];
  }
}

static int64_t place_count(const tpui_conv_t* c, const int64_t* w_sizes) {
  int64_t count = 1;
  for (int i = 0; i < c->spatial; ++i) count *= w_sizes[2 + i];
  return count;
}

/* x with every channel repeated `times` times (channel c becomes c*times .. c*times+times-1). */
static tpui_hlo_t repeat_channels(const tpui_conv_t* c, tpui_hlo_t x, int64_t times) {
  if (times == 1) return x;
  int64_t wide[TPUI_MAX_SPATIAL + 3] = {x.sizes[0], x.sizes[1], times};
  int64_t flat[TPUI_MAX_SPATIAL + 2] = {x.sizes[0], x.sizes[1] * times};
  int dims[TPUI_MAX_SPATIAL + 2] = {0, 1};
  for (int i = 0; i < c->spatial; ++i) {
    wide[3 + i] = flat[2 + i] = x.sizes[2 + i];
    dims[2 + i] = 3 + i;
  }
  x = tpui_broadcast_in_dim(c->b, x, c->spatial + 3, wide, dims);
  return tpui_reshape(c->b, x, c->spatial + 2, flat);
}

static tpui_hlo_t sum_channels(const tpui_conv_t* c, tpui_hlo_t x, int64_t times) {
  if (times == 1) return x;
  int64_t wide[TPUI_MAX_SPATIAL + 3] = {x.sizes[0], x.sizes[1] / times, times};
  for (int i = 0; i < c->spatial; ++i) wide[3 + i] = x.sizes[2 + i];
  const int dim = 2;
  return tpui_reduce(c->b, "add", tpui_reshape(c->b, x, c->spatial + 3, wide), 1, &dim);
}

/* The kernel's value at one place for every channel, spread over `sizes`. */
static tpui_hlo_t kernel_at(const tpui_conv_t* c, tpui_hlo_t w, const int64_t* position,
                            const int64_t* sizes) {
  int64_t starts[TPUI_MAX_SPATIAL + 2] = {0, 0}, limits[TPUI_MAX_SPATIAL + 2] = {w.sizes[0], 1};
  for (int i = 0; i < c->spatial; ++i) {
    starts[2 + i] = position[i];
    limits[2 + i] = position[i] + 1;
  }
  tpui_hlo_t value = tpui_slice(c->b, w, starts, limits, NULL);
  value = tpui_reshape(c->b, value, 1, w.sizes);
  return tpui_spread(c->b, value, 1, c->spatial + 2, sizes);
}

/* The padded input seen from one kernel place: what that place is multiplied with. */
static tpui_hlo_t input_at(const tpui_conv_t* c, tpui_hlo_t padded, const int64_t* position,
                           const int64_t* y_sizes) {
  int64_t starts[TPUI_MAX_SPATIAL + 2] = {0, 0}, steps[TPUI_MAX_SPATIAL + 2] = {1, 1};
  int64_t limits[TPUI_MAX_SPATIAL + 2] = {padded.sizes[0], padded.sizes[1]};
  for (int i = 0; i < c->spatial; ++i) {
    starts[2 + i] = position[i] * c->dilation[i];
    steps[2 + i] = c->stride[i];
    limits[2 + i] = starts[2 + i] + (y_sizes[2 + i] - 1) * c->stride[i] + 1;
  }
  return tpui_slice(c->b, padded, starts, limits, steps);
}

static tpui_hlo_t pad_input(const tpui_conv_t* c, tpui_hlo_t x) {
  int64_t edge[TPUI_MAX_SPATIAL + 2] = {0, 0};
  for (int i = 0; i < c->spatial; ++i) edge[2 + i] = c->padding[i];
  return tpui_pad(c->b, x, tpui_constant(c->b, x.dtype, 0), edge, edge, NULL);
}

tpui_hlo_t tpui_conv_depthwise_forward(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                       const int64_t* y_sizes) {
  tpui_hlo_t padded = pad_input(c, repeat_channels(c, x, w.sizes[0] / c->groups));
  tpui_hlo_t sum = {0};
  int64_t position[TPUI_MAX_SPATIAL] = {0};
  for (int64_t place = 0; place < place_count(c, w.sizes); ++place) {
    place_position(c, w.sizes, place, position);
    tpui_hlo_t term = tpui_binary(c->b, "multiply", input_at(c, padded, position, y_sizes),
                                  kernel_at(c, w, position, y_sizes));
    sum = place == 0 ? term : tpui_binary(c->b, "add", sum, term);
  }
  return sum;
}

tpui_hlo_t tpui_conv_depthwise_input_grad(const tpui_conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                                          const int64_t* x_sizes) {
  tpui_hlo_t zero = tpui_constant(c->b, y.dtype, 0), sum = zero;
  int64_t position[TPUI_MAX_SPATIAL] = {0};
  for (int64_t place = 0; place < place_count(c, w.sizes); ++place) {
    place_position(c, w.sizes, place, position);
    tpui_hlo_t term = tpui_binary(c->b, "multiply", y, kernel_at(c, w, position, y.sizes));
    int64_t low[TPUI_MAX_SPATIAL + 2] = {0}, high[TPUI_MAX_SPATIAL + 2] = {0};
    int64_t interior[TPUI_MAX_SPATIAL + 2] = {0};
    for (int i = 0; i < c->spatial; ++i) {
      int64_t spread = (y.sizes[2 + i] - 1) * c->stride[i] + 1;
      low[2 + i] = position[i] * c->dilation[i] - c->padding[i];
      high[2 + i] = x_sizes[2 + i] - spread - low[2 + i];
      interior[2 + i] = c->stride[i] - 1;
    }
    term = tpui_pad(c->b, term, zero, low, high, interior);
    sum = place == 0 ? term : tpui_binary(c->b, "add", sum, term);
  }
  return sum_channels(c, sum, w.sizes[0] / c->groups);
}

tpui_hlo_t tpui_conv_depthwise_weight_grad(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t y,
                                           const int64_t* w_sizes) {
  tpui_hlo_t padded = pad_input(c, repeat_channels(c, x, w_sizes[0] / c->groups));
  tpui_hlo_t parts[TPUI_MAX_DEPTHWISE_PLACES];
  int dims[TPUI_MAX_SPATIAL + 1] = {0};
  int64_t position[TPUI_MAX_SPATIAL] = {0};
  const int64_t column[] = {w_sizes[0], 1};
  for (int i = 0; i < c->spatial; ++i) dims[1 + i] = 2 + i;
  int64_t count = place_count(c, w_sizes);
  for (int64_t place = 0; place < count; ++place) {
    place_position(c, w_sizes, place, position);
    tpui_hlo_t product = tpui_binary(c->b, "multiply", y, input_at(c, padded, position, y.sizes));
    tpui_hlo_t sum = tpui_reduce(c->b, "add", product, c->spatial + 1, dims);
    parts[place] = tpui_reshape(c->b, sum, 2, column);
  }
  tpui_hlo_t all = tpui_concatenate(c->b, (int)count, parts, 1);
  return tpui_reshape(c->b, all, c->spatial + 2, w_sizes);
}
