/* sort, argsort, topk and kth. */
#include "host/host_internal.h"
#include "host/lines.h"
#include "host/order.h"

typedef struct task_t {
  tpu_dtype_t dtype;
  int64_t length;  // of the sorted lines
  int64_t k;       // topk
  bool descending;
  bool has_values;  // result 0 is the values
} task_t;

static tpu_status_t check_sort(const tpu_host_call_t* call, tpui_line_walk_t* walk, task_t* task) {
  const tpu_host_buffer_t* x = &call->operands[0];
  const tpu_host_buffer_t* indices = &call->results[call->result_count - 1];
  if (!tpui_order_takes(x->dtype)) {
    return tpu_status_make(TPU_UNIMPLEMENTED, "%s has no order", tpu_dtype_name(x->dtype));
  }
  if (indices->dtype != TPU_I64 || (task->has_values && call->results[0].dtype != x->dtype)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "results must be %s and int64",
                           tpu_dtype_name(x->dtype));
  }
  int64_t dim;
  TPU_RETURN_IF_ERROR(tpu_host_attr_int(call, "dim", &dim));
  TPU_RETURN_IF_ERROR(tpui_line_walk_init(call, dim, walk));
  task->dtype = x->dtype;
  task->length = walk->tensors[0].length;
  if (task->length > TPUI_MAX_ORDER) {
    return tpu_status_make(TPU_UNIMPLEMENTED, "lines of %lld elements", (long long)task->length);
  }
  walk->arg = task;
  return NULL;
}

/* --- results --- */

/* The first `count` of the order. `out_values` may be NULL. */
static void write_results(const task_t* task, const void* line, tpui_order_t order, int64_t count,
                          void* out_values, int64_t* out_indices) {
  for (int64_t k = 0; k < count; ++k) out_indices[k] = tpui_order_position(order, k);
  if (out_values != NULL) tpui_order_gather(task->dtype, line, count, out_indices, out_values);
}

/* --- sort --- */

static tpu_status_t sort_byte_line(void* arg, void* scratch, void* const* lines) {
  (void)scratch;
  const task_t* task = arg;
  const uint8_t* x = lines[0];
  int64_t* indices = lines[task->has_values ? 2 : 1];
  tpui_order_bytes(task->dtype, x, task->length, task->descending, indices);
  if (task->has_values) tpui_order_gather(task->dtype, x, task->length, indices, lines[1]);
  return NULL;
}

static tpu_status_t sort_line(void* arg, void* scratch, void* const* lines) {
  const task_t* task = arg;
  tpui_order_t order =
      tpui_order_line(task->dtype, lines[0], task->length, task->descending, scratch);
  void* values = task->has_values ? lines[1] : NULL;
  write_results(task, lines[0], order, task->length, values, lines[task->has_values ? 2 : 1]);
  return NULL;
}

static tpu_status_t sort_call(const tpu_host_call_t* call, bool has_values) {
  task_t task = {.has_values = has_values};
  tpui_line_walk_t walk;
  int64_t descending;
  TPU_RETURN_IF_ERROR(check_sort(call, &walk, &task));
  TPU_RETURN_IF_ERROR(tpu_host_attr_int(call, "descending", &descending));
  task.descending = descending != 0;
  for (int t = 1; t < walk.tensor_count; ++t) {
    if (walk.tensors[t].length != task.length) {
      return tpu_status_make(TPU_INVALID_ARGUMENT, "result %d has another length", t - 1);
    }
  }
  bool bytes = tpu_dtype_bytes(task.dtype) == 1;
  walk.function = bytes ? sort_byte_line : sort_line;
  walk.scratch_bytes = bytes ? 0 : tpui_order_scratch(task.dtype, task.length);
  return tpui_line_walk_run(call, &walk);
}

/* x -> values, indices (int64). Attributes: dim, descending. */
tpu_status_t tpui_host_sort(const tpu_host_call_t* call) { return sort_call(call, true); }

/* x -> indices (int64). Attributes: dim, descending. */
tpu_status_t tpui_host_argsort(const tpu_host_call_t* call) { return sort_call(call, false); }

/* --- topk --- */

static tpu_status_t topk_line(void* arg, void* scratch, void* const* lines) {
  const task_t* task = arg;
  tpui_order_t order =
      tpui_order_first(task->dtype, lines[0], task->length, task->k, task->descending, scratch);
  write_results(task, lines[0], order, task->k, lines[1], lines[2]);
  return NULL;
}

/* x -> values, indices (int64) of the k greatest or least along dim, in order; k is the results'
 * size there. Of equal values the first ones are taken. Attributes: dim, largest. */
tpu_status_t tpui_host_topk(const tpu_host_call_t* call) {
  task_t task = {.has_values = true};
  tpui_line_walk_t walk;
  int64_t largest;
  TPU_RETURN_IF_ERROR(check_sort(call, &walk, &task));
  TPU_RETURN_IF_ERROR(tpu_host_attr_int(call, "largest", &largest));
  task.descending = largest != 0;
  task.k = walk.tensors[1].length;
  if (task.k != walk.tensors[2].length || task.k > task.length) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "%lld values and %lld indices of %lld elements",
                           (long long)task.k, (long long)walk.tensors[2].length,
                           (long long)task.length);
  }
  walk.function = topk_line;
  walk.scratch_bytes = tpui_order_first_scratch(task.dtype, task.length);
  return tpui_line_walk_run(call, &walk);
}

/* --- kth --- */

static tpu_status_t kth_line(void* arg, void* scratch, void* const* lines) {
  const task_t* task = arg;
  int64_t rank = *(const int64_t*)lines[1];
  if (rank < 0 || rank >= task->length) {
    return tpu_status_make(TPU_OUT_OF_RANGE, "rank %lld in a line of %lld", (long long)rank,
                           (long long)task->length);
  }
  uint64_t* packed = scratch;
  if (tpui_order_pack_heads(task->dtype, lines[0], task->length, false, packed) == 0) {
    uint64_t found = tpui_order_select_packed(packed, task->length, rank);
    write_results(task, lines[0], (tpui_order_t){&found, 1}, 1, lines[2], lines[3]);
    return NULL;
  }
  tpui_order_t order = tpui_order_line(task->dtype, lines[0], task->length, false, scratch);
  order.entries += rank * order.step;
  write_results(task, lines[0], order, 1, lines[2], lines[3]);
  return NULL;
}

/* x, ranks (int64, size 1 along dim) -> values, indices (int64) of the element with that rank in
 * each line, 0 being the least; both have size 1 along dim. Attributes: dim. */
tpu_status_t tpui_host_kth(const tpu_host_call_t* call) {
  task_t task = {.has_values = true};
  tpui_line_walk_t walk;
  TPU_RETURN_IF_ERROR(check_sort(call, &walk, &task));
  for (int t = 1; t < walk.tensor_count; ++t) {
    if (walk.tensors[t].length == 1) continue;
    return tpu_status_make(TPU_INVALID_ARGUMENT, "ranks and results must have size 1 along dim");
  }
  if (call->operands[1].dtype != TPU_I64) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "ranks must be int64");
  }
  walk.function = kth_line;
  walk.scratch_bytes = tpui_order_scratch(task.dtype, task.length);
  return tpui_line_walk_run(call, &walk);
}
