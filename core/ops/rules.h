/* The side table op_rules.def: what few rows of the op table say beside its columns. */
#ifndef TPU_OPS_RULES_H_
#define TPU_OPS_RULES_H_

#include "ops/ops.h"
#include "types/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Name of the ATen operation that answers for the results of this one, with the same overloads;
 * NULL: it answers itself. */
const char* tpu_op_question(tpu_op_t op);

/* True when the integers in this argument (its name in the ATen schema) are operands. */
bool tpu_op_is_data(tpu_op_t op, const char* argument);

/* True when results of the rank of this argument (its name in the schema of the ATen operation) lie
 * channels_last where it does. */
bool tpu_op_is_image(const char* aten, const char* argument);

typedef enum tpu_relation_t {
  TPU_RELATION_BELOW,
  TPU_RELATION_AT_MOST,
  TPU_RELATION_ABOVE,
  TPU_RELATION_AT_LEAST,
  TPU_RELATION_OTHER_THAN,
} tpu_relation_t;

/* `argument relation bound` must hold where the argument is a number; not a number never does. */
typedef struct tpu_number_rule_t {
  const char* argument;  // its name in the ATen schema
  tpu_relation_t relation;
  const char* bound;   // a number, the name of another argument, or "size(dim)": of the first
                       // tensor along the dimension in argument dim
  bool integers_only;  // holds for all others than integers on a tensor of integers
  const char* text;    // of the error; {name} stands for the value of an argument
} tpu_number_rule_t;

/* Rule `index` (from 0) of this operation, or NULL. Lives forever. */
const tpu_number_rule_t* tpu_op_number_rule(tpu_op_t op, int index);

/* Argument (its name in the ATen schema) of a reduction that has no value for nothing at all where
 * this number is infinite or negative; NULL: none. */
const char* tpu_op_no_identity(tpu_op_t op);

/* `argument + offset` must be a value of the first tensor's dtype. */
typedef struct tpu_range_rule_t {
  const char* argument;  // its name in the ATen schema
  int64_t offset;
  const char* what;  // its name in the error
} tpu_range_rule_t;

/* Rule `index` (from 0) of this operation, or NULL. Lives forever. */
const tpu_range_rule_t* tpu_op_range_rule(tpu_op_t op, int index);

/* What the tensor that a call writes in place or to out= must not do. */
typedef enum tpu_overlap_t {
  TPU_OVERLAP_NONE,     // no rule
  TPU_OVERLAP_PARTIAL,  // share some elements with another one, unless it is the same view
  TPU_OVERLAP_ANY,      // share any element
} tpu_overlap_t;

/* PARTIAL for pointwise operations, ANY for those with indices, NONE for others, where no rule of
 * op_rules.def says otherwise. */
tpu_overlap_t tpu_op_overlap(tpu_op_t op);

/* PyTorch's meta kernel accepts what the CPU's kernel refuses, also where all is floating. */
bool tpu_op_probes_floating(tpu_op_t op);

/* The device takes tensors of this dtype although the CPU has no kernel for them. */
bool tpu_op_is_beyond_cpu(tpu_op_t op, tpu_dtype_t dtype);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_OPS_RULES_H_
