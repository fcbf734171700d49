/* grid_sampler_2d and its gradient: bilinear, nearest and bicubic with all paddings.
 *
 * A sample is a sum over taps: value = sum_ij wy_i * wx_j * input[y_i, x_j]. A tap has a place, a
 * weight, the weight's derivative by the coordinate in input places, and whether it lies inside.
 */
#include "lower/gather.h"
#include "lower/op_lowering.h"

enum { MODE_BILINEAR = 0, MODE_NEAREST = 1, MODE_BICUBIC = 2 };
enum { PAD_ZEROS = 0, PAD_BORDER = 1, PAD_REFLECTION = 2 };
#define MAX_TAPS 4

typedef struct axis_t {
  int count;
  tpui_hlo_t place[MAX_TAPS];   // int64 [N, P], clamped into the input
  tpui_hlo_t inside[MAX_TAPS];  // BOOL
  tpui_hlo_t weight[MAX_TAPS], slope[MAX_TAPS];
} axis_t;

typedef struct sampler_t {
  tpui_builder_t* b;
  tpu_dtype_t dtype;
  int64_t mode, padding;
  bool align_corners;
  int64_t batch, channels, height, width, points;  // P = output height * width
} sampler_t;

static tpui_hlo_t sampler_constant(const sampler_t* s, double value) {
  return tpui_constant(s->b, s->dtype, value);
}
/* Coordinates held at the border; `factor` is multiplied by the derivative. */
static tpui_hlo_t clip_position(const sampler_t* s, tpui_hlo_t x, int64_t size,
                                tpui_hlo_t* factor) {
  tpui_builder_t* b = s->b;
  tpui_hlo_t zero = sampler_constant(s, 0), last = sampler_constant(s, (double)(size - 1));
  tpui_hlo_t inner =
      tpui_binary(b, "and", tpui_compare(b, "GT", x, zero), tpui_compare(b, "LT", x, last));
  *factor = tpui_select(b, inner, *factor, zero);
  return tpui_binary(b, "minimum", tpui_binary(b, "maximum", x, zero), last);
}

/* Coordinates mirrored at the borders [low, low + span]. */
static tpui_hlo_t reflect_position(const sampler_t* s, tpui_hlo_t x, int64_t size,
                                   tpui_hlo_t* factor) {
  tpui_builder_t* b = s->b;
  double low = s->align_corners ? 0 : -0.5;
  double span = s->align_corners ? (double)(size - 1) : (double)size;
  tpui_hlo_t zero = sampler_constant(s, 0);
  if (span <= 0) {
    *factor = tpui_mul(s->b, *factor, zero);
    return tpui_mul(s->b, x, zero);
  }
  x = tpui_sub(s->b, x, sampler_constant(s, low));
  tpui_hlo_t negative = tpui_compare(b, "LT", x, zero);
  x = tpui_unary(b, "abs", x);
  tpui_hlo_t rest = tpui_binary(b, "remainder", x, sampler_constant(s, span));
  tpui_hlo_t flips = tpui_unary(b, "floor", tpui_binary(b, "divide", x, sampler_constant(s, span)));
  tpui_hlo_t odd =
      tpui_compare(b, "NE", tpui_binary(b, "remainder", flips, sampler_constant(s, 2)), zero);
  tpui_hlo_t turned = tpui_binary(b, "xor", negative, odd);
  *factor = tpui_select(b, turned, tpui_unary(b, "negate", *factor), *factor);
  return tpui_add(s->b, tpui_select(b, odd, tpui_sub(s->b, sampler_constant(s, span), rest), rest),
                  sampler_constant(s, low));
}

static tpui_hlo_t apply_padding(const sampler_t* s, tpui_hlo_t x, int64_t size,
                                tpui_hlo_t* factor) {
  if (s->padding == PAD_REFLECTION) x = reflect_position(s, x, size, factor);
  return s->padding == PAD_ZEROS ? x : clip_position(s, x, size, factor);
}

/* Tap at a coordinate that is a whole number. */
static void set_tap(const sampler_t* s, axis_t* axis, int k, tpui_hlo_t at, int64_t size) {
  tpui_builder_t* b = s->b;
  if (s->mode == MODE_BICUBIC) {  // each place is padded by itself, not the coordinate
    tpui_hlo_t unused = sampler_constant(s, 1);
    at = apply_padding(s, at, size, &unused);
  }
  axis->inside[k] = tpui_binary(b, "and", tpui_compare(b, "GE", at, sampler_constant(s, 0)),
                                tpui_compare(b, "LE", at, sampler_constant(s, (double)(size - 1))));
  at = tpui_binary(b, "minimum", tpui_binary(b, "maximum", at, sampler_constant(s, 0)),
                   sampler_constant(s, (double)(size - 1)));
  axis->place[k] = tpui_convert(b, at, TPU_I64);
}

/* Cubic convolution weights (a = -0.75) at distance t + 1, t, 1 - t, 2 - t and their derivatives by
 * t.
 */
static void set_cubic(const sampler_t* s, axis_t* axis, tpui_hlo_t t) {
  static const double near[] = {1.25, -2.25, 0, 1}, far[] = {-0.75, 3.75, -6, 3};
  tpui_hlo_t distance[4] = {tpui_add(s->b, t, sampler_constant(s, 1)), t,
                            tpui_sub(s->b, sampler_constant(s, 1), t),
                            tpui_sub(s->b, sampler_constant(s, 2), t)};
  for (int k = 0; k < 4; ++k) {
    const double* c = k == 0 || k == 3 ? far : near;
    tpui_hlo_t d = distance[k], w = tpui_full_like(s->b, d, s->dtype, c[0]);
    tpui_hlo_t slope = tpui_full_like(s->b, d, s->dtype, 3 * c[0]);
    for (int i = 1; i < 4; ++i) {
      w = tpui_add(s->b, tpui_mul(s->b, w, d), sampler_constant(s, c[i]));
      if (i < 3)
        slope = tpui_add(s->b, tpui_mul(s->b, slope, d), sampler_constant(s, (3 - i) * c[i]));
    }
    axis->weight[k] = w;
    axis->slope[k] = k < 2 ? slope : tpui_unary(s->b, "negate", slope);
  }
}

/* Taps along one axis from grid coordinates x in [-1, 1]; `factor` becomes d(place) / d(x). */
static axis_t make_axis(const sampler_t* s, tpui_hlo_t x, int64_t size, tpui_hlo_t* factor) {
  tpui_builder_t* b = s->b;
  axis_t axis = {.count = 1};
  double scale = s->align_corners ? (double)(size - 1) / 2 : (double)size / 2;
  double shift = (double)(size - 1) / 2;
  *factor = tpui_full_like(b, x, s->dtype, scale);
  x = tpui_add(s->b, tpui_mul(s->b, x, sampler_constant(s, scale)), sampler_constant(s, shift));
  if (s->mode != MODE_BICUBIC) x = apply_padding(s, x, size, factor);
  if (s->mode == MODE_NEAREST) {
    set_tap(s, &axis, 0, tpui_unary(b, "round_nearest_even", x), size);
    axis.weight[0] = tpui_full_like(b, x, s->dtype, 1);
    axis.slope[0] = tpui_full_like(b, x, s->dtype, 0);
    return axis;
  }
  tpui_hlo_t base = tpui_unary(b, "floor", x), t = tpui_sub(s->b, x, base);
  axis.count = s->mode == MODE_BICUBIC ? 4 : 2;
  int before = axis.count / 2 - 1;
  for (int k = 0; k < axis.count; ++k) {
    set_tap(s, &axis, k, tpui_add(s->b, base, sampler_constant(s, k - before)), size);
  }
  if (s->mode == MODE_BICUBIC) {
    set_cubic(s, &axis, t);
  } else {
    axis.weight[0] = tpui_sub(s->b, sampler_constant(s, 1), t);
    axis.weight[1] = t;
    axis.slope[0] = tpui_full_like(b, x, s->dtype, -1);
    axis.slope[1] = tpui_full_like(b, x, s->dtype, 1);
  }
  return axis;
}

/* Attributes: interpolation_mode, padding_mode, align_corners. */
static bool read_sampler(const tpui_lowering_t* op, tpui_hlo_t input, tpui_hlo_t grid,
                         sampler_t* s) {
  tpu_attrs_id_t attrs = op->record->attrs;
  if (!tpui_ok(op->b) || input.rank != 4 || grid.rank != 4) return false;
  *s = (sampler_t){.b = op->b, .dtype = tpui_math_dtype(input.dtype)};
  s->mode = tpu_attr_int(attrs, 0, 0);
  s->padding = tpu_attr_int(attrs, 1, 0);
  s->align_corners = tpu_attr_int(attrs, 2, 0) != 0;
  s->batch = input.sizes[0];
  s->channels = input.sizes[1];
  s->height = input.sizes[2];
  s->width = input.sizes[3];
  s->points = grid.sizes[1] * grid.sizes[2];
  return true;
}

/* Coordinate 0 (x) or 1 (y) of the grid, [N, P]. */
static tpui_hlo_t grid_axis(const sampler_t* s, tpui_hlo_t grid, int which) {
  tpui_hlo_t part = tpui_slice_dim(s->b, grid, 3, which, which + 1);
  part = tpui_reshape(s->b, part, 2, (const int64_t[]){s->batch, s->points});
  return tpui_convert(s->b, part, s->dtype);
}

/* [N, P] spread over channels: [N, C, P]. */
static tpui_hlo_t spread_channels(const sampler_t* s, tpui_hlo_t x) {
  const int64_t sizes[] = {s->batch, s->channels, s->points};
  const int dims[] = {0, 2};
  return tpui_broadcast_in_dim(s->b, x, 3, sizes, dims);
}

static tpui_hlo_t tap_position(const sampler_t* s, const axis_t* y, int i, const axis_t* x, int j) {
  tpui_hlo_t row =
      tpui_binary(s->b, "multiply", y->place[i], tpui_constant_int(s->b, TPU_I64, s->width));
  return spread_channels(s, tpui_binary(s->b, "add", row, x->place[j]));
}

/* [N, P] weight that is zero where the tap is outside. */
static tpui_hlo_t tap_weight(const sampler_t* s, const axis_t* y, int i, tpui_hlo_t wy,
                             const axis_t* x, int j, tpui_hlo_t wx) {
  tpui_hlo_t inside = tpui_binary(s->b, "and", y->inside[i], x->inside[j]);
  return tpui_select(s->b, inside, tpui_mul(s->b, wy, wx), sampler_constant(s, 0));
}

void tpui_lower_grid_sample(const tpui_lowering_t* op) {
  tpui_hlo_t input = tpui_operand(op, 0), grid = tpui_operand(op, 1), unused;
  sampler_t s;
  if (!read_sampler(op, input, grid, &s)) return;
  tpui_builder_t* b = op->b;
  if (tpui_result_meta(op, 0)->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(b, s.dtype, 0));
    return;
  }
  const int64_t flat[] = {s.batch, s.channels, s.height * s.width};
  tpui_hlo_t image = tpui_reshape(b, tpui_convert(b, input, s.dtype), 3, flat);
  axis_t x = make_axis(&s, grid_axis(&s, grid, 0), s.width, &unused);
  axis_t y = make_axis(&s, grid_axis(&s, grid, 1), s.height, &unused);
  tpui_hlo_t sum = sampler_constant(&s, 0);
  for (int i = 0; i < y.count; ++i) {
    for (int j = 0; j < x.count; ++j) {
      tpui_hlo_t value = tpui_take_along(b, image, 2, tap_position(&s, &y, i, &x, j));
      tpui_hlo_t weight = tap_weight(&s, &y, i, y.weight[i], &x, j, x.weight[j]);
      sum = tpui_add(s.b, sum, tpui_mul(s.b, value, spread_channels(&s, weight)));
    }
  }
  tpui_set_result_reshaped(op, 0, sum);
}

/* Operands: grad_output, input, grid; attributes as above, then output_mask. */
void tpui_lower_grid_sample_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t input = tpui_operand(op, 1), grid = tpui_operand(op, 2), x_factor, y_factor;
  sampler_t s;
  if (!read_sampler(op, input, grid, &s)) return;
  const int64_t* mask = NULL;
  bool want_input = tpu_attr_ints(op->record->attrs, 3, &mask) < 1 || mask[0] != 0;
  if (!want_input) tpui_set_result(op, 0, tpui_constant(b, s.dtype, 0));
  if (s.points == 0 || tpui_count(input, 0, 4) == 0) {
    tpui_set_result(op, 0, tpui_constant(b, s.dtype, 0));
    tpui_set_result(op, 1, tpui_constant(b, s.dtype, 0));
    return;
  }
  const int64_t flat[] = {s.batch, s.channels, s.height * s.width};
  const int64_t out[] = {s.batch, s.channels, s.points};
  tpui_hlo_t grad = tpui_reshape(b, tpui_operand_as(op, 0, s.dtype), 3, out);
  tpui_hlo_t image = tpui_reshape(b, tpui_convert(b, input, s.dtype), 3, flat);
  axis_t x = make_axis(&s, grid_axis(&s, grid, 0), s.width, &x_factor);
  axis_t y = make_axis(&s, grid_axis(&s, grid, 1), s.height, &y_factor);
  tpui_hlo_t grad_input = tpui_full_like(b, image, s.dtype, 0);
  tpui_hlo_t grad_x = sampler_constant(&s, 0), grad_y = sampler_constant(&s, 0);
  const int channel_dim = 1;
  for (int i = 0; i < y.count; ++i) {
    for (int j = 0; j < x.count; ++j) {
      tpui_hlo_t position = tap_position(&s, &y, i, &x, j);
      tpui_hlo_t weight = tap_weight(&s, &y, i, y.weight[i], &x, j, x.weight[j]);
      if (want_input) {
        grad_input = tpui_scatter_along(b, "add", grad_input, 2, position,
                                        tpui_mul(s.b, grad, spread_channels(&s, weight)));
      }
      tpui_hlo_t product = tpui_mul(s.b, grad, tpui_take_along(b, image, 2, position));
      product = tpui_reduce(b, "add", product, 1, &channel_dim);
      grad_x =
          tpui_add(s.b, grad_x,
                   tpui_mul(s.b, product, tap_weight(&s, &y, i, y.weight[i], &x, j, x.slope[j])));
      grad_y =
          tpui_add(s.b, grad_y,
                   tpui_mul(s.b, product, tap_weight(&s, &y, i, y.slope[i], &x, j, x.weight[j])));
    }
  }
  if (want_input) tpui_set_result_reshaped(op, 0, grad_input);
  const int64_t column[] = {s.batch, s.points, 1};
  const tpui_hlo_t parts[] = {tpui_reshape(b, tpui_mul(s.b, grad_x, x_factor), 3, column),
                              tpui_reshape(b, tpui_mul(s.b, grad_y, y_factor), 3, column)};
  tpui_set_result_reshaped(op, 1, tpui_concatenate(b, 2, parts, 2));
}
