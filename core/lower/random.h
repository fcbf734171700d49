/* Random numbers: Philox 4x32-10 as plain operations. Internal to lower/.
 *
 * The contract: equal (seed, offset) give equal numbers on every platform, in every mode.
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
/* True (BOOL) with probability 1 - p; p is rank 0, F32. */
tpui_hlo_t tpui_random_keep(const tpui_random_t* r, tpui_hlo_t p, int rank, const int64_t* sizes);

#endif  // TPU_LOWER_RANDOM_H_
