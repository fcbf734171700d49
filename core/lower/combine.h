/* Writing by index with arithmetic: what is there and what comes are added, multiplied, compared.
 * Internal to lower/. */
#ifndef TPU_LOWER_COMBINE_H_
#define TPU_LOWER_COMBINE_H_

#include "lower/axes.h"

typedef struct tpui_combine_t {
  const char* kind;   // "add", "multiply", "maximum", "minimum"
  tpu_dtype_t dtype;  // in which numbers are combined
  bool without_self;  // what is there does not take part
  bool mean;          // the sum is divided by the number of its parts
} tpui_combine_t;

/* True when the picked elements are to be combined apart from the tensor: it is a view, or large
 * beside them. */
bool tpui_combines_apart(const tpui_axes_t* x, const tpui_pick_t* pick);

/* Makes result 0: x, whose array has the tensor's dtype, with `updates` (of the dtype of `how`;
 * shape as in tpui_axes_scatter) combined into the picked elements. Touches nothing else of it.
 * Gives the bits that combining in a whole tensor of that dtype would give. */
void tpui_combine_apart(const tpui_lowering_t* op, const tpui_axes_t* x, const tpui_pick_t* pick,
                        tpui_hlo_t updates, const tpui_combine_t* how);

#endif  // TPU_LOWER_COMBINE_H_
