/* Random numbers as plain C functions: the numbers of lower/random.h, which has the contract.
 *
 * Integers, uniform numbers and decisions are those of the StableHLO form, bit for bit; what goes
 * through a logarithm, an exponential or a sine may differ from it in the last bits, and
 * permutations are others. The same call
 * gives the same bits on every machine, with any number of threads and wherever it is called from:
 * arithmetic is plain IEEE 754 (no contraction, denormals kept, elementary functions of our own).
 */
#ifndef TPU_HOST_RANDOM_H_
#define TPU_HOST_RANDOM_H_

#include "types/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* u is uniform in (0, 1), x in [0, 1), z is standard normal; a and b are the parameters. */
typedef enum tpu_random_kind_t {
  TPU_RANDOM_UNIFORM,      // a + x (b - a), never b
  TPU_RANDOM_NORMAL,       // a + z b
  TPU_RANDOM_LOG_NORMAL,   // exp(a + z b)
  TPU_RANDOM_EXPONENTIAL,  // -log(u) / a
  TPU_RANDOM_CAUCHY,       // a + b tan(pi (u - 1/2))
  TPU_RANDOM_GEOMETRIC,    // ceil(log(u) / log(1 - a)), at least 1
  TPU_RANDOM_BERNOULLI,    // x < a, as 0 or 1
  TPU_RANDOM_INTEGERS,     // from + (bits mod range)
  TPU_RANDOM_KIND_COUNT
} tpu_random_kind_t;

/* One number, or with `elements` one per element of the result: `math` numbers, borrowed. */
typedef struct tpu_random_parameter_t {
  double number;
  const void* elements;
} tpu_random_parameter_t;

typedef struct tpu_random_draw_t {
  tpu_random_kind_t kind;
  uint64_t seed, offset;  // the generator before this call
  bool wide;              // counters of the wide form: the call owns one counter
  /* What is computed in: F64 for F64 results, else F32. BERNOULLI may have F64 probabilities with
   * any result. */
  tpu_dtype_t math;
  tpu_random_parameter_t a, b;
  int64_t from;    // INTEGERS
  uint64_t range;  // INTEGERS: how many; 0 stands for 2^64
} tpu_random_draw_t;

/* Results: F32, F16, BF16 (F64 with F64 math); BERNOULLI and INTEGERS: these, all integers and
 * BOOL. */
bool tpu_random_takes(tpu_random_kind_t kind, tpu_dtype_t math, tpu_dtype_t result);

/* The last of INTEGERS without an upper bound: the dtype's greatest, or of those that a float can
 * count exactly. */
int64_t tpu_random_greatest_integer(tpu_dtype_t dtype);

/* Writes elements [first, last) of the result, the first one at `out`. Ranges may be written in any
 * order and on any thread; `first` must be a multiple of 4. TPU_INVALID_ARGUMENT when it is not,
 * and for results that tpu_random_takes does not. */
TPU_MUST_USE tpu_status_t tpu_random_fill(const tpu_random_draw_t* draw, tpu_dtype_t result,
                                          int64_t first, int64_t last, void* out);

/* Writes 0 ... count - 1 in random order as I64 (count up to 2^32) or I32 (2^31). This order is the
 * CPU platform's own: the StableHLO form sorts random keys instead. Long ones take 4 bytes of
 * memory per number. */
TPU_MUST_USE tpu_status_t tpu_random_permutation(uint64_t seed, uint64_t offset, tpu_dtype_t result,
                                                 int64_t count, void* out);

/* Draws from rows of classes: `samples` numbers of classes for each row of `weights` [rows,
 * classes], which need not add up to 1, to `out` [rows, samples]. Without replacement, samples <=
 * classes: those with the largest weight / exponential draw, in that order. */
typedef struct tpu_random_classes_t {
  uint64_t seed, offset;  // draws are in the wide form
  tpu_dtype_t dtype;      // of the weights: F32 or F64
  int64_t classes, samples;
  bool replacement;
  const void* weights;
  int64_t* out;
} tpu_random_classes_t;
/* Rows [first, last), on any thread. */
TPU_MUST_USE tpu_status_t tpu_random_draw_classes(const tpu_random_classes_t* draw, int64_t first,
                                                  int64_t last);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_HOST_RANDOM_H_
