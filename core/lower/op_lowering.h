/* The lowering column of the op table. Files that define such a function include this one: it
 * declares them all. */
#ifndef TPU_LOWER_OP_LOWERING_H_
#define TPU_LOWER_OP_LOWERING_H_

#include "lower/builder.h"

#define TPU_OP(id, aten, family, lowering, argument, flags, opinfo) \
  void tpui_lower_##lowering(const tpui_lowering_t* op);
#include "ops/op_table.def"
#undef TPU_OP

typedef struct tpui_op_lowering_t {
  tpui_lowering_fn_t function;  // NULL outside the table
  const char* argument;
} tpui_op_lowering_t;

tpui_op_lowering_t tpui_op_lowering(tpu_op_t op);

#endif  // TPU_LOWER_OP_LOWERING_H_
