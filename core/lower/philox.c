/* Philox 4x32-10 and the distributions that everything else is made of. random.h states the
 * contract.
 */
#include "base/series.h"
#include "lower/gather.h"
#include "lower/random.h"

#define ROUNDS 10

tpui_random_t tpui_random_read(const tpui_lowering_t* op, int k, bool wide) {
  tpui_hlo_t numbers[2];
  for (int i = 0; i < 2; ++i) {
    tpui_hlo_t number = tpui_operand_as(op, k + i, TPU_I64);
    if (number.rank > 0) number = tpui_reshape(op->b, number, 0, NULL);
    numbers[i] = tpui_bitcast(op->b, number, TPU_U64);
  }
  return (tpui_random_t){op->b, numbers[0], numbers[1], wide};
}

/* --- the generator --- */

static tpui_hlo_t low_word(tpui_builder_t* b, tpui_hlo_t x) {
  tpui_hlo_t mask = tpui_constant_int(b, TPU_U64, 0xffffffffll);
  return tpui_convert(b, tpui_binary(b, "and", x, mask), TPU_U32);
}

static tpui_hlo_t high_word(tpui_builder_t* b, tpui_hlo_t x) {
  tpui_hlo_t shift = tpui_constant_int(b, TPU_U64, 32);
  return tpui_convert(b, tpui_binary(b, "shift_right_logical", x, shift), TPU_U32);
}

/* High and low half of constant * x. */
static void multiply_wide(tpui_builder_t* b, int64_t constant, tpui_hlo_t x, tpui_hlo_t* high,
                          tpui_hlo_t* low) {
  tpui_hlo_t product = tpui_binary(b, "multiply", tpui_convert(b, x, TPU_U64),
                                   tpui_constant_int(b, TPU_U64, constant));
  *high = high_word(b, product);
  *low = tpui_binary(b, "multiply", x, tpui_constant_int(b, TPU_U32, constant));
}

static void philox_rounds(tpui_builder_t* b, tpui_hlo_t seed, tpui_hlo_t c[4]) {
  tpui_hlo_t key0 = low_word(b, seed), key1 = high_word(b, seed);
  const tpui_hlo_t bump0 = tpui_constant_int(b, TPU_U32, 0x9e3779b9ll);
  const tpui_hlo_t bump1 = tpui_constant_int(b, TPU_U32, 0xbb67ae85ll);
  for (int round = 0; round < ROUNDS; ++round) {
    tpui_hlo_t high0, low0, high1, low1;
    multiply_wide(b, 0xd2511f53ll, c[0], &high0, &low0);
    multiply_wide(b, 0xcd9e8d57ll, c[2], &high1, &low1);
    c[0] = tpui_binary(b, "xor", tpui_binary(b, "xor", high1, c[1]), key0);
    c[1] = low1;
    c[2] = tpui_binary(b, "xor", tpui_binary(b, "xor", high0, c[3]), key1);
    c[3] = low0;
    key0 = tpui_binary(b, "add", key0, bump0);
    key1 = tpui_binary(b, "add", key1, bump1);
  }
}

/* The four words of every element's counter, UINT32 [numel] each. Elements that share a counter
 * compute it four times: on CPU that is still 4x faster than interleaving four arrays, because the
 * loop has no branches and becomes vector code. */
static void draw_words(const tpui_random_t* r, int stream, int64_t numel, tpui_hlo_t words[4]) {
  tpui_builder_t* b = r->b;
  tpui_hlo_t number = tpui_iota(b, TPU_U64, 1, &numel, 0);
  number = tpui_binary(b, "shift_right_logical", number, tpui_constant_int(b, TPU_U64, 2));
  if (r->wide) {
    words[0] = tpui_broadcast_to(b, low_word(b, r->offset), 1, &numel);
    words[1] = tpui_broadcast_to(b, high_word(b, r->offset), 1, &numel);
    words[2] = low_word(b, number);
    words[3] = tpui_binary(b, "add", high_word(b, number),
                           tpui_constant_int(b, TPU_U32, 0x80000000ll + ((int64_t)stream << 24)));
  } else {
    tpui_hlo_t counter = tpui_binary(b, "add", number, r->offset);
    words[0] = low_word(b, counter);
    words[1] = high_word(b, counter);
    words[2] = tpui_full(b, TPU_U32, stream, 1, &numel);
    words[3] = tpui_full(b, TPU_U32, 0, 1, &numel);
  }
  philox_rounds(b, r->seed, words);
}

/* True where bit `bit` of the element's number is set: which word is its own. */
static tpui_hlo_t lane_bit(tpui_builder_t* b, int64_t numel, int bit) {
  tpu_dtype_t dtype = numel <= UINT32_MAX ? TPU_U32 : TPU_U64;
  tpui_hlo_t lane = tpui_iota(b, dtype, 1, &numel, 0);
  lane = tpui_binary(b, "and", lane, tpui_constant_int(b, dtype, 1ll << bit));
  return tpui_compare_constant(b, "NE", lane, 0);
}

static int64_t count_of(int rank, const int64_t* sizes) {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= sizes[i];
  return count;
}

/* --- bits --- */

tpui_hlo_t tpui_random_bits(const tpui_random_t* r, int stream, int rank, const int64_t* sizes) {
  int64_t numel = count_of(rank, sizes);
  if (numel == 0) return tpui_full(r->b, TPU_U32, 0, rank, sizes);
  tpui_hlo_t words[4];
  draw_words(r, stream, numel, words);
  tpui_hlo_t odd = lane_bit(r->b, numel, 0), upper = lane_bit(r->b, numel, 1);
  tpui_hlo_t word = tpui_select(r->b, upper, tpui_select(r->b, odd, words[3], words[2]),
                                tpui_select(r->b, odd, words[1], words[0]));
  return tpui_reshape(r->b, word, rank, sizes);
}

tpui_hlo_t tpui_random_bits64(const tpui_random_t* r, int rank, const int64_t* sizes) {
  tpui_builder_t* b = r->b;
  tpui_hlo_t high = tpui_convert(b, tpui_random_bits(r, 0, rank, sizes), TPU_U64);
  tpui_hlo_t low = tpui_convert(b, tpui_random_bits(r, 1, rank, sizes), TPU_U64);
  high = tpui_binary(b, "shift_left", high, tpui_constant_int(b, TPU_U64, 32));
  return tpui_binary(b, "or", high, low);
}

/* --- uniform --- */

/* (w >> shift) as a float; below 2^31, so the fast signed conversion is exact. */
static tpui_hlo_t top_bits(tpui_builder_t* b, tpui_hlo_t word, int shift, tpu_dtype_t dtype) {
  word = tpui_binary(b, "shift_right_logical", word, tpui_constant_int(b, TPU_U32, shift));
  return tpui_convert(b, tpui_convert(b, word, TPU_I32), dtype);
}

/* In [0, 1), or in (0, 1) when `open`. `low` is the second word of F64 draws. */
static tpui_hlo_t to_unit(tpui_builder_t* b, tpui_hlo_t word, tpui_hlo_t low, tpu_dtype_t dtype,
                          bool open) {
  if (dtype == TPU_F64) {
    tpui_hlo_t high = top_bits(b, word, open ? 6 : 5, TPU_F64);
    tpui_hlo_t x = tpui_binary_constant(b, "multiply", high, 67108864.0);  // 2^26
    x = tpui_binary(b, "add", x, top_bits(b, low, 6, TPU_F64));
    if (open) x = tpui_binary_constant(b, "add", x, 0.5);
    return tpui_binary_constant(b, "multiply", x, open ? 0x1p-52 : 0x1p-53);
  }
  if (open) {
    tpui_hlo_t x = tpui_binary_constant(b, "add", top_bits(b, word, 9, TPU_F32), 0.5);
    return tpui_binary_constant(b, "multiply", x, 0x1p-23);
  }
  int bits = dtype == TPU_F16 ? 11 : dtype == TPU_BF16 ? 8 : 24;
  double scale = bits == 11 ? 0x1p-11 : bits == 8 ? 0x1p-8 : 0x1p-24;
  return tpui_binary_constant(b, "multiply", top_bits(b, word, 32 - bits, TPU_F32), scale);
}

static tpui_hlo_t unit_interval(const tpui_random_t* r, tpu_dtype_t dtype, bool open, int rank,
                                const int64_t* sizes) {
  tpui_hlo_t word = tpui_random_bits(r, 0, rank, sizes), low = word;
  if (dtype == TPU_F64) low = tpui_random_bits(r, 1, rank, sizes);
  return to_unit(r->b, word, low, dtype, open);
}

tpui_hlo_t tpui_random_unit(const tpui_random_t* r, tpu_dtype_t dtype, int rank,
                            const int64_t* sizes) {
  return unit_interval(r, dtype, false, rank, sizes);
}

tpui_hlo_t tpui_random_open(const tpui_random_t* r, tpu_dtype_t dtype, int rank,
                            const int64_t* sizes) {
  return unit_interval(r, dtype, true, rank, sizes);
}

tpui_hlo_t tpui_random_keep(const tpui_random_t* r, tpui_hlo_t p, int rank, const int64_t* sizes) {
  tpui_builder_t* b = r->b;
  bool by_kernel = tpui_host_calls(b);
  tpui_hlo_t draw_unit = by_kernel ? p : unit_interval(r, TPU_F32, false, rank, sizes);
  tpui_hlo_t keep = tpui_binary(b, "subtract", tpui_constant(b, TPU_F32, 1), p);
  return by_kernel ? tpui_random_call(r, "bernoulli", 1, &keep, TPU_BOOL, rank, sizes)
                   : tpui_compare(b, "LT", draw_unit, keep);
}

/* --- normal --- */

/* cos(2 pi t), or sin(2 pi t) where `odd`; t in [0, 1). A polynomial of plain operations: the same
 * everywhere, and vector code on CPU, where cos and sin are library calls per element. */
static tpui_hlo_t quarter_wave(tpui_builder_t* b, tpui_hlo_t t, tpui_hlo_t odd) {
  tpu_dtype_t dtype = t.dtype;
  // sin is cos a quarter turn earlier; |t - 1/4| stays below one turn.
  tpui_hlo_t quarter =
      tpui_select(b, odd, tpui_constant(b, dtype, 0.25), tpui_constant(b, dtype, 0));
  t = tpui_unary(b, "abs", tpui_binary(b, "subtract", t, quarter));
  // Fold to s = distance from the nearest zero of cos, in turns: cos(2 pi t) = sin(2 pi s).
  tpui_hlo_t half = tpui_constant(b, dtype, 0.5);
  t = tpui_binary(b, "subtract", half, tpui_unary(b, "abs", tpui_binary(b, "subtract", t, half)));
  tpui_hlo_t s = tpui_binary(b, "subtract", tpui_constant(b, dtype, 0.25), t);
  tpui_hlo_t x = tpui_binary_constant(b, "multiply", s, 6.283185307179586);
  tpui_hlo_t square = tpui_binary(b, "multiply", x, x);
  static const double terms[] = {TPU_SINE_SERIES, 1.0};
  int first = dtype == TPU_F64 ? 0 : 5;
  tpui_hlo_t sum = tpui_full_like(b, t, dtype, terms[first]);
  for (size_t k = (size_t)first + 1; k < sizeof terms / sizeof terms[0]; ++k) {
    sum = tpui_binary_constant(b, "add", tpui_binary(b, "multiply", sum, square), terms[k]);
  }
  return tpui_binary(b, "multiply", sum, x);
}

tpui_hlo_t tpui_random_normal(const tpui_random_t* r, tpu_dtype_t dtype, int rank,
                              const int64_t* sizes) {
  tpui_builder_t* b = r->b;
  dtype = dtype == TPU_F64 ? TPU_F64 : TPU_F32;
  int64_t numel = count_of(rank, sizes);
  if (numel == 0) return tpui_full(b, dtype, 0, rank, sizes);
  tpui_hlo_t words[4], low[4];
  draw_words(r, 0, numel, words);
  for (int w = 0; w < 4; ++w) low[w] = words[w];
  if (dtype == TPU_F64) draw_words(r, 1, numel, low);
  tpui_hlo_t odd = lane_bit(b, numel, 0), upper = lane_bit(b, numel, 1);
  tpui_hlo_t u = to_unit(b, tpui_select(b, upper, words[2], words[0]),
                         tpui_select(b, upper, low[2], low[0]), dtype, true);
  tpui_hlo_t turn = to_unit(b, tpui_select(b, upper, words[3], words[1]),
                            tpui_select(b, upper, low[3], low[1]), dtype, false);
  tpui_hlo_t radius = tpui_binary_constant(b, "multiply", tpui_unary(b, "log", u), -2);
  radius = tpui_unary(b, "sqrt", radius);
  return tpui_reshape(b, tpui_binary(b, "multiply", radius, quarter_wave(b, turn, odd)), rank,
                      sizes);
}
