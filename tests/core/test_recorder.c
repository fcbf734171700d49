/* The recorder: numbering, views, abandoned records, moving arrays, prediction. */
#include <string.h>

#include "base/alloc.h"
#include "ops/op_ids.h"
#include "test.h"
#include "trace/print.h"
#include "trace/recorder.h"

typedef struct fixture_t {
  tpu_value_pool_t pool;
  tpu_recorder_t r;
  tpu_meta_id_t f8, f24, i8;
} fixture_t;

static tpu_meta_id_t dense(tpu_dtype_t dtype, int rank, const int64_t* sizes) {
  tpu_meta_id_t meta = 0;
  TPU_EXPECT_OK(tpu_meta_intern_contiguous(dtype, rank, sizes, &meta));
  return meta;
}

static void open_fixture(fixture_t* f) {
  memset(f, 0, sizeof(*f));
  tpu_recorder_init(&f->r, &f->pool);
  f->f8 = dense(TPU_F32, 1, (const int64_t[]){8});
  f->f24 = dense(TPU_F32, 2, (const int64_t[]){2, 4});
  f->i8 = dense(TPU_I64, 1, (const int64_t[]){8});
}

static void close_fixture(fixture_t* f) {
  tpu_recorder_free(&f->r);
  tpu_value_pool_free(&f->pool);
}

static tpu_value_t* external(fixture_t* f, tpu_meta_id_t meta) {
  tpu_value_t* value = NULL;
  TPU_EXPECT_OK(tpu_value_create(&f->pool, meta, &value));
  tpu_value_fulfil(&f->pool, value, NULL);
  return value;
}

static void drop(fixture_t* f, tpu_value_t* value) { tpu_value_release(&f->pool, value); }

static void begin(fixture_t* f, int operands, int results) {
  TPU_EXPECT_OK(tpu_recorder_begin(&f->r, operands, results));
}

static void whole(fixture_t* f, tpu_value_t* value) {
  tpu_recorder_tensor(&f->r, value, value->meta, 0);
}

static tpu_value_t* commit(fixture_t* f, tpu_op_t op, int operands, tpu_meta_id_t meta) {
  tpu_value_t* value = NULL;
  TPU_EXPECT_OK(tpu_recorder_commit(&f->r, op, operands, 1, 0, 0, TPU_F32, &meta, &value));
  return value;
}

static tpu_value_t* binary(fixture_t* f, tpu_op_t op, tpu_value_t* x, tpu_value_t* y) {
  begin(f, 2, 1);
  whole(f, x);
  whole(f, y);
  return commit(f, op, 2, x->meta);
}

static void decode(const fixture_t* f, uint32_t index, tpu_record_t* out_record) {
  tpu_window_t window;
  tpu_recorder_window(&f->r, &window);
  tpu_window_record(&window, index, out_record);
}

TPU_TEST(recorder_numbers_externals_by_first_use) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t *a = external(&f, f.f8), *b = external(&f, f.f8), *c = external(&f, f.f8);
  tpu_value_t* x = binary(&f, TPU_OP_ADD, b, a);
  tpu_value_t* y = binary(&f, TPU_OP_MUL, x, b);
  tpu_value_t* z = binary(&f, TPU_OP_SUB, c, a);
  static const uint32_t expected[3][2] = {
      {TPU_REF_EXTERNAL << TPU_REF_KIND_SHIFT | 0, TPU_REF_EXTERNAL << TPU_REF_KIND_SHIFT | 1},
      {0, TPU_REF_EXTERNAL << TPU_REF_KIND_SHIFT | 0},
      {TPU_REF_EXTERNAL << TPU_REF_KIND_SHIFT | 2, TPU_REF_EXTERNAL << TPU_REF_KIND_SHIFT | 1}};
  for (uint32_t i = 0; i < 3; ++i) {
    tpu_record_t r;
    decode(&f, i, &r);
    TPU_EXPECT_EQ(r.first_value, i);
    TPU_EXPECT_EQ(r.first_slot, 0u);
    TPU_EXPECT_EQ(r.compute_dtype, TPU_F32);
    TPU_EXPECT_EQ(r.results[0], f.f8);
    for (int k = 0; k < 2; ++k) {
      TPU_EXPECT_EQ(tpu_record_ref(&r, k), expected[i][k]);
      TPU_EXPECT_EQ(tpu_record_view(&r, k), f.f8);
    }
  }
  TPU_EXPECT_EQ(f.r.external_count, 3u);
  TPU_EXPECT(f.r.externals[0] == b && f.r.externals[1] == a && f.r.externals[2] == c);
  TPU_EXPECT_EQ(a->refs, 2);  // the window holds one, however often it reads it
  drop(&f, x), drop(&f, y), drop(&f, z);
  tpu_recorder_reset(&f.r, NULL);
  TPU_EXPECT_EQ(a->refs, 1);
  // The numbers of the last window mean nothing in the next.
  drop(&f, binary(&f, TPU_OP_ADD, c, c));
  TPU_EXPECT(f.r.external_count == 1 && f.r.externals[0] == c);
  drop(&f, a), drop(&f, b), drop(&f, c);
  close_fixture(&f);
}

TPU_TEST(recorder_views_and_slots) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t* a = external(&f, f.f8);
  tpu_slot_t two = {.as_double = 2.5};
  begin(&f, 5, 1);
  tpu_recorder_tensor(&f.r, a, f.f24, 0);  // another shape
  tpu_recorder_scalar(&f.r, TPU_F64, true, 0, two);
  tpu_recorder_tensor(&f.r, a, f.f8, 0);  // as it is: no slot
  tpu_recorder_none(&f.r);
  tpu_recorder_tensor(&f.r, a, f.f8, 3);  // only an offset
  tpu_value_t* x = commit(&f, TPU_OP_ADDCMUL, 5, f.f24);
  begin(&f, 1, 1);
  tpu_recorder_tensor(&f.r, x, f.f8, 0);
  tpu_value_t* y = commit(&f, TPU_OP_NEG, 1, f.f8);
  tpu_record_t r;
  decode(&f, 0, &r);
  static const bool has_slot[5] = {true, true, false, false, true};
  for (int k = 0; k < 5; ++k) TPU_EXPECT_EQ(tpu_ref_has_slot(tpu_record_ref(&r, k)), has_slot[k]);
  TPU_EXPECT_EQ(tpu_ref_kind(tpu_record_ref(&r, 3)), TPU_REF_NONE);
  TPU_EXPECT_EQ(tpu_record_view(&r, 0), f.f24);
  TPU_EXPECT_EQ(f.r.slot_count, 4u);
  TPU_EXPECT_EQ(f.r.slots[0].as_int, 0);
  TPU_EXPECT(f.r.slots[1].as_double == 2.5);
  TPU_EXPECT_EQ(f.r.slots[2].as_int, 3);
  int walked = 0;
  for (tpu_slot_walk_t at = tpu_record_slots(&r); tpu_record_next_slot(&r, &at); ++walked) {
    TPU_EXPECT_EQ(at.operand, walked == 2 ? 4 : walked);
    TPU_EXPECT_EQ(at.slot, (uint32_t)walked);
    TPU_EXPECT_EQ(tpu_record_slot(&r, at.operand), at.slot);
  }
  TPU_EXPECT_EQ(walked, 3);
  decode(&f, 1, &r);
  TPU_EXPECT_EQ(r.first_slot, 3u);
  TPU_EXPECT_EQ(r.first_value, 1u);
  TPU_EXPECT((tpu_record_ref(&r, 0) & TPU_REF_VIEW_BIT) != 0);
  TPU_EXPECT_EQ(tpu_ref_index(tpu_record_ref(&r, 0)), 0u);
  drop(&f, x), drop(&f, y), drop(&f, a);
  close_fixture(&f);
}

TPU_TEST(recorder_abandon_leaves_no_trace) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t *a = external(&f, f.f8), *b = external(&f, f.f8);
  tpu_value_t* x = binary(&f, TPU_OP_ADD, a, a);
  size_t words = f.r.word_count;
  begin(&f, 3, 1);
  whole(&f, a);
  whole(&f, b);
  tpu_recorder_tensor(&f.r, x, f.f24, 0);
  tpu_recorder_abandon(&f.r);
  TPU_EXPECT_EQ(b->refs, 1);
  TPU_EXPECT_EQ(a->refs, 2);
  TPU_EXPECT_EQ(f.r.external_count, 1u);
  TPU_EXPECT_EQ(f.r.word_count, words);
  TPU_EXPECT_EQ(f.r.slot_count, 0u);
  // The abandoned external gets its number when it is really used.
  tpu_value_t* c = external(&f, f.f8);
  tpu_value_t* y = binary(&f, TPU_OP_ADD, c, b);
  TPU_EXPECT(f.r.externals[1] == c && f.r.externals[2] == b);
  drop(&f, x), drop(&f, y), drop(&f, a), drop(&f, b), drop(&f, c);
  close_fixture(&f);
}

/* Values point at their entry in an array that moves while it grows. */
TPU_TEST(recorder_growth_keeps_live_values) {
  fixture_t f;
  open_fixture(&f);
  enum { COUNT = 5000 };
  static tpu_value_t* values[COUNT];
  tpu_value_t* a = external(&f, f.f8);
  for (int i = 0; i < COUNT; ++i) {
    values[i] = binary(&f, TPU_OP_ADD, i == 0 ? a : values[i - 1], a);
    if (i >= 2 && i % 3 != 0) drop(&f, values[i - 2]), values[i - 2] = NULL;
  }
  for (int i = 0; i < COUNT; ++i) {
    TPU_EXPECT(f.r.values[i] == values[i]);
    if (values[i] != NULL) TPU_EXPECT(values[i]->pending.slot == &f.r.values[i]);
  }
  for (int i = 0; i < COUNT; ++i) drop(&f, values[i]);
  for (int i = 0; i < COUNT; ++i) TPU_EXPECT(f.r.values[i] == NULL);
  drop(&f, a);
  close_fixture(&f);
}

static void record_three(fixture_t* f, tpu_value_t* a, tpu_op_t last) {
  tpu_value_t* x = binary(f, TPU_OP_ADD, a, a);
  tpu_value_t* y = binary(f, TPU_OP_MUL, x, a);
  drop(f, binary(f, last, y, x));
  drop(f, x);
  drop(f, y);
}

/* Every field at its largest beside neighbours at their smallest, and the other way round. */
TPU_TEST(record_words_round_trip) {
  for (int big = 0; big < 7; ++big) {
    bool all = big == 6;
    tpu_op_t op = big == 0 || all ? TPU_OP_COUNT - 1 : TPU_OP_INVALID;
    int operands = big == 1 || all ? TPU_RECORD_MAX_COUNT : 0;
    int results = big == 2 || all ? TPU_RECORD_MAX_COUNT : 0;
    uint8_t variant = big == 3 || all ? 255 : 0;
    tpu_attrs_id_t attrs = big == 4 || all ? UINT32_MAX : 0;
    tpu_dtype_t dtype = big == 5 || all ? (tpu_dtype_t)(TPU_DTYPE_COUNT - 1) : TPU_DTYPE_INVALID;
    static uint32_t words[TPU_RECORD_HEADER_WORDS + 3 * TPU_RECORD_MAX_COUNT];
    tpu_record_encode(words, op, operands, results, variant, attrs, dtype);
    tpu_record_t r = tpu_record_decode(words);
    TPU_EXPECT_EQ(r.op, op);
    TPU_EXPECT_EQ(r.operand_count, operands);
    TPU_EXPECT_EQ(r.result_count, results);
    TPU_EXPECT_EQ(r.variant, variant);
    TPU_EXPECT_EQ(r.attrs, attrs);
    TPU_EXPECT_EQ(r.compute_dtype, dtype);
    TPU_EXPECT(r.operands == words + TPU_RECORD_HEADER_WORDS);
    TPU_EXPECT_EQ(r.results - words + results, tpu_record_size(operands, results));
  }
}

TPU_TEST(record_numbers_as_references) {
  for (int dtype = 0; dtype < TPU_DTYPE_COUNT; ++dtype) {
    for (int weak = 0; weak < 2; ++weak) {
      uint32_t ref = tpu_ref_scalar((tpu_dtype_t)dtype, weak != 0);
      TPU_EXPECT_EQ(tpu_ref_kind(ref), TPU_REF_SCALAR);
      TPU_EXPECT_EQ(tpu_ref_scalar_dtype(ref), dtype);
      TPU_EXPECT_EQ(tpu_ref_scalar_is_weak(ref), weak);
      TPU_EXPECT(tpu_ref_has_slot(ref));
    }
  }
}

/* The words of a window, kept by hand as a plan would. */
static void keep_window(const fixture_t* f, uint32_t* words, tpu_window_t* out_window) {
  tpu_recorder_window(&f->r, out_window);
  memcpy(words, out_window->words, out_window->word_count * sizeof(uint32_t));
  out_window->words = words;
}

TPU_TEST(recorder_prediction) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t* a = external(&f, f.f8);
  record_three(&f, a, TPU_OP_SUB);
  uint32_t words[64];
  tpu_window_t window;
  keep_window(&f, words, &window);
  tpu_recorder_reset(&f.r, &window);
  begin(&f, 2, 1);
  whole(&f, a);
  whole(&f, a);
  const uint32_t* known = tpu_recorder_match(&f.r, TPU_OP_ADD, 2, 1, 0, 0);
  TPU_REQUIRE(known == words);
  TPU_EXPECT_EQ(tpu_record_decode(known).compute_dtype, TPU_F32);
  TPU_EXPECT_EQ(tpu_record_decode(known).results[0], f.f8);
  tpu_value_t* x = commit(&f, TPU_OP_ADD, 2, f.f8);
  TPU_EXPECT(f.r.predicted == &window);
  // Another op than expected: the prediction is off for the rest of the window.
  begin(&f, 2, 1);
  whole(&f, x);
  whole(&f, a);
  TPU_EXPECT(tpu_recorder_match(&f.r, TPU_OP_DIV, 2, 1, 0, 0) == NULL);
  TPU_EXPECT(f.r.predicted == NULL);
  drop(&f, commit(&f, TPU_OP_DIV, 2, f.f8));
  drop(&f, x);
  // All of it, without asking: a record that equals the expected one keeps the prediction.
  tpu_recorder_reset(&f.r, &window);
  record_three(&f, a, TPU_OP_SUB);
  TPU_EXPECT(f.r.predicted == &window);
  TPU_EXPECT_EQ(f.r.word_count, window.word_count);
  // One more than expected ends it.
  begin(&f, 1, 1);
  whole(&f, a);
  TPU_EXPECT(tpu_recorder_match(&f.r, TPU_OP_NEG, 1, 1, 0, 0) == NULL);
  drop(&f, commit(&f, TPU_OP_NEG, 1, f.f8));
  tpu_recorder_reset(&f.r, &window);
  record_three(&f, a, TPU_OP_DIV);
  TPU_EXPECT(f.r.predicted == NULL);
  drop(&f, a);
  close_fixture(&f);
}

/* What differs from the expected record, each alone. */
TPU_TEST(recorder_prediction_compares_everything) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t *a = external(&f, f.f8), *b = external(&f, f.f8), *other = external(&f, f.i8);
  begin(&f, 2, 1);
  whole(&f, a);
  tpu_recorder_tensor(&f.r, b, f.f24, 4);
  drop(&f, commit(&f, TPU_OP_ADD, 2, f.f24));
  uint32_t words[64];
  tpu_window_t window;
  keep_window(&f, words, &window);
  for (int change = 0; change < 8; ++change) {
    tpu_recorder_reset(&f.r, &window);
    begin(&f, 3, 2);
    whole(&f, change == 1 ? other : a);
    if (change == 2) {
      whole(&f, b);
    } else {
      tpu_recorder_tensor(&f.r, change == 3 ? a : b, f.f24, 9);  // the offset may differ
    }
    if (change == 4) tpu_recorder_none(&f.r);
    bool same = tpu_recorder_match(&f.r, change == 5 ? TPU_OP_SUB : TPU_OP_ADD, change == 4 ? 3 : 2,
                                   change == 6 ? 2 : 1, change == 7 ? 1 : 0, 0) != NULL;
    TPU_EXPECT_EQ(same, change == 0);
    tpu_recorder_abandon(&f.r);
  }
  drop(&f, a), drop(&f, b), drop(&f, other);
  close_fixture(&f);
}

/* A value dies with its last storage, or lives on as a buffer or an error. */
TPU_TEST(recorder_values_end) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t* a = external(&f, f.f8);
  tpu_value_t* x = binary(&f, TPU_OP_ADD, a, a);
  tpu_value_t* y = binary(&f, TPU_OP_ADD, a, a);
  tpu_value_retain(x);
  drop(&f, x);
  TPU_EXPECT(f.r.values[0] == x);
  drop(&f, x);
  TPU_EXPECT(f.r.values[0] == NULL);
  tpu_value_fail(y, tpu_status_make(TPU_INTERNAL, "gone"), 1);
  TPU_EXPECT_EQ(y->state, TPU_VALUE_FAILED);
  drop(&f, y);
  TPU_EXPECT(f.r.values[1] == y);  // handed over: its death is not the window's business
  drop(&f, a);
  tpu_value_release(&f.pool, NULL);
  close_fixture(&f);
}

static tpu_status_t record_some(void* arg) {
  (void)arg;
  tpu_value_pool_t pool = {0};
  tpu_recorder_t r;
  tpu_recorder_init(&r, &pool);
  tpu_value_t *a = NULL, *held[200] = {0};
  tpu_meta_id_t meta = 0;
  tpu_status_t status = tpu_meta_intern_contiguous(TPU_F32, 1, (const int64_t[]){8}, &meta);
  if (status == NULL) status = tpu_value_create(&pool, meta, &a);
  if (status == NULL) tpu_value_fulfil(&pool, a, NULL);
  for (int i = 0; i < 200 && status == NULL; ++i) {
    status = tpu_recorder_begin(&r, 2, 1);
    if (status != NULL) break;
    tpu_recorder_tensor(&r, a, meta, 0);
    tpu_recorder_tensor(&r, i > 0 ? held[i - 1] : a, meta, 1);
    status = tpu_recorder_commit(&r, TPU_OP_ADD, 2, 1, 0, 0, TPU_F32, &meta, &held[i]);
    for (int k = 0; k <= i && status == NULL; ++k) {
      if (held[k]->pending.slot != &r.values[k])
        status = tpu_status_make(TPU_INTERNAL, "value %d", k);
    }
  }
  for (int i = 0; i < 200; ++i) tpu_value_release(&pool, held[i]);
  tpu_value_release(&pool, a);
  tpu_recorder_free(&r);
  tpu_value_pool_free(&pool);
  return status;
}

TPU_TEST(recorder_out_of_memory) {
  TPU_REQUIRE_OK(record_some(NULL));
  TPU_EXPECT(TPU_OOM_SWEEP(record_some, NULL) > 12);
}

/* A failed growth must not make the next try write beyond an array. */
TPU_TEST(recorder_goes_on_after_a_failed_growth) {
  for (int n = 1; n < 12; ++n) {
    fixture_t f;
    open_fixture(&f);
    tpu_value_t* a = external(&f, f.f8);
    tpu_alloc_fail_at(n);
    int failures = 0;
    for (int i = 0; i < 300; ++i) {
      tpu_status_t status = tpu_recorder_begin(&f.r, 1, 2);
      if (status == NULL) {
        whole(&f, a);
        tpu_meta_id_t metas[2] = {f.f8, f.i8};
        tpu_value_t* values[2];
        status = tpu_recorder_commit(&f.r, TPU_OP_MAX, 1, 2, 0, 0, TPU_F32, metas, values);
        if (status == NULL) drop(&f, values[0]), drop(&f, values[1]);
      }
      failures += status != NULL;
      tpu_status_free(status);
    }
    tpu_alloc_fail_at(0);
    TPU_EXPECT_EQ(failures, 1);
    TPU_EXPECT_EQ(f.r.record_count, 299u);
    TPU_EXPECT_EQ(f.r.value_count, 598u);
    drop(&f, a);
    close_fixture(&f);
  }
}

/* --- printing --- */

static tpu_attrs_id_t some_attributes(void) {
  tpu_attrs_builder_t b;
  tpu_attrs_begin(&b);
  tpu_attrs_add_ints(&b, (const int64_t[]){0, -1}, 2);
  tpu_attrs_add_int(&b, 1);
  tpu_attrs_add_none(&b);
  tpu_attrs_add_dtype(&b, TPU_BF16);
  tpu_attrs_add_double(&b, 0.1);
  tpu_attrs_add_text(&b, "sum", 3);
  tpu_attrs_id_t id = 0;
  TPU_EXPECT_OK(tpu_attrs_intern(&b, &id));
  return id;
}

static void record_golden(fixture_t* f) {
  tpu_value_t *a = external(f, f->f8), *b = external(f, f->i8);
  tpu_meta_id_t turned = 0, scalar = dense(TPU_F32, 0, NULL), metas[2] = {f->f24, f->i8};
  TPU_EXPECT_OK(
      tpu_meta_intern(TPU_F32, 2, (const int64_t[]){4, 2}, (const int64_t[]){1, 4}, &turned));
  begin(f, 3, 1);
  whole(f, a);
  tpu_recorder_tensor(&f->r, b, f->i8, 2);
  tpu_recorder_scalar(&f->r, TPU_F64, true, 0, (tpu_slot_t){.as_double = 2});
  tpu_value_t* x = commit(f, TPU_OP_ADD, 3, f->f8);
  begin(f, 5, 1);
  tpu_recorder_tensor(&f->r, x, turned, 0);
  tpu_recorder_none(&f->r);
  tpu_recorder_scalar(&f->r, TPU_F32, false, 0, (tpu_slot_t){.as_double = 0.1});
  tpu_recorder_scalar(&f->r, TPU_I64, true, 0, (tpu_slot_t){.as_int = -7});
  tpu_recorder_scalar(&f->r, TPU_BOOL, true, 0, (tpu_slot_t){.as_int = 1});
  tpu_value_t* y = NULL;
  TPU_EXPECT_OK(
      tpu_recorder_commit(&f->r, TPU_OP_MUL, 5, 1, 1 /* in place */, 0, TPU_F64, &turned, &y));
  begin(f, 1, 2);
  whole(f, y);
  tpu_value_t* z[2];
  TPU_EXPECT_OK(tpu_recorder_commit(&f->r, TPU_OP_MAX, 1, 2, 2 /* out= */, some_attributes(),
                                    TPU_DTYPE_INVALID, metas, z));
  begin(f, 3, 1);
  whole(f, x);
  whole(f, z[0]);
  tpu_recorder_scalar(&f->r, TPU_I64, false, scalar, (tpu_slot_t){.as_int = 5});
  drop(f, commit(f, TPU_OP_VIEW_WRITE, 3, f->f8));
  drop(f, a), drop(f, b), drop(f, x), drop(f, y), drop(f, z[0]), drop(f, z[1]);
}

TPU_TEST(print_window_golden) {
  fixture_t f;
  open_fixture(&f);
  record_golden(&f);
  tpu_window_t window;
  tpu_recorder_window(&f.r, &window);
  tpu_strbuf_t text = {0};
  tpu_window_print(&window, &text);
  TPU_EXPECT_TEXT(
      tpu_strbuf_text(&text),
      "%0 = add(ext0, ext1[view i64[8]s(1)+2], 2.0) -> f32[8]\n"
      "%1 = mul_(%0[view f32[4,2]s(1,4)+0], none, 0.1:f32, -7, true) -> f32[4,2]s(1,4) via f64\n"
      "%2, %3 = max.out(%1){[0,-1], 1, none, bf16, 0.1, \"sum\"} -> f32[2,4], i64[8]\n"
      "%4 = view_write(%0, %2, [view f32[]s()+5]) -> f32[8] via f32\n");
  tpu_strbuf_clear(&text);
  window.slots = NULL;  // a plan's window
  tpu_record_print(&window, 0, &text);
  TPU_EXPECT_TEXT(tpu_strbuf_text(&text), "%0 = add(ext0, ext1[view i64[8]s(1)+?], ?) -> f32[8]");
  tpu_strbuf_free(&text);
  close_fixture(&f);
}

TPU_TEST(print_numbers) {
  static const struct {
    double value;
    const char* text;
  } cases[] = {{0, "0.0"},
               {-0.0, "-0.0"},
               {1.5, "1.5"},
               {-12345678, "-12345678.0"},
               {0.30000000000000004, "0.30000000000000004"},
               {1e30, "1e+30"},
               {5e-324, "5e-324"},
               {1.0 / 0.0, "inf"}};
  fixture_t f;
  open_fixture(&f);
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    begin(&f, 1, 1);
    tpu_recorder_scalar(&f.r, TPU_F64, true, 0, (tpu_slot_t){.as_double = cases[i].value});
    drop(&f, commit(&f, TPU_OP_NEG, 1, f.f8));
    tpu_window_t window;
    tpu_recorder_window(&f.r, &window);
    tpu_strbuf_t text = {0};
    tpu_strbuf_t expected = {0};
    tpu_record_print(&window, (uint32_t)i, &text);
    tpu_strbuf_printf(&expected, "%%%zu = neg(%s) -> f32[8]", i, cases[i].text);
    TPU_EXPECT_TEXT(tpu_strbuf_text(&text), tpu_strbuf_text(&expected));
    tpu_strbuf_free(&text);
    tpu_strbuf_free(&expected);
  }
  close_fixture(&f);
}
