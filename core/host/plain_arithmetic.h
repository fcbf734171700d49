/* Arithmetic that does not depend on the calling thread: the plugin's threads flush denormals to
 * zero, others do not. Internal to host/.
 */
#ifndef TPU_HOST_PLAIN_ARITHMETIC_H_
#define TPU_HOST_PLAIN_ARITHMETIC_H_

#include <fenv.h>

/* From here to the end: IEEE 754 with denormals, rounding to nearest. What is computed must be in
 * another function: the compiler may move operations across these calls. */
static inline void tpui_plain_arithmetic_begin(fenv_t* out_before) {
  (void)fegetenv(out_before);
  (void)fesetenv(FE_DFL_ENV);
}
static inline void tpui_plain_arithmetic_end(const fenv_t* before) { (void)fesetenv(before); }

#endif  // TPU_HOST_PLAIN_ARITHMETIC_H_
