/* Windows as one operation each: reduce_window and select_and_scatter. */
#include <string.h>

#include "lower/gather.h"
#include "lower/pool.h"

/* What the operations say about windows, per dimension of the windowed tensor. */
typedef struct frame_t {
  int64_t size[TPU_MAX_RANK], stride[TPU_MAX_RANK], base_dilation[TPU_MAX_RANK];
  int64_t dilation[TPU_MAX_RANK], low[TPU_MAX_RANK], high[TPU_MAX_RANK];
} frame_t;

/* Windows of one element. */
static frame_t plain_frame(int rank) {
  frame_t f;
  memset(&f, 0, sizeof f);
  for (int i = 0; i < rank; ++i) {
    f.size[i] = f.stride[i] = f.base_dilation[i] = f.dilation[i] = 1;
  }
  return f;
}

/* From x to one number per window; `out` are the result's sizes. */
static frame_t frame_of(const tpui_windows_t* p, tpui_hlo_t x, const int64_t* out) {
  frame_t f = plain_frame(x.rank);
  if (!tpui_ok(p->b)) return f;  // x's rank means nothing
  for (int i = 0; i < p->spatial; ++i) {
    int dim = x.rank - p->spatial + i;
    int64_t reach = (out[dim] - 1) * p->stride[i] + p->dilation[i] * (p->kernel[i] - 1) + 1;
    int64_t high = reach - x.sizes[dim] - p->padding[i];
    f.size[dim] = p->kernel[i];
    f.stride[dim] = p->stride[i];
    f.dilation[dim] = p->dilation[i];
    f.low[dim] = p->padding[i];
    f.high[dim] = high > 0 ? high : 0;  // what lies behind the last window is not reached anyway
  }
  return f;
}

/* Its adjoint for windows without dilation: from one number per window to the places it covers. */
static frame_t adjoint_frame(const tpui_windows_t* p, tpui_hlo_t y, const int64_t* in) {
  frame_t f = plain_frame(y.rank);
  if (!tpui_ok(p->b)) return f;
  for (int i = 0; i < p->spatial; ++i) {
    int dim = y.rank - p->spatial + i;
    int64_t spread = (y.sizes[dim] - 1) * p->stride[i] + 1;
    f.size[dim] = p->kernel[i];
    f.base_dilation[dim] = p->stride[i];
    f.low[dim] = p->kernel[i] - 1 - p->padding[i];
    f.high[dim] = in[dim] - spread + p->padding[i];
  }
  return f;
}

static const char* padding_text(tpui_builder_t* b, const frame_t* f, int rank) {
  const int64_t sizes[2] = {rank, 2};
  const char* rows = "";
  for (int i = 0; i < rank; ++i) {
    rows = tpui_text(b, "%s%s[%lld, %lld]", rows, i > 0 ? ", " : "", (long long)f->low[i],
                     (long long)f->high[i]);
  }
  return tpui_text(b, "padding = dense<[%s]> : %s", rows,
                   tpui_text_type(b, (tpui_type_t){TPU_I64, 2, sizes}));
}

static const char* frame_text(tpui_builder_t* b, const frame_t* f, int rank) {
  return tpui_text(b,
                   "window_dimensions = %s, window_strides = %s, base_dilations = %s, "
                   "window_dilations = %s, %s",
                   tpui_text_array(b, rank, f->size), tpui_text_array(b, rank, f->stride),
                   tpui_text_array(b, rank, f->base_dilation),
                   tpui_text_array(b, rank, f->dilation), padding_text(b, f, rank));
}

static tpui_hlo_t reduce_frame(tpui_builder_t* b, const char* kind, tpui_hlo_t x,
                               tpui_hlo_t identity, const frame_t* f, const int64_t* sizes) {
  const tpui_hlo_t operands[] = {x, identity};
  return tpui_raw(b, "stablehlo.reduce_window", 2, operands, frame_text(b, f, x.rank),
                  tpui_text_combiner(b, kind, x.dtype), x.dtype, x.rank, sizes);
}

tpui_hlo_t tpui_window_sum(const tpui_windows_t* p, tpui_hlo_t x, const int64_t* sizes) {
  frame_t f = frame_of(p, x, sizes);
  return reduce_frame(p->b, "add", x, tpui_constant(p->b, x.dtype, 0), &f, sizes);
}

tpui_hlo_t tpui_window_spread(const tpui_windows_t* p, tpui_hlo_t y, const int64_t* sizes) {
  frame_t f = adjoint_frame(p, y, sizes);
  return reduce_frame(p->b, "add", y, tpui_constant(p->b, y.dtype, 0), &f, sizes);
}

/* --- maximum --- */

/* `text` with one more line of a region: %name = x direction y, of two values of `type`. */
static const char* add_compare(tpui_builder_t* b, const char* text, const char* name, const char* x,
                               const char* direction, const char* y, const char* type) {
  return tpui_text(b,
                   "%s%%%s = \"stablehlo.compare\"(%%%s, %%%s) <{comparison_direction = "
                   "#stablehlo<comparison_direction %s>}> : (%s, %s) -> tensor<i1>\n",
                   text, name, x, y, direction, type, type);
}

static const char* add_logic(tpui_builder_t* b, const char* text, const char* name, const char* x,
                             const char* operation, const char* y) {
  return tpui_text(
      b, "%s%%%s = \"stablehlo.%s\"(%%%s, %%%s) : (tensor<i1>, tensor<i1>) -> tensor<i1>\n", text,
      name, operation, x, y);
}

/* Takes the right pair where it is inside (index >= 0) and the left one is not, its value is
 * greater, or neither is and it stands first; NaN is the greatest, and the last one counts. So the
 * order in which pairs meet does not matter. */
static const char* max_region(tpui_builder_t* b, tpu_dtype_t dtype, tpu_dtype_t index_dtype) {
  const char* v = tpui_text_type(b, (tpui_type_t){dtype, 0, NULL});
  const char* i = tpui_text_type(b, (tpui_type_t){index_dtype, 0, NULL});
  const char* win = "win";
  const char* t =
      tpui_text(b,
                "({\n^bb0(%%l: %s, %%li: %s, %%r: %s, %%ri: %s):\n"
                "%%none = \"stablehlo.constant\"() <{value = dense<0> : %s}> : () -> %s\n",
                v, i, v, i, i, i);
  t = add_compare(b, t, "rin", "ri", "GE", "none", i);
  t = add_compare(b, t, "lout", "li", "LT", "none", i);
  t = add_compare(b, t, "more", "r", "GT", "l", v);
  t = add_compare(b, t, "same", "r", "EQ", "l", v);
  t = add_compare(b, t, "first", "ri", "LT", "li", i);
  t = add_logic(b, t, "tie", "same", "and", "first");
  t = add_logic(b, t, "win", "more", "or", "tie");
  if (tpu_dtype_is_float(dtype)) {
    t = add_compare(b, t, "rnan", "r", "NE", "r", v);
    t = add_compare(b, t, "lok", "l", "EQ", "l", v);
    t = add_compare(b, t, "last", "ri", "GT", "li", i);
    t = add_logic(b, t, "beats", "lok", "or", "last");
    t = add_logic(b, t, "nan", "rnan", "and", "beats");
    t = add_logic(b, t, "any", "win", "or", "nan");
    win = "any";
  }
  t = add_logic(b, t, "free", "lout", "or", win);
  t = add_logic(b, t, "take", "rin", "and", "free");
  return tpui_text(b,
                   "%s%%v = \"stablehlo.select\"(%%take, %%r, %%l) : (tensor<i1>, %s, %s) -> %s\n"
                   "%%i = \"stablehlo.select\"(%%take, %%ri, %%li) : (tensor<i1>, %s, %s) -> %s\n"
                   "\"stablehlo.return\"(%%v, %%i) : (%s, %s) -> ()\n})",
                   t, v, v, v, i, i, i, v, i);
}

void tpui_window_max(const tpui_windows_t* p, tpui_hlo_t x, tpui_hlo_t index, const int64_t* sizes,
                     tpui_hlo_t* out_value, tpui_hlo_t* out_index) {
  tpui_builder_t* b = p->b;
  frame_t f = frame_of(p, x, sizes);
  const tpui_hlo_t operands[] = {x, index, tpui_lowest(b, x.dtype),
                                 tpui_constant_int(b, index.dtype, -1)};
  const tpui_type_t types[] = {{x.dtype, x.rank, sizes}, {index.dtype, x.rank, sizes}};
  tpui_hlo_t results[2];
  tpui_raw_multi(b, "stablehlo.reduce_window", 4, operands, frame_text(b, &f, x.rank),
                 max_region(b, x.dtype, index.dtype), 2, types, results);
  *out_value = results[0];
  *out_index = results[1];
}

tpui_hlo_t tpui_window_scatter_max(const tpui_windows_t* p, tpui_hlo_t x, tpui_hlo_t grad) {
  tpui_builder_t* b = p->b;
  frame_t f = frame_of(p, x, grad.sizes);
  const char* type = tpui_text_type(b, (tpui_type_t){x.dtype, 0, NULL});
  const char* sum = tpui_text_combiner(b, "add", grad.dtype);
  if (sum[0] == '(') ++sum;  // the second region of one list; empty after a failure
  const char* regions = tpui_text(
      b,
      "({\n^bb0(%%l: %s, %%r: %s):\n%%c = \"stablehlo.compare\"(%%l, %%r) <{comparison_direction = "
      "#stablehlo<comparison_direction GE>}> : (%s, %s) -> tensor<i1>\n"
      "\"stablehlo.return\"(%%c) : (tensor<i1>) -> ()\n}, %s",
      type, type, type, type, sum);
  const char* attributes = tpui_text(
      b, "window_dimensions = %s, window_strides = %s, %s", tpui_text_array(b, x.rank, f.size),
      tpui_text_array(b, x.rank, f.stride), padding_text(b, &f, x.rank));
  const tpui_hlo_t operands[] = {x, grad, tpui_constant(b, grad.dtype, 0)};
  return tpui_raw(b, "stablehlo.select_and_scatter", 3, operands, attributes, regions, x.dtype,
                  x.rank, x.sizes);
}
