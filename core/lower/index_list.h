/* A list of index tensors, one per dimension or none, as in x[i, :, j]. Internal to lower/. */
#ifndef TPU_LOWER_INDEX_LIST_H_
#define TPU_LOWER_INDEX_LIST_H_

#include "lower/axes.h"

typedef struct tpui_index_list_t {
  tpui_pick_t pick;
  int operand_end;  // first operand after the list
  int result_rank;  // of what is picked
  int64_t result[2 * TPU_MAX_RANK];
} tpui_index_list_t;

/* Reads the list whose length is attribute 0 and whose elements start at operand 1. `clamp`:
 * indices for reading; otherwise those outside stay there, and a scatter drops them. False after an
 * error. */
bool tpui_index_list_read(const tpui_lowering_t* op, const tpui_axes_t* x, bool clamp,
                          tpui_index_list_t* list);

#endif  // TPU_LOWER_INDEX_LIST_H_
