/* Variates in one floating type. No include guard: distributions.c includes this once for float and
 * once for double, after defining (the file undefines them)
 *   REAL, BITS, SIGNED  the type, and the integers of its size
 *   NAME(x)             x with the type's suffix
 *   FRACTION_BITS       stored bits of the significand
 *   LOG_USED, ...       how many terms of a series the type needs
 *   LN2_HIGH, LN2_LOW   log(2) in two parts; products of the first with an exponent are exact
 *   EXP_LEAST, EXP_MOST exp is 0 below and infinite above
 * and open, unit (element i's draw) and units (draws in [0, 1) as fine as the result's dtype).
 *
 * Everything is plain arithmetic in a fixed order, so loops over it become vector code and give the
 * same bits in each instruction set. Series are Taylor's: ranges are small enough.
 */

static inline BITS NAME(bits_of)(REAL x) {
  BITS bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

static inline REAL NAME(from_bits)(BITS bits) {
  REAL x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

/* first * z^(n-1) + ... + last, of the table's last n terms. */
static inline REAL NAME(polynomial)(const double* terms, int count, int used, REAL z) {
  REAL sum = (REAL)terms[count - used];
  for (int k = count - used + 1; k < count; ++k) sum = sum * z + (REAL)terms[k];
  return sum;
}

/* Of positive normal numbers. x = m 2^e with m in [sqrt(1/2), sqrt(2)), log(m) = 2 artanh(s) with
 * s = (m - 1) / (m + 1). */
static inline REAL NAME(log_of)(REAL x) {
  const BITS half = NAME(bits_of)((REAL)0.7071067811865476);
  BITS above = NAME(bits_of)(x) - half;
  // From 32-bit integers, which all sets can convert.
  const int narrow = 8 * sizeof(BITS) - 32;
  REAL exponent = (REAL)((int32_t)(above >> narrow) >> (FRACTION_BITS - narrow));
  REAL m = NAME(from_bits)((above & (((BITS)1 << FRACTION_BITS) - 1)) + half);
  REAL s = (m - 1) / (m + 1), z = s * s;
  REAL rest = s * z * NAME(polynomial)(log_terms, LOG_TERMS, LOG_USED, z);
  return exponent * LN2_HIGH + (2 * s + (rest + exponent * LN2_LOW));
}

/* log(1 - p), p in [0, 1]. */
static inline REAL NAME(log_complement)(REAL p) {
  REAL left = 1 - p;
  if (left <= 0) return -(REAL)INFINITY;
  if (left == 1) return -p;
  return NAME(log_of)(left) * (p / (1 - left));  // makes up for the rounding of `left`
}

/* sin(x), |x| <= pi / 2. */
static inline REAL NAME(sine_of)(REAL x) {
  REAL z = x * x;
  return x + x * z * NAME(polynomial)(sine_terms, SINE_TERMS, SINE_USED, z);
}

/* x = n log(2) + r, |r| <= log(2) / 2. The power of two is applied in two steps, as it may lie
 * outside what one number can hold. */
static inline REAL NAME(exp_of)(REAL x) {
  const REAL rounder = (REAL)1.5 * (REAL)((BITS)1 << FRACTION_BITS);
  x = x < EXP_LEAST ? EXP_LEAST : x;
  x = x > EXP_MOST ? EXP_MOST : x;  // NaN stays
  REAL shifted = x * (REAL)1.4426950408889634 + rounder, n = shifted - rounder;
  REAL r = x - n * LN2_HIGH - n * LN2_LOW;
  REAL sum = 1 + r * NAME(polynomial)(exp_terms, EXP_TERMS, EXP_USED, r);
  SIGNED power = (SIGNED)(NAME(bits_of)(shifted) - NAME(bits_of)(rounder));
  SIGNED first = power >> 1, bias = ((SIGNED)1 << (8 * sizeof(REAL) - 2 - FRACTION_BITS)) - 1;
  REAL scale = NAME(from_bits)((BITS)(first + bias) << FRACTION_BITS);
  return sum * scale * NAME(from_bits)((BITS)(power - first + bias) << FRACTION_BITS);
}

/* --- chunks: out[i] for all draws of the chunk --- */

/* cos(2 pi t) and sin(2 pi t) are sin(2 pi s), s being the distance in turns from where the wave is
 * 0, which is exact. */
static inline void NAME(normals)(const chunk_t* c, REAL* out) {
  for (int i = 0; i < c->drawn / 2; ++i) {
    REAL u = NAME(open)(c, 2 * i), t = NAME(unit)(c, 2 * i + 1);
    REAL radius = sqrt(-2 * NAME(log_of)(u));
    REAL from_quarter = fabs(t - (REAL)0.25);
    REAL cosine = fabs(t - (REAL)0.5) - (REAL)0.25;
    REAL sine = fabs(from_quarter - (REAL)0.5) - (REAL)0.25;
    out[2 * i] = radius * NAME(sine_of)(cosine * (REAL)6.283185307179586);
    out[2 * i + 1] = radius * NAME(sine_of)(sine * (REAL)6.283185307179586);
  }
}

static inline void NAME(normal)(const chunk_t* c, const REAL* a, const REAL* b, REAL* out) {
  NAME(normals)(c, out);
  for (int i = 0; i < c->count; ++i) out[i] = out[i] * b[i] + a[i];
}

static inline void NAME(log_normal)(const chunk_t* c, const REAL* a, const REAL* b, REAL* out) {
  NAME(normal)(c, a, b, out);
  for (int i = 0; i < c->count; ++i) out[i] = NAME(exp_of)(out[i]);
}

static inline void NAME(uniform)(const chunk_t* c, const REAL* a, const REAL* b, REAL* out) {
  NAME(units)(c, out);
  for (int i = 0; i < c->count; ++i) {
    REAL x = out[i] * (b[i] - a[i]) + a[i];
    out[i] = x < b[i] ? x : a[i];  // rounding can reach b
  }
}

static inline void NAME(exponential)(const chunk_t* c, const REAL* a, REAL* out) {
  for (int i = 0; i < c->count; ++i) out[i] = -NAME(log_of)(NAME(open)(c, i)) / a[i];
}

/* tan(pi t), |t| < 1/2: a quotient of two sines, both of exact distances. */
static inline void NAME(cauchy)(const chunk_t* c, const REAL* a, const REAL* b, REAL* out) {
  const REAL pi = (REAL)3.141592653589793;
  for (int i = 0; i < c->count; ++i) {
    REAL t = NAME(open)(c, i) - (REAL)0.5, size = fabs(t);
    REAL tangent = NAME(sine_of)(pi * t) / NAME(sine_of)(pi * ((REAL)0.5 - size));
    out[i] = tangent * b[i] + a[i];
  }
}

static inline void NAME(geometric)(const chunk_t* c, const REAL* a, REAL* out) {
  if (c->draw->a.elements == NULL) {
    REAL failure = NAME(log_complement)(a[0]);
    for (int i = 0; i < c->count; ++i) out[i] = NAME(log_of)(NAME(open)(c, i)) / failure;
  } else {
    for (int i = 0; i < c->count; ++i) {
      out[i] = NAME(log_of)(NAME(open)(c, i)) / NAME(log_complement)(a[i]);
    }
  }
  for (int i = 0; i < c->count; ++i) {
    REAL trials = ceil(out[i]);
    out[i] = trials > 1 ? trials : 1;  // 0 only where a is 1
  }
}

/* 1 where the draw is below a. */
static inline void NAME(bernoulli)(const chunk_t* c, const REAL* a, uint32_t* out) {
  for (int i = 0; i < c->count; ++i) out[i] = NAME(unit)(c, i) < a[i];
}

/* The kinds whose results are REAL numbers. */
static inline void NAME(draw)(const chunk_t* c, REAL* out) {
  const REAL *a = c->a, *b = c->b;
  switch (c->draw->kind) {
    case TPU_RANDOM_UNIFORM: NAME(uniform)(c, a, b, out); break;
    case TPU_RANDOM_NORMAL: NAME(normal)(c, a, b, out); break;
    case TPU_RANDOM_LOG_NORMAL: NAME(log_normal)(c, a, b, out); break;
    case TPU_RANDOM_EXPONENTIAL: NAME(exponential)(c, a, out); break;
    case TPU_RANDOM_CAUCHY: NAME(cauchy)(c, a, b, out); break;
    default: NAME(geometric)(c, a, out);
  }
}

#undef REAL
#undef BITS
#undef SIGNED
#undef NAME
#undef FRACTION_BITS
#undef LOG_USED
#undef SINE_USED
#undef EXP_USED
#undef LN2_HIGH
#undef LN2_LOW
#undef EXP_LEAST
#undef EXP_MOST
