/* Golden files: the programs that the lowering writes, for windows that PyTorch has recorded. */
#include <stdio.h>
#include <string.h>

#include "golden_file.h"
#include "ops/op_ids.h"
#include "test.h"

/* --- the files --- */

static void check_case(const golden_file_t* file, const golden_case_t* one) {
  tpu_strbuf_t made = {0}, diff = {0};
  tpu_status_t status = golden_case_lower(file, one, GOLDEN_SHORT, &made);
  if (status != NULL) {
    tpu_test_fail(file->path, one->line, "%s", tpu_status_message(status));
    tpu_status_free(status);
  } else {
    golden_diff(one->programs, tpu_strbuf_text(&made), one->line, &diff);
    if (diff.size > 0) {
      tpu_test_fail(file->path, one->line,
                    "case \"%s\" lowers to other programs; `make golden` rewrites the file\n%s",
                    one->name, tpu_strbuf_text(&diff));
    }
  }
  tpu_strbuf_free(&made);
  tpu_strbuf_free(&diff);
}

TPU_TEST(golden_programs) {
  char** paths = NULL;
  size_t count = 0;
  TPU_REQUIRE_OK(golden_list(TPU_GOLDEN_FOLDER, &paths, &count));
  TPU_EXPECT(count > 0);
  for (size_t i = 0; i < count; ++i) {
    golden_file_t file;
    TPU_EXPECT_OK(golden_file_read(paths[i], &file));
    for (size_t k = 0; k < file.count; ++k) check_case(&file, &file.cases[k]);
    golden_file_free(&file);
  }
  golden_list_free(paths, count);
}

static void note_operations(const char* window, uint8_t* seen) {
  golden_window_t read;
  TPU_EXPECT_OK(golden_window_read(window, &read));
  for (uint32_t i = 0; i < read.window.record_count; ++i) {
    tpu_record_t record;
    tpu_window_record(&read.window, i, &record);
    seen[record.op] = 1;
  }
  golden_window_free(&read);
}

/* Operations of a lowering function have cases in its own file. */
TPU_TEST(golden_every_operation_has_a_case) {
  for (tpu_op_t op = 1; op < TPU_OP_COUNT; ++op) {
    if ((tpu_op_info(op)->flags & TPU_OP_HOST) != 0) {  // never a part of a program
      TPU_EXPECT_TEXT(golden_lowering_name(op), "nowhere");
      continue;
    }
    uint8_t seen[TPU_OP_COUNT] = {0};
    tpu_strbuf_t path = {0};
    golden_file_t file;
    tpu_strbuf_printf(&path, "%s/%s.golden", TPU_GOLDEN_FOLDER, golden_lowering_name(op));
    TPU_EXPECT_OK(golden_file_read(tpu_strbuf_text(&path), &file));
    for (size_t k = 0; k < file.count && !seen[op]; ++k) {
      note_operations(file.cases[k].window, seen);
    }
    if (!seen[op]) {
      tpu_test_fail(tpu_strbuf_text(&path), 1,
                    "no case of operation %s: tests/golden/capture.py adds those that are missing",
                    tpu_op_info(op)->name);
    }
    golden_file_free(&file);
    tpu_strbuf_free(&path);
  }
}

/* --- reading windows --- */

static void expect_round_trip(const char* text) {
  golden_window_t window;
  tpu_strbuf_t printed = {0};
  TPU_EXPECT_OK(golden_window_read(text, &window));
  golden_window_print(&window, &printed);
  TPU_EXPECT_TEXT(tpu_strbuf_text(&printed), text);
  golden_window_free(&window);
  tpu_strbuf_free(&printed);
}

/* All that can be printed; what op_db's windows hold is checked with each golden case. */
TPU_TEST(golden_window_round_trip) {
  expect_round_trip("");
  expect_round_trip(
      "ext0 = f32[4,8]\n"
      "ext1 = i64[8]s(3) dead\n"
      "ext2 = complex<f32>[1,0]s(7,2)\n"
      "%0 = add(ext0, ext1[view i64[8]s(1)+2], $2.0) -> f32[4,8]\n"
      "%1 = mul_(%0[view f32[4,2]s(1,4)+$3], none, 0.1:f32, -7, true) -> f32[4,2]s(1,4) via f64\n"
      "%2, %3 = max.out(%1){[0,-1], 1, none, bf16, 0.1, \"a \\\"b\\\\\"} -> f32[2,4], i64[8]\n"
      "%4 = view_write(%0, %2, [view f32[]s()+5]) -> f32[8] via f32\n"
      "%5 = neg(ext2, inf, -nan, 1e-300, 3:i32, 2:ui8 weak, $1.5:bf16 weak, -0.0:complex<f32>)"
      " -> f32[] via none\n"
      "%6 = eye(){5, []} -> f8E4M3FN[5,5]\n"
      "live %0, %5\n");
}

TPU_TEST(golden_window_marks) {
  golden_window_t w;
  TPU_REQUIRE_OK(
      golden_window_read("ext0 = f32[4]\next1 = f32[8] dead\n"
                         "%0 = add(ext0, 1, $2.0) -> f32[4]\n"
                         "%1 = add(ext1[view f32[4]s(1)+$2], %0, 0.5) -> f32[4]\nlive %1\n",
                         &w));
  TPU_EXPECT(w.window.record_count == 2 && w.window.value_count == 2);
  TPU_EXPECT(w.window.external_count == 2 && w.window.slot_count == 4);
  TPU_EXPECT(!w.dead[0] && w.dead[1] && !w.live[0] && w.live[1]);
  TPU_EXPECT(!w.slot_dynamic[0] && w.slot_dynamic[1] && w.slot_dynamic[2] && !w.slot_dynamic[3]);
  tpu_record_t record;
  tpu_window_record(&w.window, 1, &record);
  TPU_EXPECT_EQ(record.op, TPU_OP_ADD);
  TPU_EXPECT_EQ(record.compute_dtype, TPU_F32);
  TPU_EXPECT_EQ(w.window.slots[record.first_slot].as_int, 2);
  golden_window_free(&w);
}

/* What is not a window says where; nothing leaks. */
TPU_TEST(golden_window_refusals) {
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"ext1 = f32[4]\n", "line 1: expected the next external's number"},
      {"ext0 = f33[4]\n", "line 1: expected a dtype"},
      {"ext0 = f32[4]s(1,2)\n", "line 1: expected a stride per size"},
      {"ext0 = f32[-4]\n", "line 1"},
      {"ext0 = f32[4]\n", "expected a use of each external"},
      {"%1 = eye(){} -> f32[4]\n", "line 1: expected the next value's number"},
      {"%0 = nonsense() -> f32[4]\n", "line 1: expected an operation of the op table"},
      {"%0 = neg(ext0) -> f32[4]\n", "line 1: expected a value that exists"},
      {"%0 = neg(%0) -> f32[4]\n", "line 1: expected a value that exists"},
      {"ext0 = f32[4]\n%0 = neg(ext0[view f32[4]s(1)+0]) -> f32[4]\n",
       "line 2: expected a view that is not the value"},
      {"ext0 = f32[4]\next1 = f32[4]\n%0 = add(ext1, ext0, 1) -> f32[4]\n",
       "line 3: expected externals numbered by their first use"},
      {"%0 = neg(1.5:i64) -> f32[4]\n", "line 1: expected a dtype of the number"},
      {"%0 = eye() -> f32[4] via\n", "line 1: expected the end of the line"},
      {"%0 = eye() -> f32[4]\n\n", "line 2: expected a record or the end"},
      {"%0 = eye() -> f32[4]\nlive %1\n", "line 2: expected a value that exists"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    golden_window_t window;
    int64_t live = tpu_alloc_live_count();
    tpu_status_t status = golden_window_read(cases[i].text, &window);
    TPU_EXPECT_EQ(tpu_status_code(status), TPU_INVALID_ARGUMENT);
    if (strstr(tpu_status_message(status), cases[i].message) == NULL) {
      tpu_test_fail(__FILE__, __LINE__, "case %zu: \"%s\" is not in \"%s\"", i, cases[i].message,
                    tpu_status_message(status));
    }
    tpu_status_free(status);
    golden_window_free(&window);
    TPU_EXPECT_EQ(tpu_alloc_live_count(), live);
  }
}

static tpu_status_t read_some(void* argument) {
  (void)argument;
  golden_window_t window;
  tpu_status_t status = golden_window_read(
      "ext0 = f32[4] dead\n%0 = add(ext0, 1, $2.0) -> f32[4]\nlive %0\n", &window);
  golden_window_free(&window);
  return status;
}

TPU_TEST(golden_window_out_of_memory) {
  TPU_REQUIRE_OK(read_some(NULL));
  TPU_EXPECT(TPU_OOM_SWEEP(read_some, NULL) > 10);
}

/* --- the comparison itself --- */

TPU_TEST(golden_diff_shows_what_differs) {
  static const struct {
    const char *expected, *made, *diff;
  } cases[] = {
      {"a\nb\n", "a\nb\n", ""},
      {"a\nb\nc\n", "a\nx\nc\n", "@@ line 8 @@\n a\n-b\n+x\n"},
      {"a\n", "a\nb\n", "@@ line 8 @@\n a\n+b\n"},
      {"a\nb\n", "b\n", "@@ line 7 @@\n-a\n"},
      {"", "a\n", "@@ line 7 @@\n+a\n"},
      {"1\n2\n3\n4\n5\n6\n", "1\n2\n3\n4\n5\n7\n", "@@ line 12 @@\n 3\n 4\n 5\n-6\n+7\n"},
      {"a\na\n", "a\na\na\n", "@@ line 9 @@\n a\n a\n+a\n"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    tpu_strbuf_t diff = {0};
    golden_diff(cases[i].expected, cases[i].made, 7, &diff);
    TPU_EXPECT_TEXT(tpu_strbuf_text(&diff), cases[i].diff);
    tpu_strbuf_free(&diff);
  }
}

/* Host kernels are the CPU's alone; what it is slow at is written in another way for it. */
TPU_TEST(golden_platforms_differ) {
  static const struct {
    const char *window, *cpu, *others;
  } cases[] = {
      {"ext0 = f32[9]\n%0, %1 = sort(ext0){none, 0, 0} -> f32[9], i64[9]\nlive %0, %1\n",
       "tpu_host_sort", "stablehlo.sort"},
      {"ext0 = f32[2,8,6,6]\next1 = f32[8,1,3,3]\n"
       "%0 = convolution(ext0, ext1, none){[1,1], [0,0], [1,1], 0, [0,0], 8} -> f32[2,8,4,4]\n"
       "live %0\n",
       "stablehlo.multiply", "stablehlo.convolution"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    golden_window_t window;
    tpu_strbuf_t text = {0};
    TPU_REQUIRE_OK(golden_window_read(cases[i].window, &window));
    TPU_EXPECT_OK(golden_lower_all(&window, GOLDEN_FULL, &text));
    const char* begin = tpu_strbuf_text(&text);
    const char *tpu = strstr(begin, "tpu, cuda\n"), *cpu = strstr(begin, cases[i].cpu);
    const char* others = strstr(begin, cases[i].others);
    TPU_REQUIRE(tpu != NULL && cpu != NULL && others != NULL);
    TPU_EXPECT(cpu < tpu && others > cpu && strstr(tpu, cases[i].cpu) == NULL);
    golden_window_free(&window);
    tpu_strbuf_free(&text);
  }
}
