#include "ops/rules.h"

#include <string.h>

#include "ops/op_ids.h"

static const char* const questions[TPU_OP_COUNT] = {
#define TPU_OP_ASK(id, aten) [TPU_OP_##id] = aten,
#include "ops/op_rules.def"
};

enum { KIND_ALL, KIND_INTEGERS };

static const struct {
  tpu_op_t op;
  tpu_number_rule_t rule;
} numbers[] = {
#define TPU_OP_NUMBER(id, argument, relation, bound, kind, text) \
  {TPU_OP_##id, {argument, TPU_RELATION_##relation, bound, KIND_##kind == KIND_INTEGERS, text}},
#include "ops/op_rules.def"
};

static const struct {
  tpu_op_t op;
  const char* argument;
} data[] = {
#define TPU_OP_DATA(id, argument) {TPU_OP_##id, argument},
#include "ops/op_rules.def"
};

bool tpu_op_is_data(tpu_op_t op, const char* argument) {
  for (size_t i = 0; i < sizeof(data) / sizeof(data[0]); ++i) {
    if (data[i].op == op && strcmp(data[i].argument, argument) == 0) return true;
  }
  return false;
}

const char* tpu_op_question(tpu_op_t op) {
  return op > TPU_OP_INVALID && op < TPU_OP_COUNT ? questions[op] : NULL;
}

const tpu_number_rule_t* tpu_op_number_rule(tpu_op_t op, int index) {
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
    if (numbers[i].op == op && index-- == 0) return &numbers[i].rule;
  }
  return NULL;
}
