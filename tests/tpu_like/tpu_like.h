/* A PJRT plugin that computes with XLA's CPU plugin and otherwise behaves as libtpu does where the
 * two differ:
 *
 * - buffers have the device layout that wastes least of the chip's tiles, often not row-major, and
 *   are delivered to the host in that order unless the caller asks for another;
 * - device memory has no host address, counts in whole tiles and ends: RESOURCE_EXHAUSTED when a
 *   buffer or a program's results do not fit;
 * - programs and transfers run behind the host, in the order of the calls; what fails late, fails
 *   the results and the completion events;
 * - what libtpu does not compile is refused: products and convolutions of 64-bit integers, custom
 *   calls that it does not know;
 * - 1 to 8 devices; struct sizes of PJRT 0.112 to 0.117.
 *
 * What it does not show: a TPU's numbers (bfloat16 passes, float64 as pairs), its speed, and most
 * of its compiler's limits.
 *
 * Settings come from the environment: TPU_LIKE_PLUGIN=<the CPU plugin>, and each row of
 * tpu_like_values.def as TPU_LIKE_<NAME>. A test in the same process reads and changes them through
 * the two functions below.
 */
#ifndef TPU_TESTS_TPU_LIKE_TPU_LIKE_H_
#define TPU_TESTS_TPU_LIKE_TPU_LIKE_H_

#include <stdint.h>

/* -1 for a name that is not in the table. */
int64_t tpu_like_get(const char* name);
int64_t tpu_like_set(const char* name, int64_t value);

#endif  // TPU_TESTS_TPU_LIKE_TPU_LIKE_H_
