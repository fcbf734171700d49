#include "host/distributions.h"

#include <string.h>
#include <tgmath.h>

#include "base/series.h"
#include "host/isa.h"

typedef tpui_chunk_t chunk_t;

/* --- series: a table's last terms are a shorter series of the same function --- */

/* log: 2/(2k+1), k = 10 ... 1 */
enum { LOG_TERMS = 10, SINE_TERMS = 10, EXP_TERMS = 13 };
static const double log_terms[LOG_TERMS] = {2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13,
                                            2.0 / 11, 2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3};
static const double sine_terms[SINE_TERMS] = {TPU_SINE_SERIES};
/* exp: 1/k!, k = 13 ... 1 */
static const double exp_terms[EXP_TERMS] = {1 / 6227020800.0,
                                            1 / 479001600.0,
                                            1 / 39916800.0,
                                            1 / 3628800.0,
                                            1 / 362880.0,
                                            1 / 40320.0,
                                            1 / 5040.0,
                                            1 / 720.0,
                                            1 / 120.0,
                                            1 / 24.0,
                                            1 / 6.0,
                                            1 / 2.0,
                                            1.0};

/* --- element i's draw: in (0, 1), and in [0, 1) --- */

/* The upper bits of a word; below 2^31, as conversions from signed integers are the fast ones. */
static inline int32_t upper_bits(uint32_t word, int count) {
  return (int32_t)(word >> (32 - count));
}

static inline float open_f32(const chunk_t* c, int i) {
  return ((float)upper_bits(c->words[i], 23) + 0.5f) * 0x1p-23f;
}

static inline float unit_f32(const chunk_t* c, int i) {
  return (float)upper_bits(c->words[i], 24) * 0x1p-24f;
}

static inline double open_f64(const chunk_t* c, int i) {
  double high = (double)upper_bits(c->words[i], 26) * 0x1p26;
  return (high + (double)upper_bits(c->low[i], 26) + 0.5) * 0x1p-52;
}

static inline double unit_f64(const chunk_t* c, int i) {
  double high = (double)upper_bits(c->words[i], 27) * 0x1p26;
  return (high + (double)upper_bits(c->low[i], 26)) * 0x1p-53;
}

static inline void units_f32(const chunk_t* c, float* out) {
  int bits = c->result == TPU_F16 ? 11 : c->result == TPU_BF16 ? 8 : 24;
  float step = 1.0f / (float)(1 << bits);
  for (int i = 0; i < c->count; ++i) out[i] = (float)upper_bits(c->words[i], bits) * step;
}

static inline void units_f64(const chunk_t* c, double* out) {
  for (int i = 0; i < c->count; ++i) out[i] = unit_f64(c, i);
}

/* --- variates --- */

#define REAL float
#define BITS uint32_t
#define SIGNED int32_t
#define NAME(name) name##_f32
#define FRACTION_BITS 23
#define LOG_USED 4
#define SINE_USED 5
#define EXP_USED 7
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f
#define EXP_LEAST -104.0f
#define EXP_MOST 89.0f
#include "host/variates.h"

#define REAL double
#define BITS uint64_t
#define SIGNED int64_t
#define NAME(name) name##_f64
#define FRACTION_BITS 52
#define LOG_USED 10
#define SINE_USED 10
#define EXP_USED 13
#define LN2_HIGH 0x1.62e42feep-1
#define LN2_LOW 0x1.a39ef35793c76p-33
#define EXP_LEAST -746.0
#define EXP_MOST 710.0
#include "host/variates.h"

/* --- results --- */

/* To nearest, ties to even. */
static inline uint16_t to_bf16(float x) {
  uint32_t bits = bits_of_f32(x);
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (uint16_t)(x == x ? rounded : 0x7fc0);
}

static inline uint16_t to_f16(float x) {
  uint32_t bits = bits_of_f32(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
  // 1/2 has a float16 denormal's last bit as its own, so the addition rounds there.
  uint32_t denormal = bits_of_f32(from_bits_f32(size) + 0.5f) - 0x3f000000;
  uint32_t infinite = x == x ? 0x7c00 : 0x7e00;
  uint32_t half = size < 0x38800000 ? denormal : normal;
  return (uint16_t)(sign | (size < 0x47800000 ? half : infinite));
}

static inline void write_floats(const chunk_t* c, const float* x) {
  uint16_t* halves = c->out;
  if (c->result == TPU_F32) {
    memcpy(c->out, x, (size_t)c->count * sizeof(float));
  } else if (c->result == TPU_F16) {
    for (int i = 0; i < c->count; ++i) halves[i] = to_f16(x[i]);
  } else {
    for (int i = 0; i < c->count; ++i) halves[i] = to_bf16(x[i]);
  }
}

/* 1 in the result's dtype. */
static uint64_t bits_of_one(tpu_dtype_t dtype) {
  switch (dtype) {
    case TPU_F16: return 0x3c00;
    case TPU_BF16: return 0x3f80;
    case TPU_F32: return 0x3f800000;
    case TPU_F64: return UINT64_C(0x3ff0000000000000);
    default: return 1;
  }
}

#define WRITE(type, value)                                    \
  do {                                                        \
    type* to = c->out;                                        \
    for (int i = 0; i < c->count; ++i) to[i] = (type)(value); \
  } while (0)

/* `x` holds 0 and 1. */
static inline void write_decisions(const chunk_t* c, const uint32_t* x) {
  uint64_t one = bits_of_one(c->result);
  switch (tpu_dtype_bytes(c->result)) {
    case 1: WRITE(uint8_t, x[i]); break;
    case 2: WRITE(uint16_t, x[i] * (uint32_t)one); break;
    case 4: WRITE(uint32_t, x[i] * (uint32_t)one); break;
    default: WRITE(uint64_t, x[i] != 0 ? one : 0);
  }
}

static inline void write_integers(const chunk_t* c, const int64_t* x) {
  switch (c->result) {
    case TPU_BOOL: WRITE(uint8_t, x[i] != 0); break;
    case TPU_F16: WRITE(uint16_t, to_f16((float)x[i])); break;
    case TPU_BF16: WRITE(uint16_t, to_bf16((float)x[i])); break;
    case TPU_F32: WRITE(float, x[i]); break;
    case TPU_F64: WRITE(double, x[i]); break;
    case TPU_I8:
    case TPU_U8: WRITE(uint8_t, x[i]); break;
    case TPU_I16:
    case TPU_U16: WRITE(uint16_t, x[i]); break;
    case TPU_I32:
    case TPU_U32: WRITE(uint32_t, x[i]); break;
    default: WRITE(int64_t, x[i]);
  }
}

/* --- integers --- */

__extension__ typedef unsigned __int128 wide_t;

/* n mod d without a division: the quotient is the upper half of a product, corrected. */
static inline void fast_remainders(const uint32_t* words, int count, uint32_t d, uint32_t* out) {
  int log = 0;
  while (((uint64_t)1 << log) < d) ++log;
  uint32_t factor = (uint32_t)((((((uint64_t)1 << log) - d) << 32) / d) + 1);
  int first = log > 0, second = log > 0 ? log - 1 : 0;
  for (int i = 0; i < count; ++i) {
    uint32_t n = words[i], high = (uint32_t)((uint64_t)n * factor >> 32);
    uint32_t quotient = (high + ((n - high) >> first)) >> second;
    out[i] = n - quotient * d;
  }
}

/* The same for 64 bits, whose product takes 128. */
static inline void fast_remainders64(const uint32_t* high, const uint32_t* low, int count,
                                     uint64_t d, int64_t* out) {
  int log = 0;
  while (log < 64 && UINT64_C(1) << log < d) ++log;
  wide_t rest = ((wide_t)1 << log) - d;
  uint64_t factor = (uint64_t)((rest << 64) / d) + 1;
  int first = log > 0, second = log > 0 ? log - 1 : 0;
  for (int i = 0; i < count; ++i) {
    uint64_t n = (uint64_t)high[i] << 32 | low[i], upper = (uint64_t)((wide_t)n * factor >> 64);
    uint64_t quotient = (upper + ((n - upper) >> first)) >> second;
    out[i] = (int64_t)(n - quotient * d);
  }
}

/* Integers below the draw's range. */
static inline void draw_below(const chunk_t* c, int64_t* out) {
  uint64_t range = c->draw->range;
  if (!tpui_chunk_needs_low(c->draw)) {
    uint32_t rest[TPUI_CHUNK];
    fast_remainders(c->words, c->count, (uint32_t)range, rest);
    for (int i = 0; i < c->count; ++i) out[i] = rest[i];
  } else if (range == 0) {
    for (int i = 0; i < c->count; ++i) {
      out[i] = (int64_t)((uint64_t)c->words[i] << 32 | c->low[i]);
    }
  } else {
    fast_remainders64(c->words, c->low, c->count, range, out);
  }
}

static inline void draw_integers(const chunk_t* c, int64_t* out) {
  uint64_t from = (uint64_t)c->draw->from;
  draw_below(c, out);
  for (int i = 0; i < c->count; ++i) out[i] = (int64_t)((uint64_t)out[i] + from);
}

/* --- a chunk --- */

static inline void fill_chunk(const chunk_t* c) {
  bool wide = c->draw->math == TPU_F64;
  if (c->draw->kind == TPU_RANDOM_INTEGERS) {
    int64_t x[TPUI_CHUNK];
    draw_integers(c, x);
    write_integers(c, x);
  } else if (c->draw->kind == TPU_RANDOM_BERNOULLI) {
    uint32_t x[TPUI_CHUNK];
    if (wide) {
      bernoulli_f64(c, c->a, x);
    } else {
      bernoulli_f32(c, c->a, x);
    }
    write_decisions(c, x);
  } else if (wide) {
    double x[TPUI_CHUNK];
    draw_f64(c, x);
    memcpy(c->out, x, (size_t)c->count * sizeof(double));
  } else {
    float x[TPUI_CHUNK];
    draw_f32(c, x);
    write_floats(c, x);
  }
}

TPUI_ISA_TABLE(fill_functions, fill_chunk, (const chunk_t* c), (c))

void tpui_chunk_fill(const tpui_chunk_t* chunk) { fill_functions[tpui_isa()](chunk); }

bool tpui_chunk_needs_low(const tpu_random_draw_t* draw) {
  if (draw->kind != TPU_RANDOM_INTEGERS) return draw->math == TPU_F64;
  return draw->range == 0 || draw->range > UINT32_MAX;
}
