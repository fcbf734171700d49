/* Running sums and products along one dimension. */
#include <string.h>

#include "lower/complex.h"
#include "lower/dims.h"
#include "lower/host_call.h"
#include "lower/op_lowering.h"
#include "lower/pointwise.h"

/* A window that ends at each element and reaches back over all before it. XLA makes it a tree. */
static tpui_hlo_t running_scan(tpui_builder_t* b, const char* region, tpui_hlo_t x, int dim,
                               tpui_hlo_t identity) {
  int64_t window[TPU_MAX_RANK], pairs[2] = {x.rank, 2};
  const char* rows = "";
  for (int i = 0; i < x.rank; ++i) {
    window[i] = i == dim ? x.sizes[i] : 1;
    rows = tpui_text(b, "%s%s[%lld, 0]", rows, i > 0 ? ", " : "", (long long)window[i] - 1);
  }
  const char* attributes = tpui_text(b, "window_dimensions = %s, padding = dense<[%s]> : %s",
                                     tpui_text_array(b, x.rank, window), rows,
                                     tpui_text_type(b, (tpui_type_t){TPU_I64, 2, pairs}));
  tpui_hlo_t operands[2] = {x, identity};
  return tpui_raw(b, "stablehlo.reduce_window", 2, operands, attributes, region, x.dtype, x.rank,
                  x.sizes);
}

static bool has_kernel(const tpui_builder_t* b, tpu_dtype_t dtype) {
  return tpui_host_calls(b) &&
         (dtype == TPU_F32 || dtype == TPU_F64 || dtype == TPU_I32 || dtype == TPU_I64);
}

/* cumsum(self, dim, dtype) and cumprod; argument: add or multiply. */
void tpui_lower_cumulative(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  if (has_kernel(b, meta->dtype) && meta->rank > 0) {
    tpui_hlo_t x = tpui_operand_as(op, 0, meta->dtype), result;
    const tpui_call_attr_t attr = {"dim", tpui_dim_attr(op, 0, x.rank)};
    const tpui_type_t type = {x.dtype, x.rank, x.sizes};
    tpui_host_call(b, op->argument[0] == 'a' ? "cumsum" : "cumprod", 1, &x, 1, &attr, 1, &type,
                   &result);
    tpui_set_result(op, 0, result);
    return;
  }
  tpui_hlo_t x = tpui_operand_as(op, 0, tpui_math_dtype(meta->dtype));
  int dim = tpui_dim_attr(op, 0, x.rank);
  if (!tpui_ok(b)) return;
  if (dim >= 0 && meta->numel > 0) {
    bool is_sum = strcmp(op->argument, "add") == 0;
    tpui_hlo_t identity = tpui_convert(b, tpui_constant(b, TPU_F64, is_sum ? 0.0 : 1.0), x.dtype);
    x = running_scan(b, tpui_text_combiner(b, op->argument, x.dtype), x, dim, identity);
  }
  tpui_set_result(op, 0, x);
}

/* Region for log(exp(l) + exp(r)); two minus infinities give minus infinity. */
static const char* log_add_region(tpui_builder_t* b, tpu_dtype_t dtype) {
  const char* t = tpui_text_type(b, (tpui_type_t){dtype, 0, NULL});
  const char* head = tpui_text(b,
                               "({\n^bb0(%%l: %s, %%r: %s):\n"
                               "%%top = \"stablehlo.maximum\"(%%l, %%r) : (%s, %s) -> %s\n"
                               "%%low = \"stablehlo.minimum\"(%%l, %%r) : (%s, %s) -> %s\n"
                               "%%gap = \"stablehlo.subtract\"(%%low, %%top) : (%s, %s) -> %s\n"
                               "%%e = \"stablehlo.exponential\"(%%gap) : (%s) -> %s\n"
                               "%%tail = \"stablehlo.log_plus_one\"(%%e) : (%s) -> %s\n"
                               "%%sum = \"stablehlo.add\"(%%top, %%tail) : (%s, %s) -> %s\n",
                               t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t);
  return tpui_text(
      b,
      "%s%%same = \"stablehlo.compare\"(%%l, %%r) <{comparison_direction = "
      "#stablehlo<comparison_direction EQ>}> : (%s, %s) -> tensor<i1>\n"
      "%%fin = \"stablehlo.is_finite\"(%%top) : (%s) -> tensor<i1>\n"
      "%%inf = \"stablehlo.not\"(%%fin) : (tensor<i1>) -> tensor<i1>\n"
      "%%both = \"stablehlo.and\"(%%same, %%inf) : (tensor<i1>, tensor<i1>) -> tensor<i1>\n"
      "%%c = \"stablehlo.select\"(%%both, %%top, %%sum) : (tensor<i1>, %s, %s) -> %s\n"
      "\"stablehlo.return\"(%%c) : (%s) -> ()\n})",
      head, t, t, t, t, t, t, t);
}

/* Each element with the one `step` before it, for steps 1, 2, 4, ... */
static tpui_hlo_t complex_scan(tpui_builder_t* b, tpui_hlo_t x, int dim) {
  const int64_t count = x.sizes[dim];
  for (int64_t step = 1; step < count && tpui_ok(b); step *= 2) {
    tpui_hlo_t late = tpui_slice_dim(b, x, dim, step, count);
    tpui_hlo_t sum = tpui_complex_log_add(b, late, tpui_slice_dim(b, x, dim, 0, count - step));
    const tpui_hlo_t parts[2] = {tpui_slice_dim(b, x, dim, 0, step), sum};
    x = tpui_concatenate(b, 2, parts, dim);
  }
  return x;
}

/* _logcumsumexp(self, dim) */
void tpui_lower_logcumsumexp(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpui_hlo_t x = tpui_operand_as(op, 0, tpui_math_dtype(meta->dtype));
  int dim = tpui_dim_attr(op, 0, x.rank);
  if (!tpui_ok(b)) return;
  if (dim >= 0 && meta->numel > 0 && tpui_is_complex(x)) {
    x = complex_scan(b, x, dim);
  } else if (dim >= 0 && meta->numel > 0) {
    x = running_scan(b, log_add_region(b, x.dtype), x, dim, tpui_lowest(b, x.dtype));
    // libtpu 0.0.52 ends the process when it weighs fusing this into its consumer, for v6e.
    x = tpui_barrier(b, x);
  }
  tpui_set_result(op, 0, x);
}
