#include "ops/ops.h"

#include <ctype.h>
#include <string.h>

#include "ops/op_ids.h"

// Ids as they are spelled in the table; put in lower case before main and before C++ constructors,
// so that the readers below need no lock. A too long id does not compile.
#define NAME_SIZE 64
static char names[TPU_OP_COUNT][NAME_SIZE] = {
    [TPU_OP_INVALID] = "invalid",
#define TPU_OP(id, aten, family, lowering, argument, flags, opinfo) [TPU_OP_##id] = #id,
#include "ops/op_table.def"
#undef TPU_OP
};

__attribute__((constructor(101))) static void lower_case_names(void) {
  for (tpu_op_t op = 0; op < TPU_OP_COUNT; ++op) {
    for (char* c = names[op]; *c != '\0'; ++c) *c = (char)tolower((unsigned char)*c);
  }
}

static const tpu_op_info_t infos[TPU_OP_COUNT] = {
    [TPU_OP_INVALID] = {names[TPU_OP_INVALID], "", TPU_FAMILY_POINTWISE, 0, "", "0", ""},
#define TPU_OP(id, aten, family, lowering, argument, flags, opinfo) \
  [TPU_OP_##id] = {names[TPU_OP_##id], aten, family, flags, #family, #flags, opinfo},
#include "ops/op_table.def"
#undef TPU_OP
};

const tpu_op_info_t* tpu_op_info(tpu_op_t op) {
  return &infos[op > TPU_OP_INVALID && op < TPU_OP_COUNT ? op : TPU_OP_INVALID];
}

tpu_op_t tpu_op_count(void) { return TPU_OP_COUNT; }

tpu_op_t tpu_op_find(const char* name) {
  for (tpu_op_t op = 1; op < TPU_OP_COUNT; ++op) {
    if (strcmp(names[op], name) == 0) return op;
  }
  return TPU_OP_INVALID;
}
