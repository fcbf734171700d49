#include "lower/op_lowering.h"

#include "ops/op_ids.h"

static const tpui_op_lowering_t lowerings[TPU_OP_COUNT] = {
#define TPU_OP(id, aten, family, lowering, argument, flags, opinfo) \
  [TPU_OP_##id] = {tpui_lower_##lowering, argument},
#include "ops/op_table.def"
#undef TPU_OP
};

/* What is never a part of a program. */
void tpui_lower_nowhere(const tpui_lowering_t* op) {
  tpui_fail(op->b, TPU_UNIMPLEMENTED,
            "it runs on the host, where nobody has set a function for it");
}

tpui_op_lowering_t tpui_op_lowering(tpu_op_t op) {
  if (op <= TPU_OP_INVALID || op >= TPU_OP_COUNT) return (tpui_op_lowering_t){NULL, ""};
  return lowerings[op];
}
