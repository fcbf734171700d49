/* Convolutions of any number of spatial dimensions, their transposes and gradients.
 *
 * A transposed convolution is the input gradient of a plain one, so three functions serve all six
 * cases: y = forward(x, w), dx = input_grad(y, w), dw = weight_grad(x, y).
 */
#include "lower/gather.h"

#define MAX_SPATIAL 6
/* Depthwise kernels up to this many places are written as sums of shifted products: XLA:CPU has no
 * fast depthwise convolution (5x slower than these sums at 3x3). */
#define MAX_DEPTHWISE_PLACES 49
/* Grouped weight gradients up to this many groups become one convolution per group. */
#define MAX_SPLIT_GROUPS 16

typedef struct conv_t {
  tpui_builder_t* b;
  int spatial;
  int64_t stride[MAX_SPATIAL], padding[MAX_SPATIAL], dilation[MAX_SPATIAL];
  int64_t groups;
  bool depthwise;
} conv_t;

static void read_sizes(const tpui_lowering_t* op, int position, int count, int64_t if_none,
                       int64_t* out) {
  const int64_t* values = NULL;
  int given = tpu_attr_ints(op->record->attrs, position, &values);
  for (int i = 0; i < count; ++i) {
    out[i] = given == 0 ? if_none : values[i < given ? i : given - 1];
  }
}

static bool read_conv(const tpui_lowering_t* op, tpui_hlo_t x, tpui_hlo_t weight, conv_t* c) {
  *c = (conv_t){.b = op->b, .spatial = x.rank - 2};
  if (!tpui_ok(op->b)) return false;
  if (c->spatial < 1 || c->spatial > MAX_SPATIAL || weight.rank != x.rank) {
    tpui_fail(op->b, TPU_UNIMPLEMENTED, "input of %d and weight of %d dimensions", x.rank,
              weight.rank);
    return false;
  }
  read_sizes(op, 0, c->spatial, 1, c->stride);
  read_sizes(op, 1, c->spatial, 0, c->padding);
  read_sizes(op, 2, c->spatial, 1, c->dilation);
  c->groups = tpu_attr_int(op->record->attrs, 5, 1);
  int64_t places = tpui_count(weight, 2, weight.rank);
  c->depthwise = c->groups > 1 && weight.sizes[1] == 1 && places > 0 &&
                 places <= MAX_DEPTHWISE_PLACES;
  return true;
}

/* --- the dense operation --- */

typedef struct window_t {
  int64_t stride[MAX_SPATIAL], lhs_dilation[MAX_SPATIAL], rhs_dilation[MAX_SPATIAL];
  int64_t low[MAX_SPATIAL], high[MAX_SPATIAL];
  int64_t feature_groups, batch_groups;
} window_t;

/* "b, f" -> "[b, f, 0, 1]" */
static const char* layout(const conv_t* c, const char* first) {
  const char* text = tpui_text(c->b, "[%s", first);
  for (int i = 0; i < c->spatial; ++i) text = tpui_text(c->b, "%s, %d", text, i);
  return tpui_text(c->b, "%s]", text);
}

static tpui_hlo_t convolve(const conv_t* c, tpui_hlo_t x, const char* x_dims, tpui_hlo_t w,
                           const char* w_dims, const char* y_dims, const window_t* window,
                           const int64_t* sizes) {
  tpui_builder_t* b = c->b;
  const char* padding = "";
  for (int i = 0; i < c->spatial; ++i) {
    padding = tpui_text(b, "%s%s[%lld, %lld]", padding, i > 0 ? ", " : "",
                        (long long)window->low[i], (long long)window->high[i]);
  }
  const char* attributes = tpui_text(
      b,
      "<{dimension_numbers = #stablehlo.conv<%sx%s->%s>, window_strides = %s, "
      "padding = dense<[%s]> : tensor<%dx2xi64>, lhs_dilation = %s, rhs_dilation = %s, "
      "feature_group_count = %lld : i64, batch_group_count = %lld : i64}>",
      layout(c, x_dims), layout(c, w_dims), layout(c, y_dims),
      tpui_text_array(b, c->spatial, window->stride), padding, c->spatial,
      tpui_text_array(b, c->spatial, window->lhs_dilation),
      tpui_text_array(b, c->spatial, window->rhs_dilation), (long long)window->feature_groups,
      (long long)window->batch_groups);
  const tpui_hlo_t operands[] = {x, w};
  return tpui_raw(b, "stablehlo.convolution", 2, operands, attributes, "", x.dtype,
                  c->spatial + 2, sizes);
}

static window_t plain_window(const conv_t* c) {
  window_t window = {.feature_groups = c->groups, .batch_groups = 1};
  for (int i = 0; i < c->spatial; ++i) {
    window.stride[i] = window.lhs_dilation[i] = window.rhs_dilation[i] = 1;
  }
  return window;
}

static tpui_hlo_t dense_forward(const conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                const int64_t* y_sizes) {
  window_t window = plain_window(c);
  for (int i = 0; i < c->spatial; ++i) {
    window.stride[i] = c->stride[i];
    window.rhs_dilation[i] = c->dilation[i];
    window.low[i] = window.high[i] = c->padding[i];
    // In the gradient of a transposed convolution with output padding the input may have room for
    // more windows than there are results.
    int64_t reach = c->dilation[i] * (w.sizes[2 + i] - 1) + 1;
    int64_t windows = (x.sizes[2 + i] + 2 * c->padding[i] - reach) / c->stride[i] + 1;
    if (windows != y_sizes[2 + i]) {
      int64_t used = (y_sizes[2 + i] - 1) * c->stride[i] + reach;
      window.high[i] = used - x.sizes[2 + i] - c->padding[i];
    }
  }
  return convolve(c, x, "b, f", w, "o, i", "b, f", &window, y_sizes);
}

/* The kernel turned around and with its channel roles exchanged inside each group: [O/g, C, k..].
 * The reverse is an operation of its own: XLA:CPU runs window_reversal 30x slower. */
static tpui_hlo_t turn_kernel(const conv_t* c, tpui_hlo_t w) {
  tpui_builder_t* b = c->b;
  int spatial[MAX_SPATIAL], permutation[MAX_SPATIAL + 3] = {1, 0, 2};
  int64_t split[MAX_SPATIAL + 3] = {c->groups, w.sizes[0] / c->groups, w.sizes[1]};
  int64_t joined[MAX_SPATIAL + 2] = {w.sizes[0] / c->groups, w.sizes[1] * c->groups};
  for (int i = 0; i < c->spatial; ++i) {
    spatial[i] = 2 + i;
    permutation[3 + i] = 3 + i;
    split[3 + i] = joined[2 + i] = w.sizes[2 + i];
  }
  if (c->groups > 1) {
    w = tpui_reshape(b, w, c->spatial + 3, split);
    w = tpui_transpose(b, w, permutation);
    w = tpui_reshape(b, w, c->spatial + 2, joined);
  }
  return tpui_reverse(b, w, c->spatial, spatial);
}

static tpui_hlo_t dense_input_grad(const conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                                   const int64_t* x_sizes) {
  window_t window = plain_window(c);
  for (int i = 0; i < c->spatial; ++i) {
    int64_t reach = c->dilation[i] * (w.sizes[2 + i] - 1);
    int64_t spread = (y.sizes[2 + i] - 1) * c->stride[i] + 1;
    window.lhs_dilation[i] = c->stride[i];
    window.rhs_dilation[i] = c->dilation[i];
    window.low[i] = reach - c->padding[i];
    window.high[i] = x_sizes[2 + i] - spread - window.low[i] + reach;
  }
  return convolve(c, y, "b, f", turn_kernel(c, w), "i, o", "b, f",
                  &window, x_sizes);
}

static tpui_hlo_t one_weight_grad(const conv_t* c, tpui_hlo_t x, tpui_hlo_t y, int64_t groups,
                                  const int64_t* w_sizes) {
  window_t window = plain_window(c);
  window.feature_groups = 1;
  window.batch_groups = groups;
  for (int i = 0; i < c->spatial; ++i) {
    int64_t spread = (y.sizes[2 + i] - 1) * c->stride[i] + 1;
    window.stride[i] = c->dilation[i];
    window.rhs_dilation[i] = c->stride[i];
    window.low[i] = c->padding[i];
    window.high[i] = (w_sizes[2 + i] - 1) * c->dilation[i] + spread - x.sizes[2 + i] -
                     c->padding[i];
  }
  return convolve(c, x, "f, b", y, "i, o", "f, b", &window, w_sizes);
}

static tpui_hlo_t dense_weight_grad(const conv_t* c, tpui_hlo_t x, tpui_hlo_t y,
                                    const int64_t* w_sizes) {
  if (c->groups == 1 || c->groups > MAX_SPLIT_GROUPS) {
    return one_weight_grad(c, x, y, c->groups, w_sizes);
  }
  tpui_hlo_t parts[MAX_SPLIT_GROUPS];
  int64_t x_step = x.sizes[1] / c->groups, y_step = y.sizes[1] / c->groups;
  int64_t part_sizes[MAX_SPATIAL + 2];
  for (int i = 0; i < c->spatial + 2; ++i) part_sizes[i] = w_sizes[i];
  part_sizes[0] /= c->groups;
  for (int64_t g = 0; g < c->groups; ++g) {
    tpui_hlo_t x_part = tpui_slice_dim(c->b, x, 1, g * x_step, (g + 1) * x_step);
    tpui_hlo_t y_part = tpui_slice_dim(c->b, y, 1, g * y_step, (g + 1) * y_step);
    parts[g] = one_weight_grad(c, x_part, y_part, 1, part_sizes);
  }
  return tpui_concatenate(c->b, (int)c->groups, parts, 0);
}

/* --- depthwise: sums over kernel places; w is [C * m, 1, k..] --- */

/* Position of kernel place number `place` per spatial dimension (last one fastest). */
static void place_position(const conv_t* c, const int64_t* w_sizes, int64_t place, int64_t* out) {
  for (int i = c->spatial - 1; i >= 0; --i) {
    out[i] = place % w_sizes[2 + i];
    place /= w_sizes[2 + i];
  }
}

static int64_t place_count(const conv_t* c, const int64_t* w_sizes) {
  int64_t count = 1;
  for (int i = 0; i < c->spatial; ++i) count *= w_sizes[2 + i];
  return count;
}

/* x with every channel repeated `times` times (channel c becomes c*times .. c*times+times-1). */
static tpui_hlo_t repeat_channels(const conv_t* c, tpui_hlo_t x, int64_t times) {
  if (times == 1) return x;
  int64_t wide[MAX_SPATIAL + 3] = {x.sizes[0], x.sizes[1], times};
  int64_t flat[MAX_SPATIAL + 2] = {x.sizes[0], x.sizes[1] * times};
  int dims[MAX_SPATIAL + 2] = {0, 1};
  for (int i = 0; i < c->spatial; ++i) {
    wide[3 + i] = flat[2 + i] = x.sizes[2 + i];
    dims[2 + i] = 3 + i;
  }
  x = tpui_broadcast_in_dim(c->b, x, c->spatial + 3, wide, dims);
  return tpui_reshape(c->b, x, c->spatial + 2, flat);
}

static tpui_hlo_t sum_channels(const conv_t* c, tpui_hlo_t x, int64_t times) {
  if (times == 1) return x;
  int64_t wide[MAX_SPATIAL + 3] = {x.sizes[0], x.sizes[1] / times, times};
  for (int i = 0; i < c->spatial; ++i) wide[3 + i] = x.sizes[2 + i];
  const int dim = 2;
  return tpui_reduce(c->b, "add", tpui_reshape(c->b, x, c->spatial + 3, wide), 1, &dim);
}

/* The kernel's value at one place for every channel, spread over `sizes`. */
static tpui_hlo_t kernel_at(const conv_t* c, tpui_hlo_t w, const int64_t* position,
                            const int64_t* sizes) {
  int64_t starts[MAX_SPATIAL + 2] = {0, 0}, limits[MAX_SPATIAL + 2] = {w.sizes[0], 1};
  for (int i = 0; i < c->spatial; ++i) {
    starts[2 + i] = position[i];
    limits[2 + i] = position[i] + 1;
  }
  tpui_hlo_t value = tpui_slice(c->b, w, starts, limits, NULL);
  value = tpui_reshape(c->b, value, 1, w.sizes);
  return tpui_spread(c->b, value, 1, c->spatial + 2, sizes);
}

/* The padded input seen from one kernel place: what that place is multiplied with. */
static tpui_hlo_t input_at(const conv_t* c, tpui_hlo_t padded, const int64_t* position,
                           const int64_t* y_sizes) {
  int64_t starts[MAX_SPATIAL + 2] = {0, 0}, steps[MAX_SPATIAL + 2] = {1, 1};
  int64_t limits[MAX_SPATIAL + 2] = {padded.sizes[0], padded.sizes[1]};
  for (int i = 0; i < c->spatial; ++i) {
    starts[2 + i] = position[i] * c->dilation[i];
    steps[2 + i] = c->stride[i];
    limits[2 + i] = starts[2 + i] + (y_sizes[2 + i] - 1) * c->stride[i] + 1;
  }
  return tpui_slice(c->b, padded, starts, limits, steps);
}

static tpui_hlo_t pad_input(const conv_t* c, tpui_hlo_t x) {
  int64_t edge[MAX_SPATIAL + 2] = {0, 0};
  for (int i = 0; i < c->spatial; ++i) edge[2 + i] = c->padding[i];
  return tpui_pad(c->b, x, tpui_constant(c->b, x.dtype, 0), edge, edge, NULL);
}

static tpui_hlo_t depthwise_forward(const conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                    const int64_t* y_sizes) {
  tpui_hlo_t padded = pad_input(c, repeat_channels(c, x, w.sizes[0] / c->groups));
  tpui_hlo_t sum = {0};
  int64_t position[MAX_SPATIAL] = {0};
  for (int64_t place = 0; place < place_count(c, w.sizes); ++place) {
    place_position(c, w.sizes, place, position);
    tpui_hlo_t term = tpui_binary(c->b, "multiply", input_at(c, padded, position, y_sizes),
                                  kernel_at(c, w, position, y_sizes));
    sum = place == 0 ? term : tpui_binary(c->b, "add", sum, term);
  }
  return sum;
}

static tpui_hlo_t depthwise_input_grad(const conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                                       const int64_t* x_sizes) {
  tpui_hlo_t zero = tpui_constant(c->b, y.dtype, 0), sum = zero;
  int64_t position[MAX_SPATIAL] = {0};
  for (int64_t place = 0; place < place_count(c, w.sizes); ++place) {
    place_position(c, w.sizes, place, position);
    tpui_hlo_t term = tpui_binary(c->b, "multiply", y, kernel_at(c, w, position, y.sizes));
    int64_t low[MAX_SPATIAL + 2] = {0}, high[MAX_SPATIAL + 2] = {0};
    int64_t interior[MAX_SPATIAL + 2] = {0};
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

static tpui_hlo_t depthwise_weight_grad(const conv_t* c, tpui_hlo_t x, tpui_hlo_t y,
                                        const int64_t* w_sizes) {
  tpui_hlo_t padded = pad_input(c, repeat_channels(c, x, w_sizes[0] / c->groups));
  tpui_hlo_t parts[MAX_DEPTHWISE_PLACES];
  int dims[MAX_SPATIAL + 1] = {0};
  int64_t position[MAX_SPATIAL] = {0};
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

/* --- choosing --- */

static tpui_hlo_t forward(const conv_t* c, tpui_hlo_t x, tpui_hlo_t w, const int64_t* y_sizes) {
  return c->depthwise ? depthwise_forward(c, x, w, y_sizes) : dense_forward(c, x, w, y_sizes);
}

static tpui_hlo_t input_grad(const conv_t* c, tpui_hlo_t y, tpui_hlo_t w, const int64_t* x_sizes) {
  return c->depthwise ? depthwise_input_grad(c, y, w, x_sizes)
                      : dense_input_grad(c, y, w, x_sizes);
}

static tpui_hlo_t weight_grad(const conv_t* c, tpui_hlo_t x, tpui_hlo_t y,
                              const int64_t* w_sizes) {
  return c->depthwise ? depthwise_weight_grad(c, x, y, w_sizes)
                      : dense_weight_grad(c, x, y, w_sizes);
}

void tpui_lower_convolution(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0), w = tpui_operand(op, 1);
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  conv_t c;
  if (!read_conv(op, x, w, &c)) return;
  tpu_dtype_t dtype = tpui_math_dtype(x.dtype);
  if (tpui_count(x, 0, x.rank) == 0 || tpui_count(w, 0, w.rank) == 0 || result->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(b, dtype, 0));
    return;
  }
  x = tpui_convert(b, x, dtype);
  w = tpui_convert(b, w, dtype);
  bool transposed = tpu_attr_int(op->record->attrs, 3, 0) != 0;
  tpui_hlo_t y = transposed ? input_grad(&c, x, w, result->sizes)
                            : forward(&c, x, w, result->sizes);
  if (tpui_has_operand(op, 2)) {
    tpui_hlo_t bias = tpui_operand_as(op, 2, dtype);
    y = tpui_binary(b, "add", y, tpui_spread(b, bias, 1, y.rank, y.sizes));
  }
  tpui_set_result(op, 0, y);
}

void tpui_lower_convolution_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t grad = tpui_operand(op, 0), x = tpui_operand(op, 1), w = tpui_operand(op, 2);
  const int64_t* mask = NULL;
  int mask_count = tpu_attr_ints(op->record->attrs, 6, &mask);
  conv_t c;
  if (!read_conv(op, x, w, &c)) return;
  bool wanted[3];
  for (int i = 0; i < 3; ++i) wanted[i] = i < mask_count && mask[i] != 0;
  for (int i = 0; i < 3; ++i) {
    // A result that the mask leaves out has no elements, but still needs a value.
    if (!wanted[i]) tpui_set_result(op, i, tpui_constant(b, x.dtype, 0));
    wanted[i] = wanted[i] && tpui_result_needed(op, i);
  }
  tpu_dtype_t dtype = tpui_math_dtype(x.dtype);
  bool empty = tpui_count(grad, 0, grad.rank) == 0 || tpui_count(x, 0, x.rank) == 0;
  if (empty) {
    for (int i = 0; i < 3; ++i) {
      if (wanted[i]) tpui_set_result(op, i, tpui_constant(b, dtype, 0));
    }
    return;
  }
  grad = tpui_convert(b, grad, dtype);
  bool transposed = tpu_attr_int(op->record->attrs, 3, 0) != 0;
  if (wanted[0]) {
    tpui_hlo_t kernel = tpui_convert(b, w, dtype);
    tpui_set_result(op, 0, transposed ? forward(&c, grad, kernel, x.sizes)
                                      : input_grad(&c, grad, kernel, x.sizes));
  }
  if (wanted[1]) {
    tpui_hlo_t input = tpui_convert(b, x, dtype);
    tpui_set_result(op, 1, transposed ? weight_grad(&c, grad, input, w.sizes)
                                      : weight_grad(&c, input, grad, w.sizes));
  }
  if (wanted[2]) {
    int dims[MAX_SPATIAL + 1] = {0};
    for (int i = 0; i < c.spatial; ++i) dims[1 + i] = 2 + i;
    tpui_set_result(op, 2, tpui_reduce(b, "add", grad, c.spatial + 1, dims));
  }
}
