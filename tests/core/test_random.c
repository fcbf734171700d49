/* host/random.h against an oracle: Philox step by step, distributions in double with libm. What the
 * contract states exactly must be equal bit for bit, the rest within a few units in the last place.
 */
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "host/host_internal.h"
#include "host/isa.h"
#include "host/philox.h"
#include "host/random.h"
#include "test.h"

/* --- the oracle --- */

static void philox_oracle(uint64_t key, uint64_t low, uint64_t high, uint32_t out[4]) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c[4] = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)};
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = (uint64_t)c[0] * 0xd2511f53u, p1 = (uint64_t)c[2] * 0xcd9e8d57u;
    uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1,
                        (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0};
    memcpy(c, next, sizeof(c));
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  memcpy(out, c, sizeof(c));
}

static uint32_t word_at(const tpu_random_draw_t* d, uint32_t stream, int64_t i) {
  uint32_t words[4];
  uint64_t block = (uint64_t)i / 4;
  uint64_t wide = block + ((0x80000000ull + ((uint64_t)stream << 24)) << 32);
  if (d->wide) {
    philox_oracle(d->seed, d->offset, wide, words);
  } else {
    philox_oracle(d->seed, d->offset + block, stream, words);
  }
  return words[i % 4];
}

static double open_at(const tpu_random_draw_t* d, int64_t i) {
  uint32_t word = word_at(d, 0, i);
  if (d->math == TPU_F32) return ((word >> 9) + 0.5) * 0x1p-23;
  return ((double)(word >> 6) * 0x1p26 + (word_at(d, 1, i) >> 6) + 0.5) * 0x1p-52;
}

static double unit_at(const tpu_random_draw_t* d, int64_t i, int bits) {
  uint32_t word = word_at(d, 0, i);
  if (d->math == TPU_F32) return (word >> (32 - bits)) * ldexp(1, -bits);
  return ((double)(word >> 5) * 0x1p26 + (word_at(d, 1, i) >> 6)) * 0x1p-53;
}

static const long double pi = 3.14159265358979323846264338327950288L;

static long double normal_at(const tpu_random_draw_t* d, int64_t i) {
  long double radius = sqrtl(-2 * logl(open_at(d, i & ~INT64_C(1))));
  long double angle = 2 * pi * unit_at(d, i | 1, 24);
  return radius * (i % 2 == 0 ? cosl(angle) : sinl(angle));
}

static double parameter(const tpu_random_draw_t* d, const tpu_random_parameter_t* p, int64_t i) {
  if (d->math == TPU_F64) return p->elements ? ((const double*)p->elements)[i] : p->number;
  return p->elements ? ((const float*)p->elements)[i] : (float)p->number;
}

/* Element i, and how large the numbers were that it is made of. */
static double expected_at(const tpu_random_draw_t* d, int64_t i, double* out_scale) {
  long double a = parameter(d, &d->a, i), b = parameter(d, &d->b, i), x;
  *out_scale = 0;
  switch (d->kind) {
    case TPU_RANDOM_NORMAL:
      *out_scale = (double)(fabsl(a) + 2 * b);
      return (double)(a + normal_at(d, i) * b);
    case TPU_RANDOM_LOG_NORMAL:
      x = expl(a + normal_at(d, i) * b);
      *out_scale = (double)(x * (1 + fabsl(a) + 2 * b));
      return (double)x;
    case TPU_RANDOM_EXPONENTIAL: return (double)(-logl(open_at(d, i)) / a);
    case TPU_RANDOM_CAUCHY:
      x = b * tanl(pi * ((long double)open_at(d, i) - 0.5L));
      *out_scale = (double)(fabsl(a) + fabsl(x));
      return (double)(a + x);
    default: return (double)fmaxl(1, ceill(logl(open_at(d, i)) / log1pl(-a)));
  }
}

/* --- results as double --- */

static double half_value(uint16_t bits, int fraction_bits) {
  int exponent_bits = 15 - fraction_bits, bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  double fraction = bits & ((1 << fraction_bits) - 1), sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
  return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

static double value_at(tpu_dtype_t dtype, const void* data, int64_t i) {
  switch (dtype) {
    case TPU_F64: return ((const double*)data)[i];
    case TPU_F32: return ((const float*)data)[i];
    case TPU_F16: return half_value(((const uint16_t*)data)[i], 10);
    case TPU_BF16: return half_value(((const uint16_t*)data)[i], 7);
    case TPU_I8: return ((const int8_t*)data)[i];
    case TPU_I16: return ((const int16_t*)data)[i];
    case TPU_I32: return ((const int32_t*)data)[i];
    case TPU_I64: return (double)((const int64_t*)data)[i];
    case TPU_U16: return ((const uint16_t*)data)[i];
    case TPU_U32: return ((const uint32_t*)data)[i];
    case TPU_U64: return (double)((const uint64_t*)data)[i];
    default: return ((const uint8_t*)data)[i];
  }
}

/* Distance of neighbouring numbers around `x`. */
static double unit_of(tpu_dtype_t dtype, double x) {
  int bits = dtype == TPU_F64 ? 52 : dtype == TPU_F32 ? 23 : dtype == TPU_F16 ? 10 : 7;
  int least = dtype == TPU_F64 ? -1022 : dtype == TPU_F16 ? -14 : -126, exponent;
  (void)frexp(x, &exponent);
  return ldexp(1, (exponent - 1 > least ? exponent - 1 : least) - bits);
}

static const tpu_dtype_t float_dtypes[] = {TPU_F32, TPU_F64, TPU_F16, TPU_BF16};
static const tpu_dtype_t all_dtypes[] = {TPU_F32, TPU_F64, TPU_F16, TPU_BF16, TPU_BOOL,
                                         TPU_I8,  TPU_I16, TPU_I32, TPU_I64,  TPU_U8,
                                         TPU_U16, TPU_U32, TPU_U64};
enum { ALL_DTYPES = sizeof(all_dtypes) / sizeof(all_dtypes[0]) };

/* Sizes around the groups of Philox and the chunks. */
static const int64_t counts[] = {1, 2, 3, 4, 5, 31, 32, 33, 1000, 1023, 1024, 1025, 5000};
enum { COUNTS = sizeof(counts) / sizeof(counts[0]), MOST = 5000 };

/* The whole result; the caller frees. What lies behind it must not be touched. */
static void* fill_new(const tpu_random_draw_t* d, tpu_dtype_t dtype, int64_t count) {
  size_t bytes = tpu_dtype_bytes(dtype) * (size_t)count;
  unsigned char* out = malloc(bytes + 64);
  memset(out, 0xa5, bytes + 64);
  TPU_EXPECT_OK(tpu_random_fill(d, dtype, 0, count, out));
  for (int i = 0; i < 64; ++i) TPU_EXPECT_EQ(out[bytes + (size_t)i], 0xa5);
  return out;
}

static tpu_random_draw_t draw_of(tpu_random_kind_t kind, tpu_dtype_t result) {
  static const double parameters[TPU_RANDOM_KIND_COUNT][2] = {
      [TPU_RANDOM_UNIFORM] = {-1.3, 4.1},   [TPU_RANDOM_NORMAL] = {0.7, 1.9},
      [TPU_RANDOM_LOG_NORMAL] = {0.1, 0.8}, [TPU_RANDOM_EXPONENTIAL] = {1.7, 0},
      [TPU_RANDOM_CAUCHY] = {0.3, 2.2},     [TPU_RANDOM_GEOMETRIC] = {0.2, 0},
      [TPU_RANDOM_BERNOULLI] = {0.3, 0},    [TPU_RANDOM_INTEGERS] = {0, 0}};
  return (tpu_random_draw_t){.kind = kind,
                             .seed = 0x123456789abcdefull,
                             .offset = 77,
                             .math = result == TPU_F64 ? TPU_F64 : TPU_F32,
                             .a = {.number = parameters[kind][0]},
                             .b = {.number = parameters[kind][1]},
                             .from = -3,
                             .range = 100};
}

/* --- Philox --- */

TPU_TEST(random_philox_known_answers) {
  static const struct {
    uint64_t key, low, high;
    uint32_t words[4];
  } known[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822ull,
       0x85a308d3243f6a88ull,
       0x0370734413198a2eull,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (tpui_isa_t isa = 0; isa < TPUI_ISA_COUNT; ++isa) {
    tpui_isa_limit(isa);
    for (int k = 0; k < 3; ++k) {
      uint32_t out[4 * TPUI_PHILOX_GROUP];
      tpui_philox(known[k].key, known[k].low, known[k].high, false, 1, out);
      for (int w = 0; w < 4; ++w) TPU_EXPECT_EQ(out[w], known[k].words[w]);
    }
  }
}

TPU_TEST(random_philox_counts_blocks) {
  static const uint64_t starts[] = {0, 5, 0xfffffffdull, UINT64_MAX - 4};
  for (tpui_isa_t isa = 0; isa < TPUI_ISA_COUNT; ++isa) {
    tpui_isa_limit(isa);
    for (int s = 0; s < 8; ++s) {
      bool high = s >= 4;
      uint32_t out[4 * 16], expected[4];
      tpui_philox(99, starts[s % 4], starts[3 - s % 4], high, 13, out);
      for (uint64_t i = 0; i < 13; ++i) {
        philox_oracle(99, starts[s % 4] + (high ? 0 : i), starts[3 - s % 4] + (high ? i : 0),
                      expected);
        TPU_EXPECT(memcmp(out + 4 * i, expected, sizeof(expected)) == 0);
      }
    }
  }
}

/* --- exact results --- */

static double uniform_oracle(const tpu_random_draw_t* d, tpu_dtype_t dtype, int64_t i) {
  int bits = dtype == TPU_F16 ? 11 : dtype == TPU_BF16 ? 8 : 24;
  double a = parameter(d, &d->a, i), b = parameter(d, &d->b, i), x = unit_at(d, i, bits);
  // volatile: each step is rounded.
  if (d->math == TPU_F64) {
    volatile double range = b - a, product = x * range, sum = product + a;
    return sum < b ? sum : a;
  }
  volatile float range = (float)b - (float)a, product = (float)x * range, sum = product + (float)a;
  return sum < (float)b ? sum : (float)a;
}

TPU_TEST(random_uniform_is_exact) {
  for (int wide = 0; wide < 2; ++wide) {
    for (int k = 0; k < 4; ++k) {
      tpu_dtype_t dtype = float_dtypes[k];
      tpu_random_draw_t d = draw_of(TPU_RANDOM_UNIFORM, dtype);
      d.wide = wide != 0;
      for (int c = 0; c < COUNTS; ++c) {
        void* out = fill_new(&d, dtype, counts[c]);
        for (int64_t i = 0; i < counts[c]; ++i) {
          double expected = uniform_oracle(&d, dtype, i), got = value_at(dtype, out, i);
          double limit = k < 2 ? 0 : unit_of(dtype, expected) / 2;  // halves are rounded once more
          TPU_EXPECT(fabs(got - expected) <= limit);
        }
        free(out);
      }
    }
  }
}

TPU_TEST(random_uniform_never_gives_the_upper_end) {
  // Neighbouring floats: most products round up to the upper one.
  tpu_random_draw_t d = draw_of(TPU_RANDOM_UNIFORM, TPU_F32);
  d.a.number = 1;
  d.b.number = (double)nextafterf(1, 2);
  float* out = fill_new(&d, TPU_F32, MOST);
  for (int i = 0; i < MOST; ++i) TPU_EXPECT(out[i] == 1.0f);
  free(out);
}

static void check_decisions(const tpu_random_draw_t* d, tpu_dtype_t dtype) {
  void* out = fill_new(d, dtype, MOST);
  for (int64_t i = 0; i < MOST; ++i) {
    double expected = unit_at(d, i, 24) < parameter(d, &d->a, i);
    TPU_EXPECT(value_at(dtype, out, i) == expected);
  }
  free(out);
}

TPU_TEST(random_bernoulli_is_exact) {
  float probabilities[MOST];
  double wide_probabilities[MOST];
  for (int i = 0; i < MOST; ++i) {
    wide_probabilities[i] = (i % 101) / 100.0;
    probabilities[i] = (float)wide_probabilities[i];
  }
  for (int k = 0; k < ALL_DTYPES; ++k) {
    tpu_random_draw_t d = draw_of(TPU_RANDOM_BERNOULLI, all_dtypes[k]);
    d.math = TPU_F32;
    check_decisions(&d, all_dtypes[k]);
    d.a.elements = probabilities;
    check_decisions(&d, all_dtypes[k]);
    d.math = TPU_F64;
    d.a.elements = wide_probabilities;
    check_decisions(&d, all_dtypes[k]);
  }
}

static uint64_t integer_oracle(const tpu_random_draw_t* d, int64_t i) {
  uint64_t bits = word_at(d, 0, i);
  if (d->range == 0 || d->range > UINT32_MAX) bits = bits << 32 | word_at(d, 1, i);
  return (d->range != 0 ? bits % d->range : bits) + (uint64_t)d->from;
}

TPU_TEST(random_integers_are_exact) {
  static const struct {
    int64_t from;
    uint64_t range;
  } bounds[] = {{0, 1},
                {0, 2},
                {-5, 7},
                {0, 10},
                {3, 1 << 20},
                {0, 641},
                {0, 0x7fffffff},
                {0, 0x80000000ull},
                {0, 0x80000001ull},
                {-7, 0xffffffffull},
                {0, 0x100000000ull},
                {-1000, 1000000000000ull},
                {INT64_MIN, 0},
                {INT64_MIN, UINT64_MAX}};
  for (size_t k = 0; k < sizeof(bounds) / sizeof(bounds[0]); ++k) {
    tpu_random_draw_t d = draw_of(TPU_RANDOM_INTEGERS, TPU_I64);
    d.from = bounds[k].from;
    d.range = bounds[k].range;
    uint64_t* out = fill_new(&d, TPU_I64, MOST);
    for (int64_t i = 0; i < MOST; ++i) {
      if (out[i] == integer_oracle(&d, i)) continue;
      tpu_test_fail(__FILE__, __LINE__, "range %llu, element %lld", (unsigned long long)d.range,
                    (long long)i);
      break;
    }
    free(out);
  }
}

TPU_TEST(random_integers_in_every_dtype) {
  for (int k = 0; k < ALL_DTYPES; ++k) {
    tpu_dtype_t dtype = all_dtypes[k];
    tpu_random_draw_t d = draw_of(TPU_RANDOM_INTEGERS, dtype);
    d.from = dtype == TPU_BOOL || tpu_dtype_kind(dtype) == TPU_KIND_UNSIGNED ? 0 : -3;
    d.range = dtype == TPU_BOOL ? 2 : 100;
    void* out = fill_new(&d, dtype, MOST);
    for (int64_t i = 0; i < MOST; ++i) {
      TPU_EXPECT(value_at(dtype, out, i) == (double)(int64_t)integer_oracle(&d, i));
    }
    free(out);
  }
}

/* --- rounded results --- */

static void check_close(const tpu_random_draw_t* d, tpu_dtype_t dtype, int64_t count) {
  void* out = fill_new(d, dtype, count);
  for (int64_t i = 0; i < count; ++i) {
    double scale, expected = expected_at(d, i, &scale), got = value_at(dtype, out, i);
    double unit = unit_of(d->math, fmax(scale, fabs(expected)));
    double limit = 8 * unit + (d->math == dtype ? 0 : unit_of(dtype, expected) / 2);
    // A quotient at an integer may fall on either side.
    if (d->kind == TPU_RANDOM_GEOMETRIC) limit = d->math == TPU_F64 ? 0 : 1;
    if (fabs(got - expected) <= limit) continue;
    tpu_test_fail(__FILE__, __LINE__, "kind %d, %s, element %lld: %.17g, expected %.17g",
                  (int)d->kind, tpu_dtype_name(dtype), (long long)i, got, expected);
    break;
  }
  free(out);
}

TPU_TEST(random_distributions_equal_the_oracle) {
  static const tpu_random_kind_t kinds[] = {TPU_RANDOM_NORMAL, TPU_RANDOM_LOG_NORMAL,
                                            TPU_RANDOM_EXPONENTIAL, TPU_RANDOM_CAUCHY,
                                            TPU_RANDOM_GEOMETRIC};
  for (int kind = 0; kind < 5; ++kind) {
    for (int k = 0; k < 4; ++k) {
      tpu_random_draw_t d = draw_of(kinds[kind], float_dtypes[k]);
      for (int c = 0; c < COUNTS; ++c) check_close(&d, float_dtypes[k], counts[c]);
      d.wide = true;
      check_close(&d, float_dtypes[k], MOST);
      d.offset = UINT64_MAX - 3;  // the counter goes round
      d.wide = false;
      check_close(&d, float_dtypes[k], MOST);
    }
  }
}

TPU_TEST(random_parameters_per_element) {
  float a[MOST], b[MOST];
  double wide_a[MOST], wide_b[MOST];
  for (int i = 0; i < MOST; ++i) {
    a[i] = (float)(wide_a[i] = 0.01 * (i % 90 + 1));
    b[i] = (float)(wide_b[i] = 0.5 + 0.03 * (i % 17));
  }
  for (tpu_random_kind_t kind = TPU_RANDOM_NORMAL; kind <= TPU_RANDOM_GEOMETRIC; ++kind) {
    for (int k = 0; k < 4; ++k) {
      tpu_random_draw_t d = draw_of(kind, float_dtypes[k]);
      d.a.elements = d.math == TPU_F64 ? (void*)wide_a : (void*)a;
      d.b.elements = d.math == TPU_F64 ? (void*)wide_b : (void*)b;
      check_close(&d, float_dtypes[k], MOST);
    }
  }
}

/* With a spread of 0 an element is its mean, so any number can be sent through. */
TPU_TEST(random_exponentials_at_the_ends) {
  static const double means[] = {-800,  -746, -745.2, -710, -700, -104, -103.9, -90, -88, -87.4,
                                 -1e-9, 0,    1e-9,   1,    80,   88.5, 88.8,   700, 709, 710};
  for (int k = 0; k < 2; ++k) {
    for (size_t m = 0; m < sizeof(means) / sizeof(means[0]); ++m) {
      tpu_random_draw_t d = draw_of(TPU_RANDOM_LOG_NORMAL, float_dtypes[k]);
      d.a.number = means[m];
      d.b.number = 0;
      void* out = fill_new(&d, float_dtypes[k], 32);
      double got = value_at(float_dtypes[k], out, 3);
      double expected = k == 0 ? (double)expf((float)means[m]) : exp(means[m]);
      double limit = isinf(expected) ? 0 : 2 * unit_of(float_dtypes[k], expected);
      TPU_EXPECT(got == expected || fabs(got - expected) <= limit);
      free(out);
    }
  }
}

TPU_TEST(random_halves_are_rounded_to_nearest) {
  enum { NUMBERS = 40000 };
  static float means[NUMBERS];
  uint64_t state = 5;
  for (int i = 0; i < NUMBERS; ++i) {
    uint32_t bits = (uint32_t)(tpu_test_random(&state) >> 20);
    if (i % 3 != 0) bits = (bits & 0x807fffff) | (100 + bits % 47) << 23;  // around float16's range
    if (i % 5 == 0) bits &= 0xfffff000;                                    // ties
    memcpy(&means[i], &bits, sizeof(bits));
  }
  for (int k = 2; k < 4; ++k) {
    tpu_dtype_t dtype = float_dtypes[k];
    double greatest =
        dtype == TPU_F16 ? 65520 : ldexp(511, 119);  // from here on infinity is nearer
    tpu_random_draw_t d = draw_of(TPU_RANDOM_NORMAL, dtype);
    d.a.elements = means;
    d.b.number = 0;
    uint16_t* out = fill_new(&d, dtype, NUMBERS);
    for (int i = 0; i < NUMBERS; ++i) {
      double x = means[i], got = value_at(dtype, out, i);
      if (isnan(x)) {
        TPU_EXPECT(isnan(got));
      } else if (fabs(x) >= greatest) {
        TPU_EXPECT(isinf(got) && (got > 0) == (x > 0));
      } else {
        double unit = unit_of(dtype, x), off = fabs(got - x);
        TPU_EXPECT(off < unit / 2 || (off == unit / 2 && (out[i] & 1) == 0));
      }
    }
    free(out);
  }
}

/* --- the same bits in every way --- */

typedef struct fill_t {
  const tpu_random_draw_t* draw;
  tpu_dtype_t dtype;
  int64_t first, last;
  void* out;
  bool flush;
} fill_t;

/* As the plugin's threads are: denormals are flushed, and it rounds downwards for good measure. */
static void* fill_in_thread(void* arg) {
  const fill_t* f = arg;
#if defined(__x86_64__)
  if (f->flush) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
  if (f->flush) (void)fesetround(FE_DOWNWARD);
  char* out = (char*)f->out + (size_t)f->first * tpu_dtype_bytes(f->dtype);
  TPU_EXPECT_OK(tpu_random_fill(f->draw, f->dtype, f->first, f->last, out));
  if (f->flush) TPU_EXPECT_EQ(fegetround(), FE_DOWNWARD);
  return NULL;
}

static void check_every_way(const tpu_random_draw_t* d, tpu_dtype_t dtype) {
  size_t bytes = tpu_dtype_bytes(dtype) * MOST;
  tpui_isa_limit(TPUI_ISA_BASE);
  void* expected = fill_new(d, dtype, MOST);
  for (tpui_isa_t isa = 0; isa < TPUI_ISA_COUNT; ++isa) {
    tpui_isa_limit(isa);
    char* out = calloc(1, bytes);
    static const int64_t cuts[] = {3000, MOST, 0, 1024, 1024, 1028, 1028, 3000};
    pthread_t threads[4];
    fill_t fills[4];
    for (int k = 0; k < 4; ++k) {
      fills[k] = (fill_t){d, dtype, cuts[2 * k], cuts[2 * k + 1], out, k % 2 == 0};
      (void)pthread_create(&threads[k], NULL, fill_in_thread, &fills[k]);
    }
    for (int k = 0; k < 4; ++k) (void)pthread_join(threads[k], NULL);
    if (memcmp(out, expected, bytes) != 0) {
      tpu_test_fail(__FILE__, __LINE__, "kind %d, %s, set %d differs", (int)d->kind,
                    tpu_dtype_name(dtype), (int)isa);
    }
    free(out);
  }
  free(expected);
}

TPU_TEST(random_bits_do_not_depend_on_machine_or_threads) {
  for (tpu_random_kind_t kind = 0; kind < TPU_RANDOM_KIND_COUNT; ++kind) {
    for (int k = 0; k < ALL_DTYPES; ++k) {
      tpu_random_draw_t d = draw_of(kind, all_dtypes[k]);
      if (!tpu_random_takes(kind, d.math, all_dtypes[k])) continue;
      check_every_way(&d, all_dtypes[k]);
      if (kind == TPU_RANDOM_INTEGERS) {
        d.range = 1000000000000;
        check_every_way(&d, all_dtypes[k]);
      }
    }
  }
  tpu_random_draw_t d = draw_of(TPU_RANDOM_UNIFORM, TPU_F32);
  d.a.number = 0;
  d.b.number = 1e-40;  // results are denormal
  check_every_way(&d, TPU_F32);
  float* out = fill_new(&d, TPU_F32, 1000);
  int zeros = 0;
  for (int i = 0; i < 1000; ++i) zeros += out[i] == 0;
  TPU_EXPECT(zeros < 10);
  free(out);
}

/* --- statistics --- */

static double distribution(const tpu_random_draw_t* d, double x) {
  double a = d->a.number, b = d->b.number;
  switch (d->kind) {
    case TPU_RANDOM_UNIFORM: return fmin(fmax((x - a) / (b - a), 0), 1);
    case TPU_RANDOM_NORMAL: return 0.5 * erfc(-(x - a) / b * M_SQRT1_2);
    case TPU_RANDOM_LOG_NORMAL: return 0.5 * erfc(-(log(x) - a) / b * M_SQRT1_2);
    case TPU_RANDOM_EXPONENTIAL: return -expm1(-a * x);
    default: return 0.5 + atan((x - a) / b) / M_PI;
  }
}

static int compare_doubles(const void* x, const void* y) {
  double a = *(const double*)x, b = *(const double*)y;
  return (a > b) - (a < b);
}

/* Kolmogorov and Smirnov's distance. */
TPU_TEST(random_numbers_have_their_distribution) {
  enum { DRAWS = 100000 };
  for (tpu_random_kind_t kind = 0; kind <= TPU_RANDOM_CAUCHY; ++kind) {
    for (int k = 0; k < 2; ++k) {
      tpu_random_draw_t d = draw_of(kind, float_dtypes[k]);
      void* out = fill_new(&d, float_dtypes[k], DRAWS);
      double* x = malloc(DRAWS * sizeof(double));
      double neighbours = 0, distance = 0;
      for (int i = 0; i < DRAWS; ++i) x[i] = distribution(&d, value_at(float_dtypes[k], out, i));
      for (int i = 1; i < DRAWS; ++i) neighbours += (x[i] - 0.5) * (x[i - 1] - 0.5);
      TPU_EXPECT(fabs(neighbours / DRAWS) < 5.0 / 12 / sqrt(DRAWS));
      qsort(x, DRAWS, sizeof(double), compare_doubles);
      for (int i = 0; i < DRAWS; ++i) distance = fmax(distance, fabs(x[i] - (i + 0.5) / DRAWS));
      TPU_EXPECT(distance < 2.0 / sqrt(DRAWS));
      free(x);
      free(out);
    }
  }
}

/* --- permutations --- */

/* Deals out to buckets of 4096 or more, then shuffles each. */
static void permutation_oracle(uint64_t seed, uint64_t offset, int64_t count, int64_t* out) {
  const tpu_random_draw_t d = {.seed = seed, .offset = offset};
  int bits = 0;
  while (count > 65536 && bits < 10 && count >> (bits + 12) > 0) ++bits;
  int64_t done = 0;
  for (int64_t b = 0; b < INT64_C(1) << bits; ++b) {
    int64_t first = done;
    for (int64_t i = 0; i < count; ++i) {
      if (bits > 0 && word_at(&d, 0, i) >> (32 - bits) != b) continue;
      uint64_t word = word_at(&d, bits > 0, done);
      int64_t place = first + (int64_t)(word * (uint64_t)(done - first + 1) >> 32);
      out[done++] = out[place];
      out[place] = i;
    }
  }
}

TPU_TEST(random_permutations_equal_the_oracle) {
  static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 64, 1000, 1024, 1025, 65536, 65537, 140001};
  for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); ++k) {
    int64_t n = sizes[k];
    uint64_t seed = 42 + k, offset = k * 1000;
    int64_t* expected = malloc((size_t)n * 8 + 1);
    permutation_oracle(seed, offset, n, expected);
    int64_t* out = malloc((size_t)n * 8 + 1);
    int32_t* narrow = malloc((size_t)n * 4 + 1);
    TPU_EXPECT_OK(tpu_random_permutation(seed, offset, TPU_I64, n, out));
    TPU_EXPECT_OK(tpu_random_permutation(seed, offset, TPU_I32, n, narrow));
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      wrong += out[i] != expected[i] || narrow[i] != expected[i];
    }
    TPU_EXPECT_EQ(wrong, 0);
    free(narrow);
    free(out);
    free(expected);
  }
}

/* Each number once, and each number and place equally often together (chi-squared by cells). */
TPU_TEST(random_permutations_are_random) {
  enum { CELLS = 16, LENGTH = 200000 };
  static int32_t out[LENGTH];
  static int8_t seen[LENGTH];
  double total = 0;
  TPU_EXPECT_OK(tpu_random_permutation(3, 4, TPU_I32, LENGTH, out));
  int64_t cells[CELLS][CELLS] = {{0}};
  for (int64_t i = 0; i < LENGTH; ++i) {
    ++seen[out[i]];
    ++cells[i * CELLS / LENGTH][(int64_t)out[i] * CELLS / LENGTH];
  }
  for (int i = 0; i < LENGTH; ++i) TPU_EXPECT_EQ(seen[i], 1);
  for (int i = 0; i < CELLS * CELLS; ++i) {
    double mean = (double)LENGTH / CELLS / CELLS, off = (double)(&cells[0][0])[i] - mean;
    total += off * off / mean;
  }
  TPU_EXPECT(total > 225 - 5 * 21 && total < 225 + 5 * 21);  // 15 * 15 degrees of freedom
  int counts24[24] = {0};
  for (uint64_t offset = 0; offset < 24000; ++offset) {  // all orders of four
    int64_t four[4];
    TPU_EXPECT_OK(tpu_random_permutation(9, offset, TPU_I64, 4, four));
    int64_t second = four[1] - (four[1] > four[0]);
    int64_t third = four[2] - (four[2] > four[0]) - (four[2] > four[1]);
    ++counts24[four[0] * 6 + second * 2 + third];
  }
  for (int i = 0; i < 24; ++i) TPU_EXPECT(counts24[i] > 840 && counts24[i] < 1160);
}

static tpu_status_t permute_many(void* out) {
  return tpu_random_permutation(1, 2, TPU_I32, 100000, out);
}

TPU_TEST(random_permutations_survive_every_lost_allocation) {
  int32_t* out = malloc(100000 * sizeof(int32_t));
  TPU_EXPECT(TPU_OOM_SWEEP(permute_many, out) >= 2);
  free(out);
}

/* --- classes by weight --- */

enum { ROWS = 3, CLASSES = 37 };

static void make_weights(double weights[ROWS * CLASSES]) {
  for (int i = 0; i < ROWS * CLASSES; ++i) weights[i] = i % 5 == 0 ? 0 : 0.1 + i % 7;
}

TPU_TEST(random_classes_equal_the_oracle) {
  double weights[ROWS * CLASSES];
  float narrow[ROWS * CLASSES];
  make_weights(weights);
  for (int i = 0; i < ROWS * CLASSES; ++i) narrow[i] = (float)weights[i];
  for (int wide = 0; wide < 2; ++wide) {
    for (int64_t samples = 1; samples <= CLASSES; samples += 4) {
      int64_t again[ROWS * CLASSES], once[ROWS * CLASSES];
      tpu_random_classes_t t = {.seed = 8,
                                .offset = (uint64_t)samples,
                                .dtype = wide ? TPU_F64 : TPU_F32,
                                .classes = CLASSES,
                                .samples = samples,
                                .replacement = true,
                                .weights = wide ? (void*)weights : (void*)narrow,
                                .out = again};
      TPU_EXPECT_OK(tpu_random_draw_classes(&t, 0, ROWS));
      t.replacement = false;
      t.out = once;
      TPU_EXPECT_OK(tpu_random_draw_classes(&t, 2, ROWS));  // rows on their own
      TPU_EXPECT_OK(tpu_random_draw_classes(&t, 0, 2));
      const tpu_random_draw_t d = {.seed = 8, .offset = t.offset, .wide = true, .math = t.dtype};
      for (int64_t row = 0; row < ROWS; ++row) {
        const double* w = weights + row * CLASSES;
        double total = 0, scores[CLASSES];
        for (int c = 0; c < CLASSES; ++c) total += w[c];
        for (int c = 0; c < CLASSES; ++c) scores[c] = w[c] / -log(open_at(&d, row * CLASSES + c));
        for (int64_t s = 0; s < samples; ++s) {
          int64_t got = again[row * samples + s], best = 0;
          double x = unit_at(&d, row * samples + s, 24) * total, sum = 0;
          for (int64_t c = 0; c < got; ++c) sum += w[c];
          TPU_EXPECT(w[got] > 0 && sum <= x * 1.0001 && x < (sum + w[got]) * 1.0001);
          for (int c = 1; c < CLASSES; ++c) best = scores[c] > scores[best] ? c : best;
          if (scores[best] > 0) TPU_EXPECT_EQ(once[row * samples + s], best);
          scores[best] = -1;
        }
      }
    }
  }
}

TPU_TEST(random_classes_refuse_what_does_not_fit) {
  const float weights[4] = {1, 2, 3, 4};
  int64_t out[8];
  tpu_random_classes_t t = {
      .dtype = TPU_F32, .classes = 4, .samples = 4, .weights = weights, .out = out};
  TPU_EXPECT_OK(tpu_random_draw_classes(&t, 0, 1));
  t.samples = 5;
  TPU_EXPECT_CODE(tpu_random_draw_classes(&t, 0, 1), TPU_INVALID_ARGUMENT);
  t.replacement = true;
  TPU_EXPECT_OK(tpu_random_draw_classes(&t, 0, 1));
  t.classes = 0;
  TPU_EXPECT_CODE(tpu_random_draw_classes(&t, 0, 0), TPU_INVALID_ARGUMENT);
  t.classes = 4;
  t.dtype = TPU_BF16;
  TPU_EXPECT_CODE(tpu_random_draw_classes(&t, 0, 1), TPU_INVALID_ARGUMENT);
}

/* --- refusals --- */

TPU_TEST(random_refuses_what_it_does_not_take) {
  char out[64];
  tpu_random_draw_t d = draw_of(TPU_RANDOM_NORMAL, TPU_F32);
  TPU_EXPECT_OK(tpu_random_fill(&d, TPU_F32, 4, 4, out));
  TPU_EXPECT_CODE(tpu_random_fill(&d, TPU_F32, 2, 4, out), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_random_fill(&d, TPU_F64, 0, 4, out), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_random_fill(&d, TPU_I32, 0, 4, out), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_random_fill(&d, TPU_F8E5M2, 0, 4, out), TPU_INVALID_ARGUMENT);
  d.math = TPU_F64;
  TPU_EXPECT_CODE(tpu_random_fill(&d, TPU_F32, 0, 4, out), TPU_INVALID_ARGUMENT);
  d.math = TPU_BF16;
  TPU_EXPECT_CODE(tpu_random_fill(&d, TPU_BF16, 0, 4, out), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_random_permutation(0, 0, TPU_F32, 4, out), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_random_permutation(0, 0, TPU_I64, -1, out), TPU_INVALID_ARGUMENT);
}
