/* im2col and col2im (nn.Unfold, nn.Fold), and max_unpool. */
#include "lower/gather.h"
#include "lower/op_lowering.h"
#include "lower/pool.h"

#define MAX_PLACES 1024

static void read_pair(const tpui_lowering_t* op, int position, int64_t* out) {
  const int64_t* values = NULL;
  int given = tpu_attr_ints(op->record->attrs, position, &values);
  for (int i = 0; i < 2; ++i) out[i] = given == 0 ? 1 : values[i < given ? i : given - 1];
}

/* Attributes from `first`: kernel_size, dilation, padding, stride. False after an error. */
static bool read_windows(const tpui_lowering_t* op, int first, tpui_windows_t* w) {
  *w = (tpui_windows_t){.b = op->b, .spatial = 2};
  read_pair(op, first, w->kernel);
  read_pair(op, first + 1, w->dilation);
  read_pair(op, first + 2, w->padding);
  read_pair(op, first + 3, w->stride);
  if (w->kernel[0] * w->kernel[1] > MAX_PLACES) {
    tpui_fail(op->b, TPU_UNIMPLEMENTED, "windows of more than %d places", MAX_PLACES);
  }
  return tpui_ok(op->b);
}

static int64_t window_count(const tpui_windows_t* w, int i, int64_t size) {
  int64_t reach = w->dilation[i] * (w->kernel[i] - 1) + 1;
  return (size + 2 * w->padding[i] - reach) / w->stride[i] + 1;
}

/* [N, C, H, W] -> [N, C * kh * kw, L]; N may be missing. */
void tpui_lower_im2col(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_windows_t w;
  tpui_hlo_t x = tpui_operand(op, 0);
  if (!read_windows(op, 0, &w)) return;
  int r = x.rank;
  int64_t out[2] = {window_count(&w, 0, x.sizes[r - 2]), window_count(&w, 1, x.sizes[r - 1])};
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  if (result->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(b, x.dtype, 0));
    return;
  }
  int64_t planes = tpui_count(x, 0, r - 2), length = out[0] * out[1];
  tpui_hlo_t parts[MAX_PLACES], zero = tpui_constant(b, x.dtype, 0);
  int count = 0;
  for (int64_t k0 = 0; k0 < w.kernel[0]; ++k0) {
    for (int64_t k1 = 0; k1 < w.kernel[1]; ++k1) {
      tpui_hlo_t place = tpui_window_place(&w, x, 0, k0, out[0], zero);
      place = tpui_window_place(&w, place, 1, k1, out[1], zero);
      parts[count++] = tpui_reshape(b, place, 3, (const int64_t[]){planes, 1, length});
    }
  }
  tpui_set_result_reshaped(op, 0, tpui_concatenate(b, count, parts, 1));
}

/* [N, C * kh * kw, L] -> [N, C, H, W]: overlapping places add up. Attribute 0: output_size. */
void tpui_lower_col2im(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_windows_t w;
  int64_t in[2];
  tpui_hlo_t x = tpui_operand(op, 0);
  read_pair(op, 0, in);
  if (!read_windows(op, 1, &w)) return;
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  tpu_dtype_t dtype = tpui_math_dtype(x.dtype);
  if (result->numel == 0 || tpui_count(x, 0, x.rank) == 0) {
    tpui_set_result(op, 0, tpui_constant(b, dtype, 0));
    return;
  }
  int64_t out[2] = {window_count(&w, 0, in[0]), window_count(&w, 1, in[1])};
  int64_t planes = result->numel / (in[0] * in[1]), places = w.kernel[0] * w.kernel[1];
  x = tpui_reshape(b, tpui_convert(b, x, dtype), 4,
                   (const int64_t[]){planes, places, out[0], out[1]});
  tpui_hlo_t sum = tpui_constant(b, dtype, 0);
  for (int64_t place = 0; place < places; ++place) {
    tpui_hlo_t part = tpui_slice_dim(b, x, 1, place, place + 1);
    part = tpui_window_unplace(&w, part, 0, place / w.kernel[1], in[0]);
    part = tpui_window_unplace(&w, part, 1, place % w.kernel[1], in[1]);
    sum = place == 0 ? part : tpui_binary(b, "add", sum, part);
  }
  tpui_set_result_reshaped(op, 0, sum);
}

/* Operands: values, indices (flat within the pooled dimensions). */
void tpui_lower_max_unpool(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  int spatial = op->argument[0] - '0';
  tpui_hlo_t x = tpui_operand(op, 0), index = tpui_operand(op, 1);
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  if (!tpui_ok(b)) return;
  if (result->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(b, x.dtype, 0));
    return;
  }
  int64_t lines = tpui_count(x, 0, x.rank - spatial);
  const int64_t from[] = {lines, tpui_count(x, x.rank - spatial, x.rank)};
  const int64_t to[] = {lines, result->numel / lines};
  tpui_check_index(op, index, to[1], false, -1);
  tpui_hlo_t zeros = tpui_full(b, x.dtype, 0, 2, to);
  tpui_set_result_reshaped(op, 0,
                           tpui_scatter_along(b, "set", zeros, 1, tpui_reshape(b, index, 2, from),
                                              tpui_reshape(b, x, 2, from)));
}
