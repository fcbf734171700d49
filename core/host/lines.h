/* Walking the lines of tensors along one dimension. Internal to host/.
 *
 * A tensor seen along a dimension is [outer, length, inner]; line k = (o, i) is the `length`
 * elements at stride `inner`. Workers get each line as contiguous memory: where inner > 1, blocks
 * of neighbouring lines are copied in and out together, so that every cache line is used whole.
 */
#ifndef TPU_HOST_LINES_H_
#define TPU_HOST_LINES_H_

#include "host/host_internal.h"

enum { TPUI_MAX_LINE_TENSORS = 4 };

/* A tensor of the walk. All share outer and inner; lengths differ (top-k). */
typedef struct tpui_line_tensor_t {
  void* data;
  int64_t length;
  int64_t bytes;  // per element
} tpui_line_tensor_t;

/* One line: lines[t] is tensor t's part, contiguous. The results' parts are to be filled. */
typedef tpu_status_t (*tpui_line_fn_t)(void* arg, void* scratch, void* const* lines);

typedef struct tpui_line_walk_t {
  int64_t outer, inner;
  int tensor_count, operand_count;  // operands come first
  tpui_line_tensor_t tensors[TPUI_MAX_LINE_TENSORS];
  size_t scratch_bytes;  // per worker, aligned for uint64_t, not zeroed
  tpui_line_fn_t function;
  void* arg;
} tpui_line_walk_t;

/* Fills outer, inner and the tensors from the call's buffers, which must agree in all dimensions
 * but `dim`; dim is 0 for rank 0. TPU_INVALID_ARGUMENT otherwise. */
TPU_MUST_USE tpu_status_t tpui_line_walk_init(const tpu_host_call_t* call, int64_t dim,
                                              tpui_line_walk_t* out_walk);
/* Calls the function for every line, on several threads where that pays. */
TPU_MUST_USE tpu_status_t tpui_line_walk_run(const tpu_host_call_t* call, tpui_line_walk_t* walk);

#endif  // TPU_HOST_LINES_H_
