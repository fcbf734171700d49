/* cumsum, cumprod, cummax, cummin. */
#include "host/host_internal.h"
#include "host/lines.h"
#include "host/order.h"

typedef struct task_t {
  tpu_dtype_t dtype;
  int64_t length;
  bool least;  // cummin
} task_t;

static tpu_status_t check_scan(const tpu_host_call_t* call, tpui_line_walk_t* walk, task_t* task) {
  const tpu_host_buffer_t* x = &call->operands[0];
  int64_t dim;
  TPU_RETURN_IF_ERROR(tpu_host_attr_int(call, "dim", &dim));
  TPU_RETURN_IF_ERROR(tpui_line_walk_init(call, dim, walk));
  if (call->results[0].dtype != x->dtype) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "%s of %s", tpu_dtype_name(call->results[0].dtype),
                           tpu_dtype_name(x->dtype));
  }
  task->dtype = x->dtype;
  task->length = walk->tensors[0].length;
  for (int t = 1; t < walk->tensor_count; ++t) {
    if (walk->tensors[t].length == task->length) continue;
    return tpu_status_make(TPU_INVALID_ARGUMENT, "result %d has another length", t - 1);
  }
  walk->arg = task;
  return NULL;
}

/* --- sums and products --- */

/* `sum_type` is what PyTorch adds up in; signed integers wrap, so they are added as unsigned. */
#define CUMULATIVE(name, type, sum_type, first, operator)                         \
  static tpu_status_t name##_line(void* arg, void* scratch, void* const* lines) { \
    (void)scratch;                                                                \
    const type* x = lines[0];                                                     \
    type* out = lines[1];                                                         \
    sum_type sum = first;                                                         \
    for (int64_t i = 0, n = ((const task_t*)arg)->length; i < n; ++i) {           \
      sum = sum operator(sum_type) x[i];                                          \
      out[i] = (type)sum;                                                         \
    }                                                                             \
    return NULL;                                                                  \
  }
CUMULATIVE(sum_f32, float, double, 0, +)
CUMULATIVE(sum_f64, double, double, 0, +)
CUMULATIVE(sum_i32, uint32_t, uint32_t, 0, +)
CUMULATIVE(sum_i64, uint64_t, uint64_t, 0, +)
CUMULATIVE(product_f32, float, double, 1, *)
CUMULATIVE(product_f64, double, double, 1, *)
CUMULATIVE(product_i32, uint32_t, uint32_t, 1, *)
CUMULATIVE(product_i64, uint64_t, uint64_t, 1, *)

static tpu_status_t accumulate_lines(const tpu_host_call_t* call, tpui_line_fn_t f32,
                                     tpui_line_fn_t f64, tpui_line_fn_t i32, tpui_line_fn_t i64) {
  task_t task = {0};
  tpui_line_walk_t walk;
  TPU_RETURN_IF_ERROR(check_scan(call, &walk, &task));
  const tpui_line_fn_t functions[TPU_DTYPE_COUNT] = {
      [TPU_F32] = f32, [TPU_F64] = f64, [TPU_I32] = i32, [TPU_I64] = i64};
  walk.function = functions[task.dtype];
  if (walk.function == NULL) {
    return tpu_status_make(TPU_UNIMPLEMENTED, "not for %s", tpu_dtype_name(task.dtype));
  }
  return tpui_line_walk_run(call, &walk);
}

/* x -> sums of x[0 .. i] along dim; f32, f64, i32, i64. Attributes: dim. */
tpu_status_t tpui_host_cumsum(const tpu_host_call_t* call) {
  return accumulate_lines(call, sum_f32_line, sum_f64_line, sum_i32_line, sum_i64_line);
}

/* The same with products. */
tpu_status_t tpui_host_cumprod(const tpu_host_call_t* call) {
  return accumulate_lines(call, product_f32_line, product_f64_line, product_i32_line,
                          product_i64_line);
}

/* --- extremes --- */

static tpu_status_t extreme_line(void* arg, void* scratch, void* const* lines) {
  (void)scratch;
  const task_t* task = arg;
  int64_t* indices = lines[2];
  tpui_order_running(task->dtype, lines[0], task->length, task->least, indices);
  tpui_order_gather(task->dtype, lines[0], task->length, indices, lines[1]);
  return NULL;
}

static tpu_status_t scan_extremes(const tpu_host_call_t* call, bool least) {
  task_t task = {.least = least};
  tpui_line_walk_t walk;
  TPU_RETURN_IF_ERROR(check_scan(call, &walk, &task));
  if (!tpui_order_takes(task.dtype)) {
    return tpu_status_make(TPU_UNIMPLEMENTED, "%s has no order", tpu_dtype_name(task.dtype));
  }
  if (call->results[1].dtype != TPU_I64) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "indices must be int64");
  }
  walk.function = extreme_line;
  return tpui_line_walk_run(call, &walk);
}

/* x -> values, indices (int64) of the greatest element so far along dim; the latest of equal ones,
 * NaN is the greatest. Attributes: dim. */
tpu_status_t tpui_host_cummax(const tpu_host_call_t* call) { return scan_extremes(call, false); }

/* The same for the least element; NaN is the least. */
tpu_status_t tpui_host_cummin(const tpu_host_call_t* call) { return scan_extremes(call, true); }
