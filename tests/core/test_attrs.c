#include <string.h>

#include "ops/attrs.h"
#include "ops/op_ids.h"
#include "test.h"

static tpu_attrs_id_t intern(const tpu_attrs_builder_t* builder) {
  tpu_attrs_id_t id;
  TPU_EXPECT_OK(tpu_attrs_intern(builder, &id));
  return id;
}

TPU_TEST(attrs_empty_set_is_zero) {
  tpu_attrs_builder_t builder;
  tpu_attrs_begin(&builder);
  TPU_EXPECT_EQ(intern(&builder), 0);
  TPU_EXPECT_EQ(tpu_attrs_count(0), 0);
  TPU_EXPECT_EQ(tpu_attr_kind(0, 0), TPU_ATTR_NONE);
  TPU_EXPECT_EQ(tpu_attr_int(0, 0, 5), 5);
  TPU_EXPECT_TEXT(tpu_attr_text(0, 0), "");
}

TPU_TEST(attrs_read_back_every_kind) {
  tpu_attrs_builder_t builder;
  tpu_attrs_begin(&builder);
  tpu_attrs_add_int(&builder, -7);
  tpu_attrs_add_none(&builder);
  tpu_attrs_add_dtype(&builder, TPU_BF16);
  tpu_attrs_add_text(&builder, "constant", 8);  // fills its word: the NUL is not in the words
  tpu_attrs_add_ints(&builder, (int64_t[]){1, -2, 3}, 3);
  tpu_attrs_add_ints(&builder, NULL, 0);
  tpu_attrs_add_double(&builder, 0.5);
  tpu_attrs_add_text(&builder, "", 0);
  tpu_attrs_add_text(&builder, "floor", 5);
  tpu_attrs_id_t id = intern(&builder);
  TPU_EXPECT_EQ(tpu_attrs_count(id), 9);
  TPU_EXPECT_EQ(tpu_attr_int(id, 0, 0), -7);
  TPU_EXPECT_EQ(tpu_attr_kind(id, 1), TPU_ATTR_NONE);
  TPU_EXPECT_EQ(tpu_attr_int(id, 1, 3), 3);
  TPU_EXPECT_EQ(tpu_attr_dtype(id, 2, TPU_F32), TPU_BF16);
  TPU_EXPECT_TEXT(tpu_attr_text(id, 3), "constant");
  const int64_t* values;
  TPU_EXPECT_EQ(tpu_attr_ints(id, 4, &values), 3);
  TPU_EXPECT(values != NULL && values[0] == 1 && values[1] == -2 && values[2] == 3);
  TPU_EXPECT_EQ(tpu_attr_ints(id, 5, &values), 0);
  TPU_EXPECT(values == NULL);
  TPU_EXPECT_EQ(tpu_attr_kind(id, 5), TPU_ATTR_INTS);
  TPU_EXPECT(tpu_attr_double(id, 6, 0) == 0.5);
  TPU_EXPECT_TEXT(tpu_attr_text(id, 7), "");
  TPU_EXPECT_TEXT(tpu_attr_text(id, 8), "floor");
}

TPU_TEST(attrs_wrong_kind_or_position_reads_as_none) {
  tpu_attrs_builder_t builder;
  tpu_attrs_begin(&builder);
  tpu_attrs_add_double(&builder, 2.0);
  tpu_attrs_id_t id = intern(&builder);
  const int64_t* values;
  TPU_EXPECT_EQ(tpu_attr_int(id, 0, 9), 9);
  TPU_EXPECT_EQ(tpu_attr_dtype(id, 0, TPU_I8), TPU_I8);
  TPU_EXPECT_EQ(tpu_attr_ints(id, 0, &values), 0);
  TPU_EXPECT_TEXT(tpu_attr_text(id, 0), "");
  TPU_EXPECT(tpu_attr_double(id, 1, 4.0) == 4.0);
  TPU_EXPECT(tpu_attr_double(id, -1, 4.0) == 4.0);
  TPU_EXPECT_EQ(tpu_attr_kind(id, 1), TPU_ATTR_NONE);
  TPU_EXPECT_EQ(tpu_attrs_count(1u << 30), 0);
}

TPU_TEST(attrs_equal_means_same_id) {
  tpu_attrs_builder_t a, b;
  memset(&a, 0x55, sizeof(a));  // words that were not built must not matter
  memset(&b, 0xaa, sizeof(b));
  tpu_attrs_begin(&a);
  tpu_attrs_begin(&b);
  tpu_attrs_add_text(&a, "tanh", 4);
  tpu_attrs_add_text(&b, "tanh", 4);
  TPU_EXPECT_EQ(intern(&a), intern(&b));
  tpu_attrs_add_int(&a, 1);
  TPU_EXPECT(intern(&a) != intern(&b));
  tpu_attrs_add_double(&b, 1.0);
  TPU_EXPECT(intern(&a) != intern(&b));
  tpu_attrs_begin(&a);
  tpu_attrs_begin(&b);
  tpu_attrs_add_int(&a, 6);
  tpu_attrs_add_dtype(&b, (tpu_dtype_t)6);
  TPU_EXPECT(intern(&a) != intern(&b));
}

TPU_TEST(attrs_overflow_is_refused) {
  static int64_t values[TPU_ATTRS_MAX_WORDS];
  tpu_attrs_builder_t builder;
  tpu_attrs_id_t id;
  tpu_attrs_begin(&builder);
  tpu_attrs_add_ints(&builder, values, TPU_ATTRS_MAX_WORDS - 1);  // just fits
  TPU_EXPECT_OK(tpu_attrs_intern(&builder, &id));
  tpu_attrs_add_none(&builder);
  TPU_EXPECT_CODE(tpu_attrs_intern(&builder, &id), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_EQ(id, 0);
  tpu_attrs_begin(&builder);
  tpu_attrs_add_ints(&builder, values, TPU_ATTRS_MAX_WORDS);
  tpu_attrs_add_int(&builder, 1);
  TPU_EXPECT_CODE(tpu_attrs_intern(&builder, &id), TPU_INVALID_ARGUMENT);
}

TPU_TEST(attrs_survive_lost_allocations) {
  tpu_attrs_builder_t builder;
  tpu_attrs_id_t id;
  for (int64_t i = 0; i < 1500; ++i) {
    tpu_attrs_begin(&builder);
    tpu_attrs_add_text(&builder, "sweep", 5);
    tpu_attrs_add_int(&builder, i);
    tpu_alloc_fail_at(1);
    TPU_EXPECT_CODE(tpu_attrs_intern(&builder, &id), TPU_RESOURCE_EXHAUSTED);
    tpu_alloc_fail_at(0);
    TPU_EXPECT_OK(tpu_attrs_intern(&builder, &id));
    TPU_EXPECT_EQ(tpu_attr_int(id, 1, -1), i);
    TPU_EXPECT_TEXT(tpu_attr_text(id, 0), "sweep");
  }
}

TPU_TEST(ops_table_rows) {
  TPU_EXPECT_TEXT(tpu_op_info(TPU_OP_ADD)->name, "add");
  TPU_EXPECT_TEXT(tpu_op_info(TPU_OP_VIEW_READ)->name, "view_read");
  TPU_EXPECT_EQ(tpu_op_info(TPU_OP_ADD)->family, TPU_FAMILY_POINTWISE);
  TPU_EXPECT((tpu_op_info(TPU_OP_ADD)->flags & TPU_OP_PROMOTE) != 0);
  TPU_EXPECT_TEXT(tpu_op_info((tpu_op_t)-1)->name, "invalid");
  TPU_EXPECT_TEXT(tpu_op_info(TPU_OP_COUNT)->name, "invalid");
}

TPU_TEST(ops_are_found_by_name) {
  TPU_EXPECT_EQ(tpu_op_count(), TPU_OP_COUNT);
  for (tpu_op_t op = 1; op < tpu_op_count(); ++op) {
    TPU_EXPECT_EQ(tpu_op_find(tpu_op_info(op)->name), op);
  }
  TPU_EXPECT_EQ(tpu_op_find("no_such_row"), TPU_OP_INVALID);
  TPU_EXPECT_EQ(tpu_op_find(""), TPU_OP_INVALID);
  TPU_EXPECT_EQ(tpu_op_find("ad"), TPU_OP_INVALID);
  TPU_EXPECT_EQ(tpu_op_find("ADD"), TPU_OP_INVALID);
}

// One ATen overload belongs to one row, or the shim registers it twice.
TPU_TEST(ops_overloads_belong_to_one_row) {
  for (tpu_op_t op = 1; op < TPU_OP_COUNT; ++op) {
    const char* word = tpu_op_info(op)->aten;
    while (*word != '\0') {
      size_t size = strcspn(word, " ");
      for (tpu_op_t other = 1; other < op && size > 0; ++other) {
        for (const char* rest = tpu_op_info(other)->aten; *rest != '\0';) {
          size_t rest_size = strcspn(rest, " ");
          if (rest_size == size && memcmp(rest, word, size) == 0) {
            tpu_test_fail(__FILE__, __LINE__, "%.*s stands in rows %s and %s", (int)size, word,
                          tpu_op_info(other)->name, tpu_op_info(op)->name);
          }
          rest += rest_size + (rest[rest_size] == ' ');
        }
      }
      word += size + (word[size] == ' ');
    }
  }
}

TPU_TEST(ops_internal_rows_have_no_aten_name) {
  for (tpu_op_t op = 1; op < TPU_OP_COUNT; ++op) {
    const tpu_op_info_t* info = tpu_op_info(op);
    bool internal = (info->flags & TPU_OP_INTERNAL) != 0;
    if (internal != (info->aten[0] == '\0')) {
      tpu_test_fail(__FILE__, __LINE__, "row %s: INTERNAL and an ATen name exclude each other",
                    info->name);
    }
  }
}
