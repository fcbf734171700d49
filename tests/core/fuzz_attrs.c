/* Random attribute sets against a plain copy of what was put in. */
#include <string.h>

#include "ops/attrs.h"
#include "test.h"

enum { SETS = 3000, MAX_VALUES = 12, MAX_INTS = 40, MAX_TEXT = 40 };

typedef struct value_t {
  tpu_attr_kind_t kind;
  int64_t number;  // INT, DTYPE
  double real;     // DOUBLE
  int count;       // INTS
  int64_t numbers[MAX_INTS];
  char text[MAX_TEXT + 1];
} value_t;

typedef struct set_t {
  int count;
  value_t values[MAX_VALUES];
} set_t;

static uint64_t state;

static int64_t pick(int64_t low, int64_t high) { return tpu_test_random_range(&state, low, high); }

/* Small numbers, so that equal sets occur, and now and then the ends of the range. */
static int64_t random_number(void) {
  switch (pick(0, 15)) {
    case 0: return INT64_MIN;
    case 1: return INT64_MAX;
    case 2: return (int64_t)tpu_test_random(&state);
    default: return pick(-2, 2);
  }
}

static double random_real(void) {
  static const double numbers[] = {0.0, -0.0, 1.0, 0.5, 1.0 / 0.0, -1.0 / 0.0, 5e-324};
  if (pick(0, 7) == 0) {  // any bits but a NaN's, which would not equal itself
    uint64_t bits = tpu_test_random(&state) & ~((uint64_t)1 << 62);
    double number;
    memcpy(&number, &bits, sizeof number);
    return number;
  }
  return numbers[pick(0, 6)];
}

static value_t random_value(void) {
  value_t v = {.kind = (tpu_attr_kind_t)pick(TPU_ATTR_NONE, TPU_ATTR_DEFAULT_DTYPE)};
  switch (v.kind) {
    case TPU_ATTR_INT:
    case TPU_ATTR_COMPLEX: v.number = random_number(); break;
    case TPU_ATTR_DTYPE:
    case TPU_ATTR_DEFAULT_DTYPE: v.number = pick(1, TPU_DTYPE_COUNT - 1); break;
    case TPU_ATTR_DOUBLE: v.real = random_real(); break;
    case TPU_ATTR_INTS:
      v.count = (int)pick(0, pick(0, 9) == 0 ? MAX_INTS : 3);
      for (int i = 0; i < v.count; ++i) v.numbers[i] = random_number();
      break;
    case TPU_ATTR_TEXT:
      v.count = (int)pick(0, pick(0, 9) == 0 ? MAX_TEXT : 9);
      for (int i = 0; i < v.count; ++i) v.text[i] = (char)pick('a', 'b');
      break;
    default: break;
  }
  return v;
}

static set_t random_set(void) {
  set_t set = {.count = (int)pick(0, pick(0, 3) == 0 ? MAX_VALUES : 3)};
  for (int i = 0; i < set.count; ++i) set.values[i] = random_value();
  return set;
}

static void add_value(tpu_attrs_builder_t* b, const value_t* v) {
  switch (v->kind) {
    case TPU_ATTR_INT: tpu_attrs_add_int(b, v->number); break;
    case TPU_ATTR_DTYPE: tpu_attrs_add_dtype(b, (tpu_dtype_t)v->number); break;
    case TPU_ATTR_INTS: tpu_attrs_add_ints(b, v->numbers, (size_t)v->count); break;
    case TPU_ATTR_DOUBLE: tpu_attrs_add_double(b, v->real); break;
    case TPU_ATTR_TEXT: tpu_attrs_add_text(b, v->text, (size_t)v->count); break;
    case TPU_ATTR_COMPLEX: tpu_attrs_add_complex(b, v->number); break;
    case TPU_ATTR_DEFAULT_DTYPE: tpu_attrs_add_default_dtype(b, (tpu_dtype_t)v->number); break;
    case TPU_ATTR_PRECISION: tpu_attrs_add_precision(b, (tpu_precision_t)v->number); break;
    default: tpu_attrs_add_none(b); break;
  }
}

static bool same_value(const value_t* a, const value_t* b) {
  return a->kind == b->kind && a->number == b->number && a->count == b->count &&
         memcmp(&a->real, &b->real, sizeof a->real) == 0 &&
         memcmp(a->numbers, b->numbers, sizeof a->numbers) == 0 && strcmp(a->text, b->text) == 0;
}

static bool same_set(const set_t* a, const set_t* b) {
  bool same = a->count == b->count;
  for (int i = 0; i < a->count && same; ++i) same = same_value(&a->values[i], &b->values[i]);
  return same;
}

/* Every reader at every position, inside and outside: only its own kind gives the value. */
static bool reads_back(tpu_attrs_id_t id, int position, const value_t* v) {
  const int64_t* numbers;
  int count = tpu_attr_ints(id, position, &numbers);
  bool ints = v->kind == TPU_ATTR_INTS && count == v->count &&
              (count == 0 || memcmp(numbers, v->numbers, (size_t)count * sizeof(int64_t)) == 0);
  double real = tpu_attr_double(id, position, 7.5);
  double real_wanted = v->kind == TPU_ATTR_DOUBLE ? v->real : 7.5;
  const char* text_wanted = v->kind == TPU_ATTR_TEXT ? v->text : "";
  return tpu_attr_kind(id, position) == v->kind &&
         tpu_attr_int(id, position, 77) == (v->kind == TPU_ATTR_INT ? v->number : 77) &&
         (int64_t)tpu_attr_dtype(id, position, TPU_F16) ==
             (v->kind == TPU_ATTR_DTYPE ? v->number : TPU_F16) &&
         memcmp(&real, &real_wanted, sizeof real) == 0 &&
         (v->kind == TPU_ATTR_INTS ? ints : count == 0) &&
         strcmp(tpu_attr_text(id, position), text_wanted) == 0;
}

TPU_TEST(fuzz_attrs) {
  static set_t sets[SETS];
  static tpu_attrs_id_t ids[SETS];
  static const value_t nothing = {.kind = TPU_ATTR_NONE};
  state = tpu_test_seed();
  for (int n = 0; n < SETS && !tpu_test_failed(); ++n) {
    tpu_attrs_builder_t builder;
    tpu_attrs_begin(&builder);
    sets[n] = random_set();
    for (int i = 0; i < sets[n].count; ++i) add_value(&builder, &sets[n].values[i]);
    TPU_EXPECT_OK(tpu_attrs_intern(&builder, &ids[n]));
    TPU_EXPECT_EQ(tpu_attrs_count(ids[n]), sets[n].count);
    for (int i = -1; i <= sets[n].count + 1; ++i) {
      bool inside = i >= 0 && i < sets[n].count;
      if (reads_back(ids[n], i, inside ? &sets[n].values[i] : &nothing)) continue;
      tpu_test_fail(__FILE__, __LINE__, "set %d, value %d reads back otherwise", n, i);
    }
    int other = (int)pick(0, n);
    TPU_EXPECT_EQ((ids[n] == ids[other]), same_set(&sets[n], &sets[other]));
  }
  // Earlier sets are still what they were, and ids that nobody has given read as the empty set.
  for (int n = 0; n < SETS && !tpu_test_failed(); n += 7) {
    for (int i = 0; i < sets[n].count; ++i) TPU_EXPECT(reads_back(ids[n], i, &sets[n].values[i]));
  }
  for (int n = 0; n < 1000; ++n) {
    tpu_attrs_id_t id = 0xfffffff0u - (tpu_attrs_id_t)pick(0, 1 << 20);
    TPU_EXPECT(tpu_attrs_count(id) == 0 && reads_back(id, (int)pick(-3, 3), &nothing));
  }
}

/* Sets about as large as fit: they are taken whole or refused. */
TPU_TEST(fuzz_attrs_at_the_limit) {
  static int64_t numbers[TPU_ATTRS_MAX_WORDS + 8];
  state = tpu_test_seed();
  for (int n = 0; n < 400; ++n) {
    tpu_attrs_builder_t builder;
    tpu_attrs_id_t id;
    int64_t words = 0, count = 0;
    tpu_attrs_begin(&builder);
    while (words < TPU_ATTRS_MAX_WORDS - 8 || pick(0, 3) != 0) {
      int64_t size = pick(0, 300);
      tpu_attrs_add_ints(&builder, numbers, (size_t)size);
      words += 1 + size;
      ++count;
    }
    bool fits = words <= TPU_ATTRS_MAX_WORDS;
    tpu_status_t status = tpu_attrs_intern(&builder, &id);
    TPU_EXPECT_EQ(tpu_status_code(status), fits ? TPU_OK : TPU_INVALID_ARGUMENT);
    if (fits) TPU_EXPECT_EQ(tpu_attrs_count(id), count);
    tpu_status_free(status);
  }
}
