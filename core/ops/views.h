/* The views algebra: how a strided view of a storage is read and written with array operations.
 *
 * Pure: no memory is touched, no text is written. A storage's content is a dense array ("base")
 * with sizes and strides that are a permutation of a gap-free layout starting at offset 0. A view
 * has its own sizes, strides and offset into the same flat element space. Decoding finds the
 * shortest chain
 *
 *   base --transpose--> flat order --reshape--> `factors` --slice--> --reshape--> `kept`
 *        --transpose--> --broadcast--> view
 *
 * and falls back to a gather over flat indices when no such chain exists (overlapping windows, odd
 * strides). Encoding (writing through a view) runs the same chain backwards.
 */
#ifndef TPU_OPS_VIEWS_H_
#define TPU_OPS_VIEWS_H_

#include "types/meta.h"

#ifdef __cplusplus
extern "C" {
#endif

/* More factors than dimensions: a view can split dimensions of the base. */
#define TPU_VIEW_MAX_FACTORS (2 * TPU_MAX_RANK + 2)

typedef enum tpu_view_kind_t {
  TPU_VIEW_IDENTITY,  // same sizes, strides, offset 0: the base itself
  TPU_VIEW_CHAIN,     // the chain above
  TPU_VIEW_GATHER,    // flat index = offset + sum(index[i] * strides[i])
} tpu_view_kind_t;

typedef struct tpu_view_plan_t {
  tpu_view_kind_t kind;

  // Step 1: permutation that puts the base's dimensions in flat order (strides descending).
  bool transpose_base;  // false: already in flat order
  int base_rank;
  int base_permutation[TPU_MAX_RANK];

  // Step 2: flat space as mixed radix; product(factors) == base numel.
  int factor_count;
  int64_t factors[TPU_VIEW_MAX_FACTORS];
  // Step 3: per factor: first index, number of indices, step. start + (count-1)*step < factor.
  int64_t starts[TPU_VIEW_MAX_FACTORS];
  int64_t counts[TPU_VIEW_MAX_FACTORS];
  int64_t steps[TPU_VIEW_MAX_FACTORS];
  bool slices;  // false: the slice is everything
  bool whole;   // the view reaches every element of the base exactly once

  // Step 4: sizes after merging/dropping factors (only those that become view dimensions, in flat
  // order), then the permutation and broadcast to the view's dimensions:
  // view dimension `kept_dims[i]` takes kept size i; all other view dimensions are broadcast.
  int kept_count;
  int64_t kept[TPU_MAX_RANK];
  int kept_dims[TPU_MAX_RANK];
} tpu_view_plan_t;

/* Plans reading `view` at `offset` (elements) of a storage whose content has metadata `base`
 * (base->dense must hold; same element size is the caller's concern, dtypes are ignored here).
 * Fails with TPU_OUT_OF_RANGE when the view reaches outside the base's elements. Views without
 * elements are fine (kind CHAIN with kept sizes of 0, or IDENTITY). */
TPU_MUST_USE tpu_status_t tpu_view_plan(const tpu_meta_t* base, const tpu_meta_t* view,
                                        int64_t offset, tpu_view_plan_t* out_plan);

/* The same with a factor of its own for each view dimension of `kept`, in that order, for those who
 * address single elements: index i of kept dimension k is position starts[k] + i * steps[k] of
 * factor k. Kind GATHER where neighbours would have to share a factor. */
TPU_MUST_USE tpu_status_t tpu_view_plan_apart(const tpu_meta_t* base, const tpu_meta_t* view,
                                              int64_t offset, tpu_view_plan_t* out_plan);

/* True when the slice leaves out some indices of factor k. */
static inline bool tpu_view_factor_is_sliced(const tpu_view_plan_t* plan, int k) {
  return plan->counts[k] != plan->factors[k];
}
/* True when a slice has holes between the indices that it takes. */
bool tpu_view_plan_has_steps(const tpu_view_plan_t* plan);

/* Starts that make `plan` read the same view at another offset; `out_starts` holds factor_count
 * entries. False when the plan's factors cannot express that offset (a row of 3 at offset 1 of rows
 * of 3 crosses a row's end): such an offset needs a plan, and a program, of its own. Must be asked
 * before a program whose starts are arguments runs for another offset. Always true for IDENTITY and
 * GATHER, whose starts do not matter. The caller has checked that the view at `offset` lies inside
 * the base. */
bool tpu_view_plan_starts(const tpu_view_plan_t* plan, int64_t offset, int64_t* out_starts);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_OPS_VIEWS_H_
