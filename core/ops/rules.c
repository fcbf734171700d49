#include "ops/rules.h"

#include <string.h>

#include "ops/op_ids.h"

static const char* const questions[TPU_OP_COUNT] = {
#define TPU_OP_ASK(id, aten) [TPU_OP_##id] = aten,
#include "ops/op_rules.def"
};

static const char* const no_identities[TPU_OP_COUNT] = {
#define TPU_OP_NO_IDENTITY(id, argument) [TPU_OP_##id] = argument,
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

static const struct {
  const char *aten, *argument;
} images[] = {
#define TPU_OP_IMAGE(aten, argument) {aten, argument},
#include "ops/op_rules.def"
};

bool tpu_op_is_image(const char* aten, const char* argument) {
  for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); ++i) {
    if (strcmp(images[i].aten, aten) == 0 && strcmp(images[i].argument, argument) == 0) return true;
  }
  return false;
}

static const struct {
  tpu_op_t op;
  tpu_range_rule_t rule;
} ranges[] = {
#define TPU_OP_RANGE(id, argument, offset, what) {TPU_OP_##id, {argument, offset, what}},
#include "ops/op_rules.def"
};

static const struct {
  tpu_op_t op;
  tpu_overlap_t overlap;
} overlaps[] = {
#define TPU_OP_OVERLAP(id, kind) {TPU_OP_##id, TPU_OVERLAP_##kind},
#include "ops/op_rules.def"
};

static const tpu_op_t probes[] = {
#define TPU_OP_PROBE(id) TPU_OP_##id,
#include "ops/op_rules.def"
};

static const struct {
  tpu_op_t op;
  tpu_dtype_kind_t kind;
} beyond_cpu[] = {
#define TPU_OP_BEYOND_CPU(id, kind) {TPU_OP_##id, TPU_KIND_##kind},
#include "ops/op_rules.def"
};

static const char* text_of(const char* const* texts, tpu_op_t op) {
  return op > TPU_OP_INVALID && op < TPU_OP_COUNT ? texts[op] : NULL;
}

const char* tpu_op_question(tpu_op_t op) { return text_of(questions, op); }
const char* tpu_op_no_identity(tpu_op_t op) { return text_of(no_identities, op); }

const tpu_number_rule_t* tpu_op_number_rule(tpu_op_t op, int index) {
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
    if (numbers[i].op == op && index-- == 0) return &numbers[i].rule;
  }
  return NULL;
}

const tpu_range_rule_t* tpu_op_range_rule(tpu_op_t op, int index) {
  for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); ++i) {
    if (ranges[i].op == op && index-- == 0) return &ranges[i].rule;
  }
  return NULL;
}

tpu_overlap_t tpu_op_overlap(tpu_op_t op) {
  for (size_t i = 0; i < sizeof(overlaps) / sizeof(overlaps[0]); ++i) {
    if (overlaps[i].op == op) return overlaps[i].overlap;
  }
  const tpu_op_info_t* info = tpu_op_info(op);
  if ((info->flags & TPU_OP_CHECK_INDEX) != 0) return TPU_OVERLAP_ANY;
  return info->family == TPU_FAMILY_POINTWISE ? TPU_OVERLAP_PARTIAL : TPU_OVERLAP_NONE;
}

bool tpu_op_probes_floating(tpu_op_t op) {
  for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]); ++i) {
    if (probes[i] == op) return true;
  }
  return false;
}

bool tpu_op_is_beyond_cpu(tpu_op_t op, tpu_dtype_t dtype) {
  for (size_t i = 0; i < sizeof(beyond_cpu) / sizeof(beyond_cpu[0]); ++i) {
    if (beyond_cpu[i].op == op && beyond_cpu[i].kind == tpu_dtype_kind(dtype)) return true;
  }
  return false;
}
