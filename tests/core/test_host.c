/* Kernels of core/host/, called directly: no plugin, no program. The oracle is qsort with PyTorch's
 * order spelled out on plain numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/host_internal.h"
#include "test.h"

enum { MAX_COUNT = 20000 };

/* --- numbers --- */

typedef struct number_t {
  bool is_nan;
  bool is_float;
  double as_float;
  __int128 as_int;
  int64_t position;
} number_t;

static double half_to_double(uint16_t bits, int exponent_bits) {
  int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  double fraction = bits & ((1 << fraction_bits) - 1);
  double scale = ldexp(1, -fraction_bits), value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = fraction != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    value = ldexp(fraction * scale, 1 - bias);
  } else {
    value = ldexp(1 + fraction * scale, exponent - bias);
  }
  return bits >> 15 ? -value : value;
}

static number_t number_at(tpu_dtype_t dtype, const void* data, int64_t i) {
  number_t n = {.position = i, .is_float = tpu_dtype_is_float(dtype)};
  switch (dtype) {
    case TPU_BOOL: n.as_int = ((const uint8_t*)data)[i] != 0; break;
    case TPU_U8: n.as_int = ((const uint8_t*)data)[i]; break;
    case TPU_I8: n.as_int = ((const int8_t*)data)[i]; break;
    case TPU_I16: n.as_int = ((const int16_t*)data)[i]; break;
    case TPU_U16: n.as_int = ((const uint16_t*)data)[i]; break;
    case TPU_I32: n.as_int = ((const int32_t*)data)[i]; break;
    case TPU_U32: n.as_int = ((const uint32_t*)data)[i]; break;
    case TPU_I64: n.as_int = ((const int64_t*)data)[i]; break;
    case TPU_U64: n.as_int = ((const uint64_t*)data)[i]; break;
    case TPU_F16: n.as_float = half_to_double(((const uint16_t*)data)[i], 5); break;
    case TPU_BF16: n.as_float = half_to_double(((const uint16_t*)data)[i], 8); break;
    case TPU_F32: n.as_float = ((const float*)data)[i]; break;
    default: n.as_float = ((const double*)data)[i];
  }
  n.is_nan = n.is_float && isnan(n.as_float);
  return n;
}

/* PyTorch's order without the position: -1, 0, 1. */
static int compare_values(const number_t* a, const number_t* b) {
  if (a->is_nan || b->is_nan) return (int)a->is_nan - (int)b->is_nan;
  if (a->is_float) return (a->as_float > b->as_float) - (a->as_float < b->as_float);
  return (a->as_int > b->as_int) - (a->as_int < b->as_int);
}

static int by_position(const number_t* a, const number_t* b) {
  return (a->position > b->position) - (a->position < b->position);
}

static int ascending(const void* a, const void* b) {
  int order = compare_values(a, b);
  return order != 0 ? order : by_position(a, b);
}

static int descending(const void* a, const void* b) {
  int order = compare_values(b, a);
  return order != 0 ? order : by_position(a, b);
}

/* --- inputs --- */

typedef enum pattern_t {
  RANDOM_BITS,
  FEW_VALUES,
  SPECIAL,
  SORTED,
  BACKWARDS,
  CONSTANT,
  NEAR,  // 64-bit numbers in a narrow range around zero
  PATTERN_COUNT
} pattern_t;

static const tpu_dtype_t dtypes[] = {TPU_BOOL, TPU_U8,  TPU_I8,  TPU_I16, TPU_U16,
                                     TPU_I32,  TPU_U32, TPU_I64, TPU_U64, TPU_F16,
                                     TPU_BF16, TPU_F32, TPU_F64};
enum { DTYPE_COUNT = sizeof(dtypes) / sizeof(dtypes[0]) };

static uint64_t special_bits(tpu_dtype_t dtype, uint64_t r) {
  static const float floats[] = {NAN,  -NAN,  INFINITY, -INFINITY, 0.0f,   -0.0f,
                                 1.0f, -1.0f, 1e-40f,   -1e-40f,   2e-40f, 3.4e38f};
  float x = floats[r % 12];
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (dtype == TPU_F32) return bits;
  if (dtype == TPU_BF16) return bits >> 16;
  if (dtype == TPU_F64) {
    double wide = r % 12 == 10 ? 5e-324 : x;
    uint64_t wide_bits;
    memcpy(&wide_bits, &wide, 8);
    return wide_bits;
  }
  static const uint16_t halves[] = {0x7e00, 0xfe01, 0x7c00, 0xfc00, 0, 0x8000,
                                    0x3c00, 0xbc00, 1,      0x8001, 2, 0x7bff};
  if (dtype == TPU_F16) return halves[r % 12];
  static const uint64_t integers[] = {0, 1, UINT64_MAX, INT64_MAX, (uint64_t)INT64_MIN, 127, 128};
  return integers[r % 7];
}

static void put(tpu_dtype_t dtype, void* data, int64_t i, uint64_t bits) {
  size_t bytes = tpu_dtype_bytes(dtype);
  if (dtype == TPU_BOOL) bits &= 1;
  memcpy((char*)data + (size_t)i * bytes, &bits, bytes);
}

static void fill(tpu_dtype_t dtype, void* data, int64_t count, pattern_t pattern, uint64_t* state) {
  uint64_t one = tpu_test_random(state);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t r = tpu_test_random(state), bits = r;
    if (pattern == FEW_VALUES) bits = one ^ ((r >> 20) % 5) << 3;
    if (pattern == SPECIAL) bits = special_bits(dtype, r >> 8);
    if (pattern == CONSTANT) bits = one;
    if (pattern == NEAR) bits = (r >> 8) % 2001 - 1000;
    put(dtype, data, i, bits);
  }
  if (pattern != SORTED && pattern != BACKWARDS) return;
  number_t* numbers = malloc((size_t)count * sizeof(number_t) + 1);
  size_t bytes = tpu_dtype_bytes(dtype);
  char* copy = malloc((size_t)count * bytes + 1);
  memcpy(copy, data, (size_t)count * bytes);
  for (int64_t i = 0; i < count; ++i) numbers[i] = number_at(dtype, data, i);
  qsort(numbers, (size_t)count, sizeof(number_t), pattern == SORTED ? ascending : descending);
  for (int64_t i = 0; i < count; ++i) {
    memcpy((char*)data + (size_t)i * bytes, copy + (size_t)numbers[i].position * bytes, bytes);
  }
  free(copy);
  free(numbers);
}

/* --- calls --- */

typedef struct setup_t {
  tpu_host_buffer_t operands[2], results[2];
  int64_t sizes[2][3];  // of x; of ranks and top-k results
  tpu_host_attr_t attrs[2];
  tpu_host_call_t call;
} setup_t;

static tpu_host_attr_t int_attr(const char* name, int64_t value) {
  return (tpu_host_attr_t){
      .name = name, .name_size = strlen(name), .kind = TPU_HOST_ATTR_INT, .as_int = value};
}

static tpu_host_buffer_t buffer(tpu_dtype_t dtype, const int64_t* sizes, int64_t count) {
  return (tpu_host_buffer_t){.dtype = dtype,
                             .rank = 3,
                             .sizes = sizes,
                             .data = malloc((size_t)count * tpu_dtype_bytes(dtype) + 1)};
}

/* x of [outer, length, inner]; results of [outer, k, inner]. */
static void set_up(setup_t* s, tpu_dtype_t dtype, int64_t outer, int64_t length, int64_t inner,
                   int64_t k, const char* flag, int64_t flag_value) {
  memset(s, 0, sizeof(*s));
  memcpy(s->sizes[0], (int64_t[]){outer, length, inner}, sizeof(s->sizes[0]));
  memcpy(s->sizes[1], (int64_t[]){outer, k, inner}, sizeof(s->sizes[1]));
  s->operands[0] = buffer(dtype, s->sizes[0], outer * length * inner);
  s->operands[1] = buffer(TPU_I64, s->sizes[1], outer * k * inner);
  s->results[0] = buffer(dtype, s->sizes[1], outer * k * inner);
  s->results[1] = buffer(TPU_I64, s->sizes[1], outer * k * inner);
  s->attrs[0] = int_attr("dim", 1);
  s->attrs[1] = int_attr(flag, flag_value);
  s->call = (tpu_host_call_t){.operand_count = 1,
                              .operands = s->operands,
                              .result_count = 2,
                              .results = s->results,
                              .attr_count = 2,
                              .attrs = s->attrs};
}

static void tear_down(setup_t* s) {
  for (int i = 0; i < 2; ++i) {
    free(s->operands[i].data);
    free(s->results[i].data);
  }
}

/* Sorted numbers of line (o, i); the caller frees. */
static number_t* oracle(const setup_t* s, int64_t o, int64_t i, bool down) {
  int64_t length = s->sizes[0][1], inner = s->sizes[0][2];
  number_t* numbers = malloc((size_t)length * sizeof(number_t) + 1);
  for (int64_t e = 0; e < length; ++e) {
    numbers[e] = number_at(s->operands[0].dtype, s->operands[0].data, (o * length + e) * inner + i);
    numbers[e].position = e;
  }
  qsort(numbers, (size_t)length, sizeof(number_t), down ? descending : ascending);
  return numbers;
}

/* Result `at` of a line must be `expected`: its position and, bit for bit, its value. */
static bool check_element(const setup_t* s, int64_t o, int64_t i, int64_t at,
                          const number_t* expected, bool has_values) {
  int64_t length = s->sizes[0][1], k = s->sizes[1][1], inner = s->sizes[0][2];
  size_t bytes = tpu_dtype_bytes(s->operands[0].dtype);
  int64_t to = (o * k + at) * inner + i, from = (o * length + expected->position) * inner + i;
  const int64_t* indices = s->call.results[s->call.result_count - 1].data;
  const char* x = s->operands[0].data;
  const char* values = s->results[0].data;
  bool same = indices[to] == expected->position;
  if (has_values) {
    same &= memcmp(values + (size_t)to * bytes, x + (size_t)from * bytes, bytes) == 0;
  }
  if (!same) {
    tpu_test_fail(__FILE__, __LINE__, "%s [%lld, %lld, %lld]: line (%lld, %lld), place %lld: %lld",
                  tpu_dtype_name(s->operands[0].dtype), (long long)s->sizes[0][0],
                  (long long)length, (long long)inner, (long long)o, (long long)i, (long long)at,
                  (long long)indices[to]);
  }
  return same;
}

/* The first k of each line. */
static void check_lines(const setup_t* s, bool down, bool has_values) {
  for (int64_t o = 0; o < s->sizes[0][0]; ++o) {
    for (int64_t i = 0; i < s->sizes[0][2]; ++i) {
      number_t* numbers = oracle(s, o, i, down);
      bool same = true;
      for (int64_t at = 0; at < s->sizes[1][1] && same; ++at) {
        same = check_element(s, o, i, at, &numbers[at], has_values);
      }
      free(numbers);
      if (!same) return;
    }
  }
}

static int64_t total(int64_t outer, int64_t length, int64_t inner) {
  return outer * length * inner;
}

static const int64_t lengths[] = {0,  1,  2,   3,   5,    16,   31,   32,   33,
                                  64, 65, 255, 256, 1000, 4095, 4096, 5001, MAX_COUNT};
enum { LENGTH_COUNT = sizeof(lengths) / sizeof(lengths[0]) };

/* --- sort --- */

static void test_sort(tpu_dtype_t dtype, int64_t outer, int64_t length, int64_t inner,
                      pattern_t pattern, bool down, uint64_t* state) {
  setup_t s;
  set_up(&s, dtype, outer, length, inner, length, "descending", down);
  fill(dtype, s.operands[0].data, total(outer, length, inner), pattern, state);
  TPU_EXPECT_OK(tpui_host_sort(&s.call));
  check_lines(&s, down, true);
  memset(s.results[1].data, 0xff, (size_t)total(outer, length, inner) * 8);
  s.call.result_count = 1;
  s.call.results = &s.results[1];
  TPU_EXPECT_OK(tpui_host_argsort(&s.call));
  check_lines(&s, down, false);
  tear_down(&s);
}

TPU_TEST(host_sort_equals_the_oracle) {
  uint64_t state = 11;
  for (int d = 0; d < DTYPE_COUNT; ++d) {
    for (int l = 0; l < LENGTH_COUNT; ++l) {
      int64_t outer = lengths[l] <= 256 ? 3 : 1;
      for (int p = 0; p < PATTERN_COUNT; ++p) {
        test_sort(dtypes[d], outer, lengths[l], 1, (pattern_t)p, (p + l) % 2 != 0, &state);
        if (lengths[l] <= 1000) {
          test_sort(dtypes[d], outer, lengths[l], 1, (pattern_t)p, (p + l) % 2 == 0, &state);
        }
      }
    }
  }
}

TPU_TEST(host_sort_along_other_dimensions) {
  static const int64_t shapes[][3] = {{2, 7, 2},    {1, 40, 15},  {2, 33, 16},  {3, 20, 17},
                                      {1, 3, 1000}, {2, 6000, 3}, {1, 9000, 5}, {0, 4, 3},
                                      {4, 0, 3},    {4, 3, 0},    {1, 1, 37}};
  uint64_t state = 12;
  for (int d = 0; d < DTYPE_COUNT; ++d) {
    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); ++k) {
      const int64_t* n = shapes[k];
      test_sort(dtypes[d], n[0], n[1], n[2], (pattern_t)(k % PATTERN_COUNT), k % 2 == 0, &state);
    }
  }
}

TPU_TEST(host_sort_of_one_number) {
  float x = 3.0f, value = 0;
  int64_t index = -1;
  const tpu_host_buffer_t operand = {.dtype = TPU_F32, .data = &x};
  const tpu_host_buffer_t results[] = {{.dtype = TPU_F32, .data = &value},
                                       {.dtype = TPU_I64, .data = &index}};
  const tpu_host_attr_t attrs[] = {int_attr("dim", 0), int_attr("descending", 0)};
  const tpu_host_call_t call = {.operand_count = 1,
                                .operands = &operand,
                                .result_count = 2,
                                .results = results,
                                .attr_count = 2,
                                .attrs = attrs};
  TPU_EXPECT_OK(tpui_host_sort(&call));
  TPU_EXPECT(value == 3.0f);
  TPU_EXPECT_EQ(index, 0);
}

/* --- topk, kth --- */

TPU_TEST(host_topk_equals_the_oracle) {
  static const int64_t shapes[][4] = {{2, 1, 1, 1},     {2, 10, 1, 0},      {2, 10, 1, 3},
                                      {3, 100, 1, 25},  {3, 100, 1, 26},    {1, 1000, 1, 1},
                                      {1, 1000, 1, 50}, {1, 5000, 1, 1250}, {1, 20000, 1, 7},
                                      {2, 600, 3, 20},  {1, 20000, 1, 300}, {2, 50, 17, 50}};
  uint64_t state = 13;
  for (int d = 0; d < DTYPE_COUNT; ++d) {
    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); ++k) {
      for (int p = 0; p < PATTERN_COUNT; ++p) {
        const int64_t* n = shapes[k];
        bool largest = (p + k) % 2 == 0;
        setup_t s;
        set_up(&s, dtypes[d], n[0], n[1], n[2], n[3], "largest", largest);
        fill(dtypes[d], s.operands[0].data, total(n[0], n[1], n[2]), (pattern_t)p, &state);
        TPU_EXPECT_OK(tpui_host_topk(&s.call));
        check_lines(&s, largest, true);
        tear_down(&s);
      }
    }
  }
}

static void test_kth(tpu_dtype_t dtype, int64_t outer, int64_t length, int64_t inner,
                     pattern_t pattern, uint64_t* state) {
  setup_t s;
  set_up(&s, dtype, outer, length, inner, 1, "unused", 0);
  s.call.operand_count = 2;
  fill(dtype, s.operands[0].data, total(outer, length, inner), pattern, state);
  int64_t* ranks = s.operands[1].data;
  for (int64_t i = 0; i < outer * inner; ++i) {
    ranks[i] = tpu_test_random_range(state, 0, length - 1);
  }
  TPU_EXPECT_OK(tpui_host_kth(&s.call));
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      number_t* numbers = oracle(&s, o, i, false);
      (void)check_element(&s, o, i, 0, &numbers[ranks[o * inner + i]], true);
      free(numbers);
    }
  }
  tear_down(&s);
}

TPU_TEST(host_kth_equals_the_oracle) {
  uint64_t state = 14;
  for (int d = 0; d < DTYPE_COUNT; ++d) {
    for (int l = 1; l < LENGTH_COUNT; ++l) {
      for (int p = 0; p < PATTERN_COUNT; ++p) {
        test_kth(dtypes[d], lengths[l] <= 256 ? 5 : 1, lengths[l], 1, (pattern_t)p, &state);
      }
    }
    test_kth(dtypes[d], 2, 70, 19, SPECIAL, &state);
  }
}

/* --- cumsum, cumprod, cummax, cummin --- */

/* Element e of line (o, i). */
static int64_t place_of(const setup_t* s, int64_t o, int64_t e, int64_t i) {
  return (o * s->sizes[0][1] + e) * s->sizes[0][2] + i;
}

static bool is_best(const number_t* now, const number_t* best, bool least) {
  if (now->is_nan || best->is_nan) return now->is_nan;
  int order = compare_values(now, best);
  return least ? order <= 0 : order >= 0;
}

static void check_extremes(const setup_t* s, bool least) {
  const void* x = s->operands[0].data;
  for (int64_t o = 0; o < s->sizes[0][0]; ++o) {
    for (int64_t i = 0; i < s->sizes[0][2]; ++i) {
      number_t best = {0};
      for (int64_t e = 0; e < s->sizes[0][1]; ++e) {
        number_t now = number_at(s->operands[0].dtype, x, place_of(s, o, e, i));
        now.position = e;
        if (e == 0 || is_best(&now, &best, least)) best = now;
        if (!check_element(s, o, i, e, &best, true)) return;
      }
    }
  }
}

TPU_TEST(host_extremes_equal_the_oracle) {
  static const int64_t shapes[][3] = {{2, 1, 1}, {3, 50, 1}, {1, 3000, 1}, {2, 40, 19}, {2, 0, 3}};
  uint64_t state = 16;
  for (int d = 0; d < DTYPE_COUNT; ++d) {
    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); ++k) {
      for (int p = 0; p < PATTERN_COUNT; ++p) {
        const int64_t* n = shapes[k];
        setup_t s;
        set_up(&s, dtypes[d], n[0], n[1], n[2], n[1], "unused", 0);
        fill(dtypes[d], s.operands[0].data, total(n[0], n[1], n[2]), (pattern_t)p, &state);
        TPU_EXPECT_OK(tpui_host_cummax(&s.call));
        check_extremes(&s, false);
        TPU_EXPECT_OK(tpui_host_cummin(&s.call));
        check_extremes(&s, true);
        tear_down(&s);
      }
    }
  }
}

/* What a sum or product of the elements so far is; sums of f32 are kept in double, as PyTorch
 * does. */
static void check_cumulative(const setup_t* s, bool product) {
  const tpu_host_buffer_t *x = &s->operands[0], *y = &s->results[0];
  for (int64_t o = 0; o < s->sizes[0][0]; ++o) {
    for (int64_t i = 0; i < s->sizes[0][2]; ++i) {
      double real = product;
      unsigned __int128 whole = product;
      for (int64_t e = 0; e < s->sizes[0][1]; ++e) {
        int64_t at = place_of(s, o, e, i);
        number_t now = number_at(x->dtype, x->data, at), got = number_at(y->dtype, y->data, at);
        real = product ? real * now.as_float : real + now.as_float;
        unsigned __int128 term = (unsigned __int128)now.as_int;
        whole = product ? whole * term : whole + term;
        double expected = x->dtype == TPU_F32 ? (float)real : real;
        bool same = got.is_float ? got.as_float == expected || (got.is_nan && isnan(expected))
                    : x->dtype == TPU_I32 ? (int32_t)got.as_int == (int32_t)(uint32_t)whole
                                          : (int64_t)got.as_int == (int64_t)(uint64_t)whole;
        if (same) continue;
        tpu_test_fail(__FILE__, __LINE__, "%s, product %d, place %lld of line (%lld, %lld)",
                      tpu_dtype_name(x->dtype), product, (long long)e, (long long)o, (long long)i);
        return;
      }
    }
  }
}

TPU_TEST(host_cumulative_equals_the_oracle) {
  static const int64_t shapes[][3] = {{1, 1, 1}, {3, 50, 1}, {1, 3000, 1}, {2, 40, 19}, {2, 0, 3}};
  static const tpu_dtype_t taken[] = {TPU_F32, TPU_F64, TPU_I32, TPU_I64};
  uint64_t state = 17;
  for (int d = 0; d < 4; ++d) {
    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); ++k) {
      for (int p = 0; p < PATTERN_COUNT; ++p) {
        const int64_t* n = shapes[k];
        setup_t s;
        set_up(&s, taken[d], n[0], n[1], n[2], n[1], "unused", 0);
        fill(taken[d], s.operands[0].data, total(n[0], n[1], n[2]), (pattern_t)p, &state);
        s.call.result_count = 1;
        TPU_EXPECT_OK(tpui_host_cumsum(&s.call));
        check_cumulative(&s, false);
        TPU_EXPECT_OK(tpui_host_cumprod(&s.call));
        check_cumulative(&s, true);
        tear_down(&s);
      }
    }
  }
}

TPU_TEST(host_scans_refuse_what_does_not_fit) {
  setup_t s;
  set_up(&s, TPU_BF16, 1, 4, 1, 4, "unused", 0);
  memset(s.operands[0].data, 0, 8);
  s.call.result_count = 1;
  TPU_EXPECT_CODE(tpui_host_cumsum(&s.call), TPU_UNIMPLEMENTED);
  s.results[0].dtype = TPU_F16;
  TPU_EXPECT_CODE(tpui_host_cumprod(&s.call), TPU_INVALID_ARGUMENT);
  s.results[0].dtype = TPU_BF16;
  s.call.result_count = 2;
  TPU_EXPECT_OK(tpui_host_cummax(&s.call));
  s.results[1].dtype = TPU_I32;
  TPU_EXPECT_CODE(tpui_host_cummax(&s.call), TPU_INVALID_ARGUMENT);
  s.results[1].dtype = TPU_I64;
  s.sizes[1][1] = 3;
  TPU_EXPECT_CODE(tpui_host_cummin(&s.call), TPU_INVALID_ARGUMENT);
  tear_down(&s);
}

/* --- what kernels refuse --- */

TPU_TEST(host_kernels_refuse_what_does_not_fit) {
  setup_t s;
  set_up(&s, TPU_F32, 2, 8, 3, 8, "descending", 0);
  memset(s.operands[0].data, 0, 2 * 8 * 3 * 4);
  TPU_EXPECT_OK(tpui_host_sort(&s.call));
  s.attrs[0].as_int = 3;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_INVALID_ARGUMENT);
  s.attrs[0].as_int = -1;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_INVALID_ARGUMENT);
  s.attrs[0].as_int = 1;
  s.attrs[1].name_size = 4;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_INVALID_ARGUMENT);
  s.attrs[1].name_size = strlen("descending");
  s.attrs[1].kind = TPU_HOST_ATTR_FLOAT;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_INVALID_ARGUMENT);
  s.attrs[1].kind = TPU_HOST_ATTR_INT;
  s.sizes[1][1] = 7;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_INVALID_ARGUMENT);
  s.sizes[1][1] = 8;
  s.sizes[1][2] = 2;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_INVALID_ARGUMENT);
  s.sizes[1][2] = 3;
  s.results[1].rank = 2;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_INVALID_ARGUMENT);
  s.results[1].rank = 3;
  s.results[1].dtype = TPU_I32;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_INVALID_ARGUMENT);
  s.results[1].dtype = TPU_I64;
  s.results[0].dtype = TPU_I32;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_INVALID_ARGUMENT);
  s.operands[0].dtype = s.results[0].dtype = TPU_C64;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_UNIMPLEMENTED);
  s.operands[0].dtype = s.results[0].dtype = TPU_F8E5M2;
  TPU_EXPECT_CODE(tpui_host_sort(&s.call), TPU_UNIMPLEMENTED);
  s.operands[0].dtype = s.results[0].dtype = TPU_F32;
  s.sizes[1][1] = 9;  // more than there are
  s.attrs[1] = int_attr("largest", 1);
  TPU_EXPECT_CODE(tpui_host_topk(&s.call), TPU_INVALID_ARGUMENT);
  tear_down(&s);
}

TPU_TEST(host_kth_refuses_ranks_outside) {
  setup_t s;
  set_up(&s, TPU_F32, 1, 8, 1, 1, "unused", 0);
  memset(s.operands[0].data, 0, 8 * 4);
  s.call.operand_count = 2;
  int64_t* rank = s.operands[1].data;
  static const int64_t bad[] = {-1, 8, INT64_MAX, INT64_MIN};
  for (int i = 0; i < 4; ++i) {
    *rank = bad[i];
    TPU_EXPECT_CODE(tpui_host_kth(&s.call), TPU_OUT_OF_RANGE);
  }
  *rank = 7;
  TPU_EXPECT_OK(tpui_host_kth(&s.call));
  s.operands[1].dtype = TPU_F64;
  TPU_EXPECT_CODE(tpui_host_kth(&s.call), TPU_INVALID_ARGUMENT);
  tear_down(&s);
}

static tpu_status_t sort_strided(void* arg) { return tpui_host_sort(&((setup_t*)arg)->call); }

TPU_TEST(host_sort_survives_every_lost_allocation) {
  setup_t s;
  uint64_t state = 15;
  set_up(&s, TPU_F32, 2, 100, 20, 100, "descending", 1);
  fill(TPU_F32, s.operands[0].data, 2 * 100 * 20, RANDOM_BITS, &state);
  TPU_EXPECT(TPU_OOM_SWEEP(sort_strided, &s) >= 2);
  check_lines(&s, true, true);
  tear_down(&s);
}
