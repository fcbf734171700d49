/* TPU_OP_<id> for each row of the op table. For core/ and its tests: whoever includes this is
 * compiled anew when a row is added.
 */
#ifndef TPU_OPS_OP_IDS_H_
#define TPU_OPS_OP_IDS_H_

#include "ops/ops.h"

enum {
  TPUI_OP_BEFORE_FIRST = TPU_OP_INVALID,
#define TPU_OP(id, aten, family, lowering, argument, flags, opinfo) TPU_OP_##id,
#include "ops/op_table.def"
#undef TPU_OP
  TPU_OP_COUNT
};

#endif  // TPU_OPS_OP_IDS_H_
