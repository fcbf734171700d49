/* Random numbers: Philox 4x32-10, as plain operations or as calls of host/random.h. Internal to
 * lower/.
 *
 * The contract: equal (seed, offset) give equal numbers in every mode. Between the two forms, and
 * between platforms, integers, uniform numbers and decisions are equal; what goes through a
 * logarithm, an exponential or a sine is close, and permutations and classes drawn by weight are
 * each form's own.
 *   key      = (seed low 32 bits, seed high 32 bits)
 *   counter  = (c low, c high, s, 0) with c = offset + i / 4
 *   element i takes word i % 4. s is the stream: 0, and 1 for the low half of 64-bit draws.
 * A call owns the counters c in [offset, offset + ceil(numel / 4)), numel being its result's
 * element count, with every (s, third word): the next call starts behind them. A call that needs
 * more draws than its result has elements uses the wide form, which owns one c: counter  = (offset
 * low, offset high, i / 4 low, i / 4 high + 2^31)
 *
 * Word w becomes a float32 in [0, 1) as (w >> 8) * 2^-24 and in (0, 1) as ((w >> 9) + 0.5) * 2^-23;
 * float64 draws use 53 (52) bits of two words; half types use their own precision's bits. Normal
 * numbers are Box-Muller pairs of words (0, 1) and (2, 3): r*cos(t), r*sin(t).
 */
#ifndef TPU_LOWER_RANDOM_H_
#define TPU_LOWER_RANDOM_H_

#include "lower/builder.h"

typedef struct tpui_random_t {
  tpui_builder_t* b;
  tpui_hlo_t seed, offset;  // UINT64, rank 0
  bool wide;
} tpui_random_t;

/* Reads seed and offset (numbers or one-element tensors of int64) at operands k and k + 1. */
tpui_random_t tpui_random_read(const tpui_lowering_t* op, int k, bool wide);

/* --- calls: only where tpui_host_calls(b) holds --- */

/* A call of host/random_call.c's `kernel`, whose parameters come in its order: numbers, or tensors
 * that are broadcast to the result's sizes. */
tpui_hlo_t tpui_random_call(const tpui_random_t* r, const char* kernel, int parameter_count,
                            const tpui_hlo_t* parameters, tpu_dtype_t result, int rank,
                            const int64_t* sizes);
/* The dtype in which numbers computed in `math` are drawn for a result: its own where kernels write
 * it. `whole`: integers and decisions, which they write in more. */
tpu_dtype_t tpui_random_result(tpu_dtype_t result, tpu_dtype_t math, bool whole);

/* --- plain operations --- */

/* 32 random bits per element (UINT32). */
tpui_hlo_t tpui_random_bits(const tpui_random_t* r, int stream, int rank, const int64_t* sizes);
/* 64 random bits per element (UINT64). */
tpui_hlo_t tpui_random_bits64(const tpui_random_t* r, int rank, const int64_t* sizes);
/* Uniform in [0, 1) with `dtype`'s precision; F32 for half types, F64 for F64. */
tpui_hlo_t tpui_random_unit(const tpui_random_t* r, tpu_dtype_t dtype, int rank,
                            const int64_t* sizes);
/* Uniform in (0, 1). */
tpui_hlo_t tpui_random_open(const tpui_random_t* r, tpu_dtype_t dtype, int rank,
                            const int64_t* sizes);
/* Standard normal. */
tpui_hlo_t tpui_random_normal(const tpui_random_t* r, tpu_dtype_t dtype, int rank,
                              const int64_t* sizes);

/* --- either --- */

/* True (BOOL) with probability 1 - p; p is rank 0, F32. */
tpui_hlo_t tpui_random_keep(const tpui_random_t* r, tpui_hlo_t p, int rank, const int64_t* sizes);

#endif  // TPU_LOWER_RANDOM_H_
