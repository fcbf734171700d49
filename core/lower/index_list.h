/* A list of index tensors, one per dimension or none, as in x[i, :, j]. Internal to lower/. */
#ifndef TPU_LOWER_INDEX_LIST_H_
#define TPU_LOWER_INDEX_LIST_H_

#include "lower/builder.h"

typedef struct tpui_index_list_t {
  int count;               // index tensors given
  int dims[TPU_MAX_RANK];  // dimension of x that each one addresses
  tpui_hlo_t indices[TPU_MAX_RANK];
  int rank;  // their common shape
  int64_t sizes[TPU_MAX_RANK];
  int operand_end;  // first operand after the list

  // How to apply them: transpose x by `permutation` when `moved`, reshape to `merged`, then take
  // (or put) `position` along dimension `first`. The taken value reshapes to `result`.
  bool moved;
  int permutation[TPU_MAX_RANK];
  int first;
  int merged_rank;
  int64_t merged[TPU_MAX_RANK];
  int result_rank;
  int64_t result[2 * TPU_MAX_RANK];
  tpui_hlo_t position;  // int64, common shape; not set when count is 0
} tpui_index_list_t;

/* Reads the list whose length is attribute 0 and whose elements start at operand 1. `clamp`:
 * positions for reading; otherwise positions outside are one that a scatter drops. False after an
 * error. */
bool tpui_index_list_read(const tpui_lowering_t* op, tpui_hlo_t x, bool clamp,
                          tpui_index_list_t* list);

#endif  // TPU_LOWER_INDEX_LIST_H_
