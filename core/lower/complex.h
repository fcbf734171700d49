/* Functions of complex numbers with the branch cuts, infinities and signed zeros of C's Annex G,
 * which XLA's forms leave to their formulas. Internal to lower/. */
#ifndef TPU_LOWER_COMPLEX_H_
#define TPU_LOWER_COMPLEX_H_

#include "lower/builder.h"

static inline bool tpui_is_complex(tpui_hlo_t x) {
  return tpu_dtype_kind(x.dtype) == TPU_KIND_COMPLEX;
}

/* `name` of a StableHLO operation, or "chlo." and a CHLO name; z is complex. */
tpui_hlo_t tpui_complex_unary(tpui_builder_t* b, const char* name, tpui_hlo_t z);
/* The magnitude: infinite where a part is, even if the other is NaN. */
tpui_hlo_t tpui_complex_abs(tpui_builder_t* b, tpui_hlo_t z);
/* Both parts multiplied by a number. */
tpui_hlo_t tpui_complex_scale(tpui_builder_t* b, tpui_hlo_t z, double factor);
/* exp(y log x) where XLA's power is not finite. */
tpui_hlo_t tpui_complex_power(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y);
/* The same for one real number y that is known only when the program runs; exponents that PyTorch
 * has better forms for are those forms. */
tpui_hlo_t tpui_complex_power_by_number(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y);
/* log(exp(x) + exp(y)), the one of larger real part in front. */
tpui_hlo_t tpui_complex_log_add(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y);

#endif  // TPU_LOWER_COMPLEX_H_
