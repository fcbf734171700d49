/* Sorting primitives. Internal to lower/. */
#ifndef TPU_LOWER_SORT_H_
#define TPU_LOWER_SORT_H_

#include "lower/builder.h"

/* Ascending sort of one tensor of integers along `dim`. */
tpui_hlo_t tpui_sort_integers(tpui_builder_t* b, tpui_hlo_t x, int dim);
/* Stable order of x along `dim` (INT64 indices, x's sizes). NaN is the greatest value. */
tpui_hlo_t tpui_sort_order(tpui_builder_t* b, tpui_hlo_t x, int dim, bool descending);
/* Positions where `values` [R, V] belong in the sorted lines of `sequence` [R, S]; INT64 [R, V].
 * `right`: behind equal elements. */
tpui_hlo_t tpui_search_sorted(tpui_builder_t* b, tpui_hlo_t sequence, tpui_hlo_t values,
                              bool right);

#endif  // TPU_LOWER_SORT_H_
