/* Random ATen ops. Every one ends with two operands, seed and offset; its own arguments are counted
 * from the end, because forms that overwrite self do not pass it. random.h states the number
 * contract.
 */
#include "lower/random.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "host/random.h"
#include "lower/gather.h"
#include "lower/host_call.h"
#include "lower/op_lowering.h"
#include "lower/sort.h"

/* Operand number `back` before the seed: 1 is the last argument. */
static int argument_at(const tpui_lowering_t* op, int back) {
  return tpui_operand_count(op) - 2 - back;
}

static tpui_random_t read_random(const tpui_lowering_t* op) {
  return tpui_random_read(op, tpui_operand_count(op) - 2, false);
}

/* Sets the result from a C kernel whose parameters are the last `count` arguments, in `math`. */
static void set_by_kernel(const tpui_lowering_t* op, const char* kernel, int count,
                          tpu_dtype_t math) {
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  bool whole = strcmp(kernel, "bernoulli") == 0;
  tpui_hlo_t parameters[2];
  for (int i = 0; i < count; ++i) {
    parameters[i] = tpui_operand_as(op, argument_at(op, count - i), math);
  }
  tpui_random_t r = read_random(op);
  tpu_dtype_t drawn = tpui_random_result(meta->dtype, math, whole);
  tpui_set_result(op, 0,
                  tpui_random_call(&r, kernel, count, parameters, drawn, meta->rank, meta->sizes));
}

/* --- distributions: result = f(draw, arguments) --- */

/* normal_, log_normal_, normal(mean, std): mean and std, numbers or tensors. */
void tpui_lower_normal(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpu_dtype_t dtype = tpui_math_dtype(meta->dtype);
  bool is_log = strcmp(op->argument, "log") == 0;
  if (tpui_operand_meta(op, argument_at(op, 1)) != NULL) {
    tpui_check_within(op, tpui_operand(op, argument_at(op, 1)), 0, INFINITY,
                      "normal expects all elements of std >= 0.0");
  }
  if (tpu_dtype_kind(meta->dtype) == TPU_KIND_COMPLEX) {
    tpui_fail(b, TPU_UNIMPLEMENTED, "complex normal numbers");
    return;
  }
  if (tpui_host_calls(b)) {
    set_by_kernel(op, is_log ? "log_normal" : "normal", 2, dtype);
    return;
  }
  tpui_random_t r = read_random(op);
  tpui_hlo_t x = tpui_random_normal(&r, dtype, meta->rank, meta->sizes);
  x = tpui_binary(b, "multiply", x, tpui_operand_as(op, argument_at(op, 1), dtype));
  x = tpui_binary(b, "add", x, tpui_operand_as(op, argument_at(op, 2), dtype));
  if (is_log) x = tpui_unary(b, "exponential", x);
  tpui_set_result(op, 0, x);
}

void tpui_lower_uniform(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpu_dtype_t dtype = tpui_math_dtype(meta->dtype);
  if (tpui_host_calls(b)) {
    set_by_kernel(op, "uniform", 2, dtype);
    return;
  }
  tpui_random_t r = read_random(op);
  tpui_hlo_t from = tpui_operand_as(op, argument_at(op, 2), dtype);
  tpui_hlo_t to = tpui_operand_as(op, argument_at(op, 1), dtype);
  tpui_hlo_t x = tpui_random_unit(&r, meta->dtype, meta->rank, meta->sizes);
  x = tpui_binary(b, "multiply", x, tpui_binary(b, "subtract", to, from));
  x = tpui_binary(b, "add", x, from);
  // Rounding can reach `to`, which does not belong to the interval.
  x = tpui_select(b, tpui_compare(b, "LT", x, to), x, from);
  tpui_set_result(op, 0, x);
}

/* argument: "exponential" (lambda), "cauchy" (median, sigma), "geometric" (p). */
void tpui_lower_transformed(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpu_dtype_t dtype = meta->dtype == TPU_F64 ? TPU_F64 : TPU_F32;
  bool is_cauchy = strcmp(op->argument, "cauchy") == 0;
  if (tpui_host_calls(b)) {
    set_by_kernel(op, op->argument, is_cauchy ? 2 : 1, dtype);
    return;
  }
  tpui_random_t r = read_random(op);
  tpui_hlo_t u = tpui_random_open(&r, dtype, meta->rank, meta->sizes);
  tpui_hlo_t last = tpui_operand_as(op, argument_at(op, 1), dtype);
  if (is_cauchy) {
    u = tpui_binary_constant(b, "subtract", u, 0.5);
    u = tpui_unary(b, "tan", tpui_binary_constant(b, "multiply", u, 3.141592653589793));
    u = tpui_binary(b, "add", tpui_binary(b, "multiply", u, last),
                    tpui_operand_as(op, argument_at(op, 2), dtype));
  } else if (strcmp(op->argument, "exponential") == 0) {
    u = tpui_binary(b, "divide", tpui_unary(b, "negate", tpui_unary(b, "log", u)), last);
  } else {
    tpui_hlo_t fail = tpui_unary(b, "log_plus_one", tpui_unary(b, "negate", last));
    u = tpui_unary(b, "ceil", tpui_binary(b, "divide", tpui_unary(b, "log", u), fail));
    u = tpui_binary_constant(b, "maximum", u, 1);  // p = 1: log(0) gives 0
  }
  tpui_set_result(op, 0, u);
}

/* p: a number or a tensor. */
void tpui_lower_bernoulli(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpui_hlo_t p = tpui_operand(op, argument_at(op, 1));
  tpu_dtype_t dtype = p.dtype == TPU_F64 && p.rank > 0 ? TPU_F64 : TPU_F32;
  if (tpui_operand_meta(op, argument_at(op, 1)) != NULL) {
    tpui_check_within(op, p, 0, 1, "Expected p_in >= 0 && p_in <= 1 to be true, but got false");
  }
  if (tpui_host_calls(b)) {
    set_by_kernel(op, "bernoulli", 1, dtype);
    return;
  }
  tpui_random_t r = read_random(op);
  tpui_hlo_t u = tpui_random_unit(&r, dtype, meta->rank, meta->sizes);
  p = tpui_broadcast_to(b, tpui_convert(b, p, dtype), meta->rank, meta->sizes);
  tpui_set_result(op, 0, tpui_compare(b, "LT", u, p));
}

/* --- integers --- */

/* A bound's value where the program knows it exactly. */
static bool known_bound(const tpui_lowering_t* op, int k, int64_t* out_value) {
  double value = 0;
  bool known = tpui_operand_constant(op, k, &value) && fabs(value) < 9007199254740992.0;
  *out_value = (int64_t)value;
  return known;
}

/* `range` values from 0 on; 0 stands for 2^64. Ranges of 32 bits are drawn from 32 bits. */
static tpui_hlo_t draw_below(const tpui_random_t* r, tpui_hlo_t range, bool wide,
                             const tpu_meta_t* meta) {
  tpui_builder_t* b = r->b;
  if (!wide) {
    tpui_hlo_t bits = tpui_random_bits(r, 0, meta->rank, meta->sizes);
    bits = tpui_binary(b, "remainder", bits, tpui_convert(b, range, TPU_U32));
    return tpui_convert(b, bits, TPU_I64);
  }
  tpui_hlo_t bits = tpui_random_bits64(r, meta->rank, meta->sizes);
  tpui_hlo_t all = tpui_compare_constant(b, "EQ", range, 0);
  tpui_hlo_t modulus = tpui_select(b, all, tpui_constant_int(b, TPU_I64, 1), range);
  tpui_hlo_t rest = tpui_binary(b, "remainder", bits, tpui_bitcast(b, modulus, TPU_U64));
  return tpui_bitcast(b, tpui_select(b, all, bits, rest), TPU_I64);
}

/* Operands: from and to ("from"), to ("to") or none ("full"); `to` may be missing. */
void tpui_lower_random_integers(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpui_random_t r = read_random(op);
  bool has_from = strcmp(op->argument, "from") == 0;
  bool has_to = strcmp(op->argument, "full") != 0 && tpui_has_operand(op, argument_at(op, 1));
  int64_t low = 0, high = 0;
  bool known = true;
  if (has_from) known = known_bound(op, argument_at(op, 2), &low);
  if (has_to) known = known_bound(op, argument_at(op, 1), &high) && known;
  tpui_hlo_t from = tpui_constant_int(b, TPU_I64, 0);
  if (has_from) from = tpui_operand_as(op, argument_at(op, 2), TPU_I64);
  // The first value that is not drawn; of all 64 bits it wraps.
  int64_t end = (int64_t)((uint64_t)tpu_random_greatest_integer(meta->dtype) + 1);
  tpui_hlo_t to = has_to ? tpui_operand_as(op, argument_at(op, 1), TPU_I64)
                         : tpui_constant_int(b, TPU_I64, end);
  uint64_t count = (uint64_t)(has_to ? high : end) - (uint64_t)low;
  tpui_hlo_t range = known ? tpui_constant_int(b, TPU_I64, (int64_t)count) : tpui_sub(b, to, from);
  tpui_hlo_t x;
  if (tpui_host_calls(b)) {
    const tpui_hlo_t bounds[] = {from, range};
    tpu_dtype_t drawn = tpui_random_result(meta->dtype, TPU_I64, true);
    x = tpui_random_call(&r, "random_integers", 2, bounds, drawn, meta->rank, meta->sizes);
    tpui_set_result(op, 0, x);
    return;
  }
  if (known) {
    x = draw_below(&r, range, count == 0 || count > (uint64_t)UINT32_MAX, meta);
  } else {
    tpui_hlo_t most = tpui_constant_int(b, TPU_I64, UINT32_MAX);
    tpui_hlo_t narrow = tpui_binary(b, "and", tpui_compare_constant(b, "GT", range, 0),
                                    tpui_compare(b, "LE", range, most));
    x = tpui_select(b, narrow, draw_below(&r, range, false, meta),
                    draw_below(&r, range, true, meta));
  }
  if (!known || low != 0) x = tpui_binary(b, "add", x, from);
  tpui_set_result(op, 0, x);
}

/* From a C kernel, which has an order of its own. */
static tpui_hlo_t randperm_call(const tpui_random_t* r, int64_t n, tpu_dtype_t result) {
  const tpui_hlo_t state[] = {r->seed, r->offset};
  const tpui_type_t type = {result == TPU_I32 ? TPU_I32 : TPU_I64, 1, &n};
  tpui_hlo_t order;
  tpui_host_call(r->b, "randperm", 2, state, 0, NULL, 1, &type, &order);
  return order;
}

/* Attribute 0: n. Sorting numbers whose low bits are replaced by their position gives the position
 * in random order with a one-operand sort. */
void tpui_lower_randperm(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_random_t r = read_random(op);
  int64_t n = tpu_attr_int(op->record->attrs, 0, 0), mask = 1;
  while (mask < n) mask *= 2;
  if (tpui_host_calls(b) && n <= INT32_MAX) {
    tpui_set_result(op, 0, randperm_call(&r, n, tpui_result_meta(op, 0)->dtype));
    return;
  }
  tpui_hlo_t key = tpui_bitcast(b, tpui_random_bits64(&r, 1, &n), TPU_I64);
  key = tpui_binary(b, "and", key, tpui_constant_int(b, TPU_I64, ~(mask - 1)));
  key = tpui_binary(b, "or", key, tpui_iota(b, TPU_I64, 1, &n, 0));
  key = tpui_sort_integers(b, key, 0);
  tpui_set_result(op, 0, tpui_binary(b, "and", key, tpui_constant_int(b, TPU_I64, mask - 1)));
}

/* --- dropout --- */

/* Operands: input, p, seed, offset; attribute 0: train (none counts as true). */
void tpui_lower_dropout(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  if (tpu_attr_int(op->record->attrs, 0, 1) == 0) {
    tpui_set_result(op, 0, x);
    tpui_set_result(op, 1, tpui_constant(b, TPU_BOOL, 1));
    return;
  }
  tpui_random_t r = read_random(op);
  tpu_dtype_t dtype = tpui_math_dtype(x.dtype);
  tpui_hlo_t p = tpui_operand_as(op, 1, TPU_F32);
  tpui_hlo_t keep = tpui_random_keep(&r, p, x.rank, x.sizes);
  tpui_hlo_t one = tpui_constant(b, TPU_F64, 1), zero = tpui_constant(b, TPU_F64, 0);
  tpui_hlo_t left = tpui_binary(b, "subtract", one, tpui_operand_as(op, 1, TPU_F64));
  tpui_hlo_t scale =
      tpui_select(b, tpui_compare(b, "GT", left, zero), tpui_binary(b, "divide", one, left), zero);
  // A product and no choice between x and 0: what is NaN or infinite stays NaN when it is dropped.
  tpui_hlo_t factor =
      tpui_select(b, keep, tpui_convert(b, scale, dtype), tpui_constant(b, dtype, 0));
  tpui_set_result(op, 0, tpui_binary(b, "multiply", tpui_convert(b, x, dtype), factor));
  tpui_set_result(op, 1, keep);
}

/* Operands: grad, mask, scale. */
void tpui_lower_dropout_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  // A gradient of bool or integers gives floats.
  tpu_dtype_t dtype = tpui_math_dtype(tpui_result_meta(op, 0)->dtype);
  tpui_hlo_t grad = tpui_operand_as(op, 0, dtype);
  grad = tpui_binary(b, "multiply", grad, tpui_operand_as(op, 2, dtype));
  tpui_hlo_t mask = tpui_operand_as(op, 1, dtype);
  tpui_set_result(op, 0, tpui_binary(b, "multiply", grad, mask));
}

/* --- multinomial --- */

/* With replacement: a draw u falls into the class where the running sum passes u * total. */
static tpui_hlo_t draw_classes(const tpui_random_t* r, tpui_hlo_t weights, int64_t samples) {
  tpui_builder_t* b = r->b;
  int64_t classes = weights.sizes[1];
  tpui_hlo_t running = tpui_scan(b, "add", weights, 1);
  tpui_hlo_t total = tpui_slice_dim(b, running, 1, classes - 1, classes);
  const int64_t sizes[] = {weights.sizes[0], samples};
  tpui_hlo_t u = tpui_random_unit(r, weights.dtype, 2, sizes);
  u = tpui_binary(b, "multiply", u, total);
  // Not past the last class that has a weight, whatever rounding does to u * total.
  tpui_hlo_t place = tpui_search_sorted(b, running, u, true);
  tpui_hlo_t has_weight = tpui_compare_constant(b, "GT", weights, 0);
  tpui_hlo_t last = tpui_select(b, has_weight, tpui_iota(b, TPU_I64, 2, weights.sizes, 1),
                                tpui_constant_int(b, TPU_I64, 0));
  const int dim = 1;
  return tpui_binary(b, "minimum", place, tpui_reduce_keep(b, "maximum", last, 1, &dim));
}

/* Without: the classes with the largest weight / exponential draw, in that order. */
static tpui_hlo_t draw_distinct(const tpui_random_t* r, tpui_hlo_t weights, int64_t samples) {
  tpui_builder_t* b = r->b;
  tpui_hlo_t u = tpui_random_open(r, weights.dtype, 2, weights.sizes);
  tpui_hlo_t noise = tpui_unary(b, "negate", tpui_unary(b, "log", u));
  tpui_hlo_t score = tpui_binary(b, "divide", weights, noise);
  if (samples == 1) {
    tpui_hlo_t value, index;
    tpui_arg_reduce(b, "GT", score, 1, &value, &index);
    return index;
  }
  return tpui_slice_dim(b, tpui_sort_order(b, score, 1, true), 1, 0, samples);
}

static tpui_hlo_t multinomial_call(const tpui_random_t* r, tpui_hlo_t weights, int64_t samples,
                                   bool replacement) {
  const tpui_hlo_t operands[] = {weights, r->seed, r->offset};
  const tpui_call_attr_t attr = {"replacement", replacement};
  const int64_t sizes[] = {weights.sizes[0], samples};
  tpui_hlo_t classes;
  tpui_host_call(r->b, "multinomial", 3, operands, 1, &attr, 1, &(tpui_type_t){TPU_I64, 2, sizes},
                 &classes);
  return classes;
}

/* Weights are finite and not negative, and every row has one above zero. */
static void check_weights(const tpui_lowering_t* op, tpui_hlo_t weights) {
  tpui_builder_t* b = op->b;
  const int dim = 1;
  tpui_check_within(op, weights, 0, weights.dtype == TPU_F64 ? DBL_MAX : (double)FLT_MAX,
                    "probability tensor contains either `inf`, `nan` or element < 0");
  if (!tpui_checks_data(b)) return;
  tpui_hlo_t most = tpui_reduce(b, "maximum", weights, 1, &dim);
  tpui_check_none(op, tpui_compare_constant(b, "LE", most, 0), TPU_INVALID_ARGUMENT,
                  "invalid multinomial distribution (sum of probabilities <= 0)");
}

/* Operands: weights ([C] or [N, C], not normalised), seed, offset; attributes: samples,
 * replacement. */
void tpui_lower_multinomial(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t weights = tpui_operand(op, 0);
  if (!tpui_ok(b) || weights.rank == 0) return;
  int64_t samples = tpu_attr_int(op->record->attrs, 0, 1);
  bool replacement = tpu_attr_int(op->record->attrs, 1, 0) != 0 && samples > 1;
  tpui_random_t r = tpui_random_read(op, tpui_operand_count(op) - 2, true);
  int64_t classes = weights.sizes[weights.rank - 1];
  const int64_t sizes[] = {weights.rank > 1 ? weights.sizes[0] : 1, classes};
  weights = tpui_reshape(b, tpui_convert(b, weights, tpui_math_dtype(weights.dtype)), 2, sizes);
  check_weights(op, weights);
  tpui_hlo_t drawn = tpui_host_calls(b) ? multinomial_call(&r, weights, samples, replacement)
                     : replacement      ? draw_classes(&r, weights, samples)
                                        : draw_distinct(&r, weights, samples);
  tpui_set_result_reshaped(op, 0, drawn);
}
