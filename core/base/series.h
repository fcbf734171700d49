/* Coefficients that C kernels in host/ and programs written by lower/ share, so that their numbers
 * agree. */
#ifndef TPU_BASE_SERIES_H_
#define TPU_BASE_SERIES_H_

/* sin(x) / x as a polynomial of x^2 without its last coefficient, 1: (-1)^k / (2k + 1)! for k = 10
 * to 1. Ten of them reach float64, the last five float32, for |x| <= pi / 2. */
#define TPU_SINE_SERIES                                                                   \
  1 / 51090942171709440000.0, -1 / 121645100408832000.0, 1 / 355687428096000.0,           \
      -1 / 1307674368000.0, 1 / 6227020800.0, -1 / 39916800.0, 1 / 362880.0, -1 / 5040.0, \
      1 / 120.0, -1 / 6.0

#endif  // TPU_BASE_SERIES_H_
