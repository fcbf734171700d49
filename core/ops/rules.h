/* The side table op_rules.def: what few rows of the op table say beside its columns. */
#ifndef TPU_OPS_RULES_H_
#define TPU_OPS_RULES_H_

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Name of the ATen operation that answers for the results of this one, with the same overloads;
 * NULL: it answers itself. */
const char* tpu_op_question(tpu_op_t op);

/* True when the integers in this argument (its name in the ATen schema) are operands. */
bool tpu_op_is_data(tpu_op_t op, const char* argument);

typedef enum tpu_relation_t {
  TPU_RELATION_BELOW,
  TPU_RELATION_AT_MOST,
  TPU_RELATION_ABOVE,
  TPU_RELATION_AT_LEAST,
} tpu_relation_t;

/* `argument relation bound` must hold where the argument is a number; not a number never does. */
typedef struct tpu_number_rule_t {
  const char* argument;  // its name in the ATen schema
  tpu_relation_t relation;
  const char* bound;   // a number, or the name of another argument
  bool integers_only;  // holds for all others than integers on a tensor of integers
  const char* text;    // of the error; {name} stands for the value of an argument
} tpu_number_rule_t;

/* Rule `index` (from 0) of this operation, or NULL. Lives forever. */
const tpu_number_rule_t* tpu_op_number_rule(tpu_op_t op, int index);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_OPS_RULES_H_
