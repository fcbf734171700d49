/* Reading and writing few elements of a tensor that is a view of something large. Internal to
 * lower/.
 *
 * The tensor is an array seen along axes: index i of dimension d is position starts[a] + i *
 * steps[d] of axis a = axes[d]. The array is the content behind the view, reshaped: a gather from
 * it or a scatter into it never touches what is between, and an update can happen in place. */
#ifndef TPU_LOWER_AXES_H_
#define TPU_LOWER_AXES_H_

#include "lower/builder.h"
#include "ops/views.h"

struct tpui_axes_t {
  tpui_hlo_t array;  // its dimensions are the axes
  int rank;          // the tensor's
  int64_t sizes[TPU_MAX_RANK];
  int axes[TPU_MAX_RANK];  // by dimension of the tensor; -1: every index is the same place
  int64_t steps[TPU_MAX_RANK];
  tpui_hlo_t starts[TPU_VIEW_MAX_FACTORS];  // int64, rank 0; where `moved`
  bool moved[TPU_VIEW_MAX_FACTORS];         // by axis: does not start at 0

  // The way back to the content (tpui_axes_content).
  tpui_hlo_t base;
  const tpu_meta_t *base_meta, *meta;  // of the content, and of it in the tensor's dtype
  tpu_view_plan_t plan;
};

/* Which elements. Some dimensions are indexed by tensors whose common shape takes their place, the
 * others are taken whole. */
typedef struct tpui_pick_t {
  int count;
  int dims[TPU_MAX_RANK];            // ascending
  tpui_hlo_t indices[TPU_MAX_RANK];  // int64, not negative unless outside
  int rank;                          // the common shape; indices broadcast to it
  int64_t sizes[TPU_MAX_RANK];
  int at;  // whole dimensions in front of the common shape in results and updates
} tpui_pick_t;

/* Operand 0 of a SPARSE record, to read from. */
tpui_axes_t tpui_axes_operand(const tpui_lowering_t* op);
/* The same to write into: as an array of `dtype`. */
tpui_axes_t tpui_axes_target(const tpui_lowering_t* op, tpu_dtype_t dtype);
/* A value as itself. */
tpui_axes_t tpui_axes_whole(tpui_builder_t* b, tpui_hlo_t x);

/* The picked elements: whole dimensions in front, the common shape, whole dimensions behind.
 * Indices must be inside. */
tpui_hlo_t tpui_axes_gather(tpui_builder_t* b, const tpui_axes_t* x, const tpui_pick_t* pick);
/* The array with `updates` (shape as above) combined into the picked elements; `kind` as in
 * tpui_scatter. What is picked outside is dropped. */
tpui_hlo_t tpui_axes_scatter(tpui_builder_t* b, const char* kind, const tpui_axes_t* x,
                             const tpui_pick_t* pick, tpui_hlo_t updates);
/* Makes the scattered `array` of a target result 0. */
void tpui_axes_set_result(const tpui_lowering_t* op, const tpui_axes_t* x, tpui_hlo_t array);

/* Steps of a loop over scattered updates that cover the whole tensor. */
int64_t tpui_axes_rows(const tpui_axes_t* x);

#endif  // TPU_LOWER_AXES_H_
