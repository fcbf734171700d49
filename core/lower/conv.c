/* Convolutions of any number of spatial dimensions, their transposes and gradients.
 *
 * A transposed convolution is the input gradient of a plain one, so three functions serve all six
 * cases: y = convolve_forward(x, w), dx = input_grad(y, w), dw = weight_grad(x, y).
 */
#include "lower/conv.h"

#include "lower/gather.h"
#include "lower/op_lowering.h"

/* Where grouped convolutions are slow, up to this many groups become a convolution each. */
#define MAX_SPLIT_GROUPS 16

static void read_sizes(const tpui_lowering_t* op, int position, int count, int64_t if_none,
                       int64_t* out) {
  const int64_t* values = NULL;
  int given = tpu_attr_ints(op->record->attrs, position, &values);
  for (int i = 0; i < count; ++i) {
    out[i] = given == 0 ? if_none : values[i < given ? i : given - 1];
  }
}

static bool read_conv(const tpui_lowering_t* op, tpui_hlo_t x, tpui_hlo_t weight, tpui_conv_t* c) {
  *c = (tpui_conv_t){.b = op->b, .spatial = x.rank - 2};
  if (!tpui_ok(op->b)) return false;
  if (c->spatial < 1 || c->spatial > TPUI_MAX_SPATIAL || weight.rank != x.rank) {
    tpui_fail(op->b, TPU_UNIMPLEMENTED, "input of %d and weight of %d dimensions", x.rank,
              weight.rank);
    return false;
  }
  read_sizes(op, 0, c->spatial, 1, c->stride);
  read_sizes(op, 1, c->spatial, 0, c->padding);
  read_sizes(op, 2, c->spatial, 1, c->dilation);
  c->groups = tpu_attr_int(op->record->attrs, 5, 1);
  int64_t places = tpui_count(weight, 2, weight.rank);
  const tpu_platform_t* target = tpui_target(op->b);
  c->depthwise = target->slow_grouped_conv && c->groups > 1 && weight.sizes[1] == 1 && places > 0 &&
                 places <= TPUI_MAX_DEPTHWISE_PLACES;
  c->pointwise = target->slow_pointwise_conv && places == 1 && !c->depthwise;
  for (int i = 0; i < c->spatial; ++i) c->pointwise = c->pointwise && c->padding[i] == 0;
  c->summed = target->no_wide_products && (x.dtype == TPU_I64 || x.dtype == TPU_U64);
  if (c->summed && places > TPUI_MAX_SUMMED_PLACES) {
    tpui_fail(op->b, TPU_UNIMPLEMENTED, "64-bit integers and a kernel of %lld places; at most %d",
              (long long)places, TPUI_MAX_SUMMED_PLACES);
    return false;
  }
  return true;
}

/* --- the dense operation --- */

typedef struct window_t {
  int64_t stride[TPUI_MAX_SPATIAL], lhs_dilation[TPUI_MAX_SPATIAL], rhs_dilation[TPUI_MAX_SPATIAL];
  int64_t low[TPUI_MAX_SPATIAL], high[TPUI_MAX_SPATIAL];
  int64_t feature_groups, batch_groups;
} window_t;

/* "b, f" -> "[b, f, 0, 1]" */
static const char* layout_text(const tpui_conv_t* c, const char* first) {
  const char* text = tpui_text(c->b, "[%s", first);
  for (int i = 0; i < c->spatial; ++i) text = tpui_text(c->b, "%s, %d", text, i);
  return tpui_text(c->b, "%s]", text);
}

/* Where an input that the kernel does not fit into is slow, the last stages of a network on small
 * images get their padding written out. */
static tpui_hlo_t pad_small_input(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                  window_t* window) {
  int64_t low[TPUI_MAX_SPATIAL + 2] = {0}, high[TPUI_MAX_SPATIAL + 2] = {0};
  bool small = false, possible = tpui_target(c->b)->slow_edge_conv;
  for (int i = 0; i < c->spatial; ++i) {
    int64_t reach = (w.sizes[2 + i] - 1) * window->rhs_dilation[i] + 1;
    small = small || x.sizes[2 + i] < reach;
    possible =
        possible && window->lhs_dilation[i] == 1 && window->low[i] >= 0 && window->high[i] >= 0;
    low[2 + i] = window->low[i];
    high[2 + i] = window->high[i];
  }
  if (!small || !possible) return x;
  for (int i = 0; i < c->spatial; ++i) window->low[i] = window->high[i] = 0;
  return tpui_pad(c->b, x, tpui_constant(c->b, x.dtype, 0), low, high, NULL);
}

static tpui_hlo_t write_convolution(const tpui_conv_t* c, tpui_hlo_t x, const char* x_dims,
                                    tpui_hlo_t w, const char* w_dims, const char* y_dims,
                                    window_t* window, const int64_t* sizes) {
  tpui_builder_t* b = c->b;
  x = pad_small_input(c, x, w, window);
  const char* padding = "";
  for (int i = 0; i < c->spatial; ++i) {
    padding = tpui_text(b, "%s%s[%lld, %lld]", padding, i > 0 ? ", " : "",
                        (long long)window->low[i], (long long)window->high[i]);
  }
  bool precise = tpui_target(b)->low_default_precision;
  const char* attributes =
      tpui_text(b,
                "<{dimension_numbers = #stablehlo.conv<%sx%s->%s>, window_strides = %s, "
                "padding = dense<[%s]> : tensor<%dx2xi64>, lhs_dilation = %s, rhs_dilation = %s, "
                "feature_group_count = %lld : i64, batch_group_count = %lld : i64%s%s}>",
                layout_text(c, x_dims), layout_text(c, w_dims), layout_text(c, y_dims),
                tpui_text_array(b, c->spatial, window->stride), padding, c->spatial,
                tpui_text_array(b, c->spatial, window->lhs_dilation),
                tpui_text_array(b, c->spatial, window->rhs_dilation),
                (long long)window->feature_groups, (long long)window->batch_groups,
                precise ? ", " : "", precise ? tpui_text_precision(b, x.dtype) : "");
  const tpui_hlo_t operands[] = {x, w};
  return tpui_raw(b, "stablehlo.convolution", 2, operands, attributes, "", tpui_math_dtype(x.dtype),
                  c->spatial + 2, sizes);
}

static window_t plain_window(const tpui_conv_t* c) {
  window_t window = {.feature_groups = c->groups, .batch_groups = 1};
  for (int i = 0; i < c->spatial; ++i) {
    window.stride[i] = window.lhs_dilation[i] = window.rhs_dilation[i] = 1;
  }
  return window;
}

static window_t forward_window(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
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
  return window;
}

static tpui_hlo_t one_forward(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                              const int64_t* y_sizes) {
  window_t window = forward_window(c, x, w, y_sizes);
  return write_convolution(c, x, "b, f", w, "o, i", "b, f", &window, y_sizes);
}

/* The kernel turned around and with its channel roles exchanged inside each group: [O/g, C, k..].
 * The reverse is an operation of its own: XLA:CPU runs window_reversal 30x slower, and compilers
 * that want to fold it into the convolution do. */
static tpui_hlo_t turn_kernel(const tpui_conv_t* c, tpui_hlo_t w) {
  tpui_builder_t* b = c->b;
  int spatial[TPUI_MAX_SPATIAL], permutation[TPUI_MAX_SPATIAL + 3] = {1, 0, 2};
  int64_t split[TPUI_MAX_SPATIAL + 3] = {c->groups, w.sizes[0] / c->groups, w.sizes[1]};
  int64_t joined[TPUI_MAX_SPATIAL + 2] = {w.sizes[0] / c->groups, w.sizes[1] * c->groups};
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

static window_t input_grad_window(const tpui_conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
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
  return window;
}

static tpui_hlo_t one_input_grad(const tpui_conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                                 const int64_t* x_sizes) {
  window_t window = input_grad_window(c, y, w, x_sizes);
  return write_convolution(c, y, "b, f", turn_kernel(c, w), "i, o", "b, f", &window, x_sizes);
}

/* By padding what the window of a convolution says. */
static tpui_hlo_t pad_for(const tpui_conv_t* c, tpui_hlo_t x, const window_t* window) {
  int64_t low[TPUI_MAX_SPATIAL + 2] = {0}, high[TPUI_MAX_SPATIAL + 2] = {0};
  int64_t interior[TPUI_MAX_SPATIAL + 2] = {0};
  for (int i = 0; i < c->spatial; ++i) {
    low[2 + i] = window->low[i];
    high[2 + i] = window->high[i];
    interior[2 + i] = window->lhs_dilation[i] - 1;
  }
  return tpui_pad(c->b, x, tpui_constant(c->b, x.dtype, 0), low, high, interior);
}

static tpui_hlo_t summed_forward(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                 const int64_t* y_sizes) {
  window_t window = forward_window(c, x, w, y_sizes);
  return tpui_conv_summed_forward(c, pad_for(c, x, &window), w, y_sizes);
}

static tpui_hlo_t summed_input_grad(const tpui_conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                                    const int64_t* x_sizes) {
  window_t window = input_grad_window(c, y, w, x_sizes);
  tpui_conv_t unit = *c;
  int swap[TPUI_MAX_SPATIAL + 2] = {1, 0};
  for (int i = 0; i < c->spatial; ++i) {
    unit.stride[i] = 1;
    swap[2 + i] = 2 + i;
  }
  w = tpui_transpose(c->b, turn_kernel(c, w), swap);
  return tpui_conv_summed_forward(&unit, pad_for(c, y, &window), w, x_sizes);
}

static bool is_split(const tpui_conv_t* c) {
  return tpui_target(c->b)->slow_grouped_conv && c->groups > 1 && c->groups <= MAX_SPLIT_GROUPS;
}

/* Channels of group g of a tensor whose dimension `dim` holds all groups. */
static tpui_hlo_t group_part(const tpui_conv_t* c, tpui_hlo_t x, int dim, int64_t g) {
  int64_t step = x.sizes[dim] / c->groups;
  return tpui_slice_dim(c->b, x, dim, g * step, (g + 1) * step);
}

typedef tpui_hlo_t (*product_t)(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                const int64_t* sizes);

/* A product of (x, w), group by group; `sizes` are the whole result's. */
static tpui_hlo_t by_groups(const tpui_conv_t* c, product_t product, tpui_hlo_t x, tpui_hlo_t w,
                            const int64_t* sizes) {
  if (!is_split(c)) return product(c, x, w, sizes);
  tpui_hlo_t parts[MAX_SPLIT_GROUPS];
  int64_t part_sizes[TPUI_MAX_SPATIAL + 2];
  for (int i = 0; i < c->spatial + 2; ++i) part_sizes[i] = sizes[i];
  part_sizes[1] /= c->groups;
  tpui_conv_t single = *c;
  single.groups = 1;
  for (int64_t g = 0; g < c->groups; ++g) {
    parts[g] = product(&single, group_part(c, x, 1, g), group_part(c, w, 0, g), part_sizes);
  }
  return tpui_concatenate(c->b, (int)c->groups, parts, 1);
}

static tpui_hlo_t dense_forward(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                const int64_t* y_sizes) {
  return by_groups(c, one_forward, x, w, y_sizes);
}

static tpui_hlo_t dense_input_grad(const tpui_conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                                   const int64_t* x_sizes) {
  return by_groups(c, one_input_grad, y, w, x_sizes);
}

static tpui_hlo_t one_weight_grad(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t y, int64_t groups,
                                  const int64_t* w_sizes) {
  window_t window = plain_window(c);
  window.feature_groups = 1;
  window.batch_groups = groups;
  for (int i = 0; i < c->spatial; ++i) {
    int64_t spread = (y.sizes[2 + i] - 1) * c->stride[i] + 1;
    window.stride[i] = c->dilation[i];
    window.rhs_dilation[i] = c->stride[i];
    window.low[i] = c->padding[i];
    window.high[i] =
        (w_sizes[2 + i] - 1) * c->dilation[i] + spread - x.sizes[2 + i] - c->padding[i];
  }
  return write_convolution(c, x, "f, b", y, "i, o", "f, b", &window, w_sizes);
}

static tpui_hlo_t dense_weight_grad(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t y,
                                    const int64_t* w_sizes) {
  if (!is_split(c)) return one_weight_grad(c, x, y, c->groups, w_sizes);
  tpui_hlo_t parts[MAX_SPLIT_GROUPS];
  int64_t part_sizes[TPUI_MAX_SPATIAL + 2];
  for (int i = 0; i < c->spatial + 2; ++i) part_sizes[i] = w_sizes[i];
  part_sizes[0] /= c->groups;
  for (int64_t g = 0; g < c->groups; ++g) {
    parts[g] = one_weight_grad(c, group_part(c, x, 1, g), group_part(c, y, 1, g), 1, part_sizes);
  }
  return tpui_concatenate(c->b, (int)c->groups, parts, 0);
}

/* --- choosing --- */

/* The dtype of operands; results have its math dtype. 8-bit floats are for storage. */
static tpu_dtype_t operand_dtype(const tpui_conv_t* c, tpu_dtype_t dtype) {
  bool widened = c->depthwise || tpui_target(c->b)->slow_half_conv || tpu_dtype_bytes(dtype) == 1;
  return widened ? tpui_math_dtype(dtype) : dtype;
}

static tpui_hlo_t convolve_forward(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t w,
                                   const int64_t* y_sizes) {
  if (c->summed) return summed_forward(c, x, w, y_sizes);
  if (c->pointwise) return tpui_conv_pointwise_forward(c, x, w, y_sizes);
  if (c->depthwise) return tpui_conv_depthwise_forward(c, x, w, y_sizes);
  return dense_forward(c, x, w, y_sizes);
}

static tpui_hlo_t input_grad(const tpui_conv_t* c, tpui_hlo_t y, tpui_hlo_t w,
                             const int64_t* x_sizes) {
  if (c->summed) return summed_input_grad(c, y, w, x_sizes);
  if (c->pointwise) return tpui_conv_pointwise_input_grad(c, y, w, x_sizes);
  if (c->depthwise) return tpui_conv_depthwise_input_grad(c, y, w, x_sizes);
  return dense_input_grad(c, y, w, x_sizes);
}

static tpui_hlo_t weight_grad(const tpui_conv_t* c, tpui_hlo_t x, tpui_hlo_t y,
                              const int64_t* w_sizes) {
  if (c->pointwise) return tpui_conv_pointwise_weight_grad(c, x, y, w_sizes);
  if (c->depthwise) return tpui_conv_depthwise_weight_grad(c, x, y, w_sizes);
  return dense_weight_grad(c, x, y, w_sizes);
}

void tpui_lower_convolution(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0), w = tpui_operand(op, 1);
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  tpui_conv_t c;
  if (!read_conv(op, x, w, &c)) return;
  tpu_dtype_t dtype = operand_dtype(&c, x.dtype);
  if (tpui_count(x, 0, x.rank) == 0 || tpui_count(w, 0, w.rank) == 0 || result->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(b, dtype, 0));
    return;
  }
  x = tpui_convert(b, x, dtype);
  w = tpui_convert(b, w, dtype);
  bool transposed = tpu_attr_int(op->record->attrs, 3, 0) != 0;
  tpui_hlo_t y =
      transposed ? input_grad(&c, x, w, result->sizes) : convolve_forward(&c, x, w, result->sizes);
  if (tpui_has_operand(op, 2)) {
    tpui_hlo_t bias = tpui_operand_as(op, 2, y.dtype);
    y = tpui_binary(b, "add", y, tpui_spread(b, bias, 1, y.rank, y.sizes));
  }
  tpui_set_result(op, 0, y);
}

void tpui_lower_convolution_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t grad = tpui_operand(op, 0), x = tpui_operand(op, 1), w = tpui_operand(op, 2);
  const int64_t* mask = NULL;
  int mask_count = tpu_attr_ints(op->record->attrs, 6, &mask);
  tpui_conv_t c;
  if (!read_conv(op, x, w, &c)) return;
  bool wanted[3];
  for (int i = 0; i < 3; ++i) wanted[i] = i < mask_count && mask[i] != 0;
  for (int i = 0; i < 3; ++i) {
    // A result that the mask leaves out has no elements, but still needs a value.
    if (!wanted[i]) tpui_set_result(op, i, tpui_constant(b, x.dtype, 0));
    wanted[i] = wanted[i] && tpui_result_needed(op, i);
  }
  tpu_dtype_t dtype = operand_dtype(&c, x.dtype);
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
    tpui_set_result(op, 0,
                    transposed ? convolve_forward(&c, grad, kernel, x.sizes)
                               : input_grad(&c, grad, kernel, x.sizes));
  }
  if (wanted[1]) {
    tpui_hlo_t input = tpui_convert(b, x, dtype);
    tpui_set_result(
        op, 1,
        transposed ? weight_grad(&c, grad, input, w.sizes) : weight_grad(&c, input, grad, w.sizes));
  }
  if (wanted[2]) {
    int dims[TPUI_MAX_SPATIAL + 1] = {0};
    for (int i = 0; i < c.spatial; ++i) dims[1 + i] = 2 + i;
    tpui_set_result(op, 2, tpui_reduce(b, "add", grad, c.spatial + 1, dims));
  }
}
