/* Complex functions by parts. Most are computed in one quadrant, where the signs of zeros need no
 * thought, and mirrored; then what is special about infinities, NaN and zeros is put in. */
#include "lower/complex.h"

#include <math.h>
#include <string.h>

#include "lower/pointwise.h"

typedef struct parts_t {
  tpui_hlo_t re, im;
} parts_t;

static parts_t split_parts(tpui_builder_t* b, tpui_hlo_t z) {
  return (parts_t){tpui_unary(b, "real", z), tpui_unary(b, "imag", z)};
}

static tpui_hlo_t join_parts(tpui_builder_t* b, parts_t z) {
  tpui_broadcast_pair(b, &z.re, &z.im);
  return tpui_binary(b, "complex", z.re, z.im);
}

static tpui_hlo_t negative_of(tpui_builder_t* b, tpui_hlo_t x) {
  return tpui_unary(b, "negate", x);
}

static tpui_hlo_t negated_if(tpui_builder_t* b, tpui_hlo_t condition, tpui_hlo_t x) {
  return tpui_select(b, condition, negative_of(b, x), x);
}

static tpui_hlo_t either_of(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  return tpui_binary(b, "or", x, y);
}

static tpui_hlo_t both_of(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  return tpui_binary(b, "and", x, y);
}

static tpui_hlo_t is_infinite(tpui_builder_t* b, tpui_hlo_t x) {
  return tpui_compare_constant(b, "EQ", tpui_unary(b, "abs", x), INFINITY);
}

static tpui_hlo_t is_finite(tpui_builder_t* b, tpui_hlo_t x) {
  return tpui_unary(b, "is_finite", x);
}

static tpui_hlo_t is_zero(tpui_builder_t* b, tpui_hlo_t x) {
  return tpui_compare_constant(b, "EQ", x, 0.0);
}

static tpui_hlo_t set_where(tpui_builder_t* b, tpui_hlo_t condition, double value, tpui_hlo_t x) {
  return tpui_select(b, condition, tpui_like(b, x, value), x);
}

static tpui_hlo_t infinite_part(tpui_builder_t* b, parts_t z) {
  return either_of(b, is_infinite(b, z.re), is_infinite(b, z.im));
}

static parts_t plain_parts(tpui_builder_t* b, const char* name, parts_t z) {
  tpui_hlo_t joined = join_parts(b, z);
  bool is_chlo = strncmp(name, "chlo.", 5) == 0;
  return split_parts(b, is_chlo ? tpui_chlo(b, name + 5, joined) : tpui_unary(b, name, joined));
}

/* z times i, and times -i. */
static parts_t turned_left(tpui_builder_t* b, parts_t z) {
  return (parts_t){negative_of(b, z.im), z.re};
}
static parts_t turned_right(tpui_builder_t* b, parts_t z) {
  return (parts_t){z.im, negative_of(b, z.re)};
}

/* --- by quadrant: both parts of z are positive or NaN --- */

static parts_t asinh_quadrant(tpui_builder_t* b, parts_t z) {
  parts_t r = plain_parts(b, "chlo.asinh", z);
  tpui_hlo_t infinite = infinite_part(b, z);
  r.re = set_where(b, infinite, INFINITY, r.re);
  r.im = set_where(b, is_zero(b, z.im), 0.0, r.im);
  r.im = tpui_select(b, infinite, tpui_binary(b, "atan2", z.im, z.re), r.im);
  return r;
}

static parts_t atanh_quadrant(tpui_builder_t* b, parts_t z) {
  parts_t r = plain_parts(b, "chlo.atanh", z);
  tpui_hlo_t infinite = infinite_part(b, z);
  r.re = set_where(b, either_of(b, infinite, is_zero(b, z.re)), 0.0, r.re);
  tpui_hlo_t inside = both_of(b, is_zero(b, z.im), tpui_compare_constant(b, "LE", z.re, 1.0));
  r.im = set_where(b, inside, 0.0, r.im);
  r.im = set_where(b, infinite, M_PI / 2, r.im);
  tpui_hlo_t nowhere = both_of(b, tpui_is_nan(b, z.re), is_finite(b, z.im));
  r.im = set_where(b, either_of(b, nowhere, tpui_is_nan(b, z.im)), NAN, r.im);
  return r;
}

/* sinh: (sinh x cos y, cosh x sin y); cosh: (cosh x cos y, sinh x sin y). */
static parts_t hyperbolic_quadrant(tpui_builder_t* b, parts_t z, bool is_cosh) {
  tpui_hlo_t sinh = tpui_chlo(b, "sinh", z.re), cosh = tpui_chlo(b, "cosh", z.re);
  tpui_hlo_t cosine = tpui_unary(b, "cosine", z.im), sine = tpui_unary(b, "sine", z.im);
  parts_t r = {tpui_mul(b, is_cosh ? cosh : sinh, cosine),
               tpui_mul(b, is_cosh ? sinh : cosh, sine)};
  tpui_hlo_t real_axis = is_zero(b, z.im), imag_axis = is_zero(b, z.re);
  // Zero times what is not finite is zero here.
  tpui_hlo_t axis = is_cosh ? either_of(b, real_axis, imag_axis) : real_axis;
  r.im = set_where(b, both_of(b, axis, tpui_is_nan(b, r.im)), 0.0, r.im);
  if (!is_cosh) r.re = set_where(b, both_of(b, imag_axis, tpui_is_nan(b, r.re)), 0.0, r.re);
  tpui_hlo_t undirected =
      both_of(b, is_infinite(b, z.re), tpui_unary(b, "not", is_finite(b, z.im)));
  r.re = set_where(b, undirected, INFINITY, r.re);
  return r;
}

static parts_t tanh_quadrant(tpui_builder_t* b, parts_t z) {
  parts_t r = plain_parts(b, "tanh", z);
  tpui_hlo_t infinite = is_infinite(b, z.re);
  tpui_hlo_t twice = tpui_unary(b, "sine", tpui_binary_constant(b, "multiply", z.im, 2.0));
  tpui_hlo_t side = negated_if(b, tpui_compare_constant(b, "LT", twice, 0.0),
                               tpui_full_like(b, twice, twice.dtype, 0.0));
  r.re = set_where(b, is_zero(b, z.re), 0.0, r.re);
  r.re = set_where(b, infinite, 1.0, r.re);
  r.im = set_where(b, is_zero(b, z.im), 0.0, r.im);
  r.im = tpui_select(b, infinite, side, r.im);
  return r;
}

/* --- by half: the imaginary part is positive or NaN --- */

static parts_t acosh_half(tpui_builder_t* b, parts_t z) {
  parts_t r = plain_parts(b, "chlo.acosh", z);
  tpui_hlo_t infinite = infinite_part(b, z);
  r.re = set_where(b, infinite, INFINITY, r.re);
  r.im = set_where(b, is_zero(b, z.re), M_PI / 2, r.im);
  r.im = tpui_select(b, infinite, tpui_binary(b, "atan2", z.im, z.re), r.im);
  return r;
}

static parts_t sqrt_half(tpui_builder_t* b, parts_t z) {
  parts_t r = plain_parts(b, "sqrt", z);
  tpui_hlo_t right = tpui_compare_constant(b, "EQ", z.re, INFINITY);
  tpui_hlo_t left = tpui_compare_constant(b, "EQ", z.re, -INFINITY);
  tpui_hlo_t rest = set_where(b, is_finite(b, z.im), 0.0, z.im);  // NaN stays NaN
  tpui_hlo_t axis = is_zero(b, z.im);
  r.re = set_where(b, both_of(b, axis, tpui_compare_constant(b, "LE", z.re, 0.0)), 0.0, r.re);
  r.im = set_where(b, both_of(b, axis, tpui_compare_constant(b, "GE", z.re, 0.0)), 0.0, r.im);
  r.re = set_where(b, right, INFINITY, tpui_select(b, left, rest, r.re));
  r.im = set_where(b, left, INFINITY, tpui_select(b, right, rest, r.im));
  tpui_hlo_t up = is_infinite(b, z.im);
  return (parts_t){set_where(b, up, INFINITY, r.re), set_where(b, up, INFINITY, r.im)};
}

/* --- anywhere --- */

typedef enum symmetry_t { ODD, EVEN, CONJUGATE } symmetry_t;

/* f on the quadrant or half that its symmetry leaves, mirrored to where z is. */
static parts_t mirror_parts(tpui_builder_t* b, parts_t z, symmetry_t symmetry,
                            parts_t (*f)(tpui_builder_t* b, parts_t z)) {
  tpui_hlo_t left = tpui_signbit(b, z.re), low = tpui_signbit(b, z.im);
  parts_t folded = {symmetry == CONJUGATE ? z.re : tpui_unary(b, "abs", z.re),
                    tpui_unary(b, "abs", z.im)};
  parts_t r = f(b, folded);
  if (symmetry == ODD) r.re = negated_if(b, left, r.re);
  r.im = negated_if(b, low, r.im);
  if (symmetry == EVEN) r.im = negated_if(b, left, r.im);
  return r;
}

static parts_t sinh_quadrant(tpui_builder_t* b, parts_t z) {
  return hyperbolic_quadrant(b, z, false);
}
static parts_t cosh_quadrant(tpui_builder_t* b, parts_t z) {
  return hyperbolic_quadrant(b, z, true);
}

static parts_t asinh_of(tpui_builder_t* b, parts_t z) {
  return mirror_parts(b, z, ODD, asinh_quadrant);
}
static parts_t atanh_of(tpui_builder_t* b, parts_t z) {
  return mirror_parts(b, z, ODD, atanh_quadrant);
}
static parts_t sinh_of(tpui_builder_t* b, parts_t z) {
  return mirror_parts(b, z, ODD, sinh_quadrant);
}
static parts_t cosh_of(tpui_builder_t* b, parts_t z) {
  return mirror_parts(b, z, EVEN, cosh_quadrant);
}
static parts_t tanh_of(tpui_builder_t* b, parts_t z) {
  return mirror_parts(b, z, ODD, tanh_quadrant);
}
static parts_t acosh_of(tpui_builder_t* b, parts_t z) {
  return mirror_parts(b, z, CONJUGATE, acosh_half);
}
static parts_t sqrt_of(tpui_builder_t* b, parts_t z) {
  return mirror_parts(b, z, CONJUGATE, sqrt_half);
}

static parts_t rsqrt_of(tpui_builder_t* b, parts_t z) {
  tpui_hlo_t root = join_parts(b, sqrt_of(b, z));
  return split_parts(b, tpui_div(b, tpui_like(b, root, 1.0), root));
}

static parts_t asin_of(tpui_builder_t* b, parts_t z) {
  return turned_right(b, asinh_of(b, turned_left(b, z)));
}
static parts_t atan_of(tpui_builder_t* b, parts_t z) {
  return turned_right(b, atanh_of(b, turned_left(b, z)));
}
static parts_t sin_of(tpui_builder_t* b, parts_t z) {
  return turned_right(b, sinh_of(b, turned_left(b, z)));
}
static parts_t cos_of(tpui_builder_t* b, parts_t z) { return cosh_of(b, turned_left(b, z)); }
static parts_t tan_of(tpui_builder_t* b, parts_t z) {
  return turned_right(b, tanh_of(b, turned_left(b, z)));
}

static parts_t acos_of(tpui_builder_t* b, parts_t z) {
  tpui_hlo_t low = tpui_signbit(b, z.im);
  parts_t half = acosh_half(b, (parts_t){z.re, tpui_unary(b, "abs", z.im)});
  return (parts_t){half.im, negated_if(b, tpui_unary(b, "not", low), half.re)};
}

static parts_t exp_of(tpui_builder_t* b, parts_t z) {
  parts_t r = plain_parts(b, "exponential", z);
  tpui_hlo_t real_axis = is_zero(b, z.im), undirected = tpui_unary(b, "not", is_finite(b, z.im));
  tpui_hlo_t nothing = both_of(b, undirected, tpui_compare_constant(b, "EQ", z.re, -INFINITY));
  tpui_hlo_t all = both_of(b, undirected, tpui_compare_constant(b, "EQ", z.re, INFINITY));
  tpui_hlo_t zero = tpui_like(b, z.im, 0.0);
  zero = tpui_select(b, tpui_signbit(b, z.im), negative_of(b, zero), zero);
  r.im = tpui_select(b, real_axis, z.im, tpui_select(b, nothing, zero, r.im));
  r.im = set_where(b, all, NAN, r.im);
  r.re = set_where(b, all, INFINITY, set_where(b, nothing, 0.0, r.re));
  return r;
}

static parts_t log_of(tpui_builder_t* b, parts_t z) {
  parts_t r = plain_parts(b, "log", z);
  r.re = set_where(b, infinite_part(b, z), INFINITY, r.re);
  r.im = tpui_binary(b, "atan2", z.im, z.re);
  return r;
}

static tpui_hlo_t square_of(tpui_builder_t* b, tpui_hlo_t x) { return tpui_mul(b, x, x); }

/* Near zero the magnitude of 1 + z is 1 and little more: its logarithm is taken of the excess. */
static parts_t log1p_of(tpui_builder_t* b, parts_t z) {
  parts_t moved = {tpui_binary_constant(b, "add", z.re, 1.0), z.im};
  parts_t far = log_of(b, moved);
  tpui_hlo_t excess =
      tpui_add(b, tpui_mul(b, z.re, tpui_binary_constant(b, "add", z.re, 2.0)), square_of(b, z.im));
  tpui_hlo_t near = tpui_binary_constant(b, "multiply", tpui_unary(b, "log_plus_one", excess), 0.5);
  near = tpui_select(b, is_zero(b, excess), z.re, near);
  tpui_hlo_t is_near =
      tpui_compare_constant(b, "LT", tpui_add(b, square_of(b, z.re), square_of(b, z.im)), 0.25);
  far.re = tpui_select(b, is_near, near, far.re);
  return far;
}

static parts_t expm1_of(tpui_builder_t* b, parts_t z) {
  tpui_hlo_t half = tpui_unary(b, "sine", tpui_binary_constant(b, "multiply", z.im, 0.5));
  tpui_hlo_t grown = tpui_unary(b, "exponential_minus_one", z.re);
  tpui_hlo_t real = tpui_mul(b, grown, tpui_unary(b, "cosine", z.im));
  tpui_hlo_t less = tpui_binary_constant(b, "multiply", square_of(b, half), 2.0);
  return (parts_t){tpui_sub(b, real, less),
                   tpui_mul(b, tpui_unary(b, "exponential", z.re), tpui_unary(b, "sine", z.im))};
}

static parts_t logistic_of(tpui_builder_t* b, parts_t z) {
  parts_t e = exp_of(b, (parts_t){negative_of(b, z.re), negative_of(b, z.im)});
  e.re = tpui_binary_constant(b, "add", e.re, 1.0);
  tpui_hlo_t below = join_parts(b, e);
  return split_parts(b, tpui_div(b, tpui_like(b, below, 1.0), below));
}

static const struct {
  const char* name;
  parts_t (*run)(tpui_builder_t* b, parts_t z);
} functions[] = {
    {"sqrt", sqrt_of},
    {"log", log_of},
    {"rsqrt", rsqrt_of},
    {"log_plus_one", log1p_of},
    {"exponential", exp_of},
    {"sine", sin_of},
    {"exponential_minus_one", expm1_of},
    {"cosine", cos_of},
    {"tan", tan_of},
    {"tanh", tanh_of},
    {"logistic", logistic_of},
    {"chlo.sinh", sinh_of},
    {"chlo.cosh", cosh_of},
    {"chlo.asin", asin_of},
    {"chlo.acos", acos_of},
    {"chlo.atan", atan_of},
    {"chlo.asinh", asinh_of},
    {"chlo.acosh", acosh_of},
    {"chlo.atanh", atanh_of},
};

tpui_hlo_t tpui_complex_unary(tpui_builder_t* b, const char* name, tpui_hlo_t z) {
  parts_t parts = split_parts(b, z);
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; ++i) {
    if (strcmp(functions[i].name, name) == 0) return join_parts(b, functions[i].run(b, parts));
  }
  return strncmp(name, "chlo.", 5) == 0 ? tpui_chlo(b, name + 5, z) : tpui_unary(b, name, z);
}

tpui_hlo_t tpui_complex_abs(tpui_builder_t* b, tpui_hlo_t z) {
  return set_where(b, infinite_part(b, split_parts(b, z)), INFINITY, tpui_unary(b, "abs", z));
}

tpui_hlo_t tpui_complex_scale(tpui_builder_t* b, tpui_hlo_t z, double factor) {
  parts_t parts = split_parts(b, z);
  return join_parts(b, (parts_t){tpui_binary_constant(b, "multiply", parts.re, factor),
                                 tpui_binary_constant(b, "multiply", parts.im, factor)});
}

/* C's product: where the formula gives only NaN although a factor is infinite, that factor becomes
 * a corner of the unit square, and the product an infinity in that direction. */
static parts_t product_of(tpui_builder_t* b, parts_t x, parts_t y) {
  parts_t r = {tpui_sub(b, tpui_mul(b, x.re, y.re), tpui_mul(b, x.im, y.im)),
               tpui_add(b, tpui_mul(b, x.re, y.im), tpui_mul(b, x.im, y.re))};
  tpui_hlo_t lost = both_of(b, tpui_is_nan(b, r.re), tpui_is_nan(b, r.im));
  tpui_hlo_t x_infinite = infinite_part(b, x), y_infinite = infinite_part(b, y);
  lost = both_of(b, lost, either_of(b, x_infinite, y_infinite));
  tpui_hlo_t all[4] = {x.re, x.im, y.re, y.im};
  for (int i = 0; i < 4; ++i) {
    tpui_hlo_t infinite = is_infinite(b, all[i]), negative = tpui_signbit(b, all[i]);
    tpui_hlo_t corner = tpui_convert(b, infinite, all[i].dtype);
    tpui_hlo_t kept = set_where(b, tpui_is_nan(b, all[i]), 0.0, tpui_unary(b, "abs", all[i]));
    all[i] = tpui_select(b, i < 2 ? x_infinite : y_infinite, corner, kept);
    all[i] = negated_if(b, negative, all[i]);
  }
  parts_t direction = {tpui_sub(b, tpui_mul(b, all[0], all[2]), tpui_mul(b, all[1], all[3])),
                       tpui_add(b, tpui_mul(b, all[0], all[3]), tpui_mul(b, all[1], all[2]))};
  r.re = tpui_select(b, lost, tpui_binary_constant(b, "multiply", direction.re, INFINITY), r.re);
  r.im = tpui_select(b, lost, tpui_binary_constant(b, "multiply", direction.im, INFINITY), r.im);
  return r;
}

tpui_hlo_t tpui_complex_power(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  tpui_broadcast_pair(b, &x, &y);
  tpui_hlo_t power = tpui_binary(b, "power", x, y);
  parts_t base = split_parts(b, x), exponent = split_parts(b, y), found = split_parts(b, power);
  parts_t other = exp_of(b, product_of(b, exponent, log_of(b, base)));
  tpui_hlo_t fine = both_of(b, is_finite(b, found.re), is_finite(b, found.im));
  return join_parts(b, (parts_t){tpui_select(b, fine, found.re, other.re),
                                 tpui_select(b, fine, found.im, other.im)});
}

tpui_hlo_t tpui_complex_power_by_number(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  tpui_hlo_t number = tpui_unary(b, "real", y), one = tpui_like(b, x, 1.0);
  parts_t base = log_of(b, split_parts(b, x));
  base = (parts_t){tpui_mul(b, base.re, number), tpui_mul(b, base.im, number)};
  tpui_hlo_t result = join_parts(b, exp_of(b, base));
  tpui_hlo_t square = tpui_mul(b, x, x), root = join_parts(b, sqrt_of(b, split_parts(b, x)));
  const struct {
    double exponent;
    tpui_hlo_t value;
  } exact[] = {{0.0, one},
               {1.0, x},
               {2.0, square},
               {3.0, tpui_mul(b, square, x)},
               {0.5, root},
               {-0.5, tpui_div(b, one, root)},
               {-1.0, tpui_div(b, one, x)},
               {-2.0, tpui_div(b, one, square)}};
  for (size_t i = 0; i < sizeof exact / sizeof exact[0]; ++i) {
    tpui_hlo_t is_this = tpui_compare_constant(b, "EQ", number, exact[i].exponent);
    result = tpui_select(b, is_this, exact[i].value, result);
  }
  return result;
}

tpui_hlo_t tpui_complex_log_add(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  tpui_broadcast_pair(b, &x, &y);
  tpui_hlo_t x_re = tpui_unary(b, "real", x), y_re = tpui_unary(b, "real", y);
  tpui_hlo_t x_first = either_of(b, tpui_compare(b, "GE", x_re, y_re), tpui_is_nan(b, x_re));
  tpui_hlo_t high = tpui_select(b, x_first, x, y), low = tpui_select(b, x_first, y, x);
  tpui_hlo_t gap = join_parts(b, exp_of(b, split_parts(b, tpui_sub(b, low, high))));
  tpui_hlo_t tail = join_parts(b, log1p_of(b, split_parts(b, gap)));
  tpui_hlo_t sum = tpui_add(b, high, tail);
  // Two infinities of one kind: nothing to subtract.
  tpui_hlo_t same = both_of(b, tpui_compare(b, "EQ", x_re, y_re), is_infinite(b, x_re));
  tpui_hlo_t below = tpui_compare_constant(b, "LT", x_re, 0.0);
  tpui_hlo_t exps = tpui_add(b, join_parts(b, exp_of(b, split_parts(b, x))),
                             join_parts(b, exp_of(b, split_parts(b, y))));
  tpui_hlo_t direct = join_parts(b, log_of(b, split_parts(b, exps)));
  sum = tpui_select(b, same, tpui_select(b, below, low, direct), sum);
  tpui_hlo_t nan = either_of(b, tpui_compare(b, "NE", x, x), tpui_compare(b, "NE", y, y));
  tpui_hlo_t nothing = tpui_like(b, x_re, NAN);
  return tpui_select(b, nan, tpui_binary(b, "complex", nothing, nothing), sum);
}
