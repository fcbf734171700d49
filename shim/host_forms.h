// What files with forms of single rows share.
#ifndef TPU_SHIM_HOST_FORMS_H_
#define TPU_SHIM_HOST_FORMS_H_

#include "host_ops.h"

namespace tpu_shim {

using R = const HostRecord&;
using Results = HostResults*;

// Forms of single rows, for the table of host_manual.cpp.
void lstm_cell(R r, Results results);
void lstm_cell_backward(R r, Results results);
void gru_cell(R r, Results results);
void gru_cell_backward(R r, Results results);
void sdpa_forward(R r, Results results);
void sdpa_backward(R r, Results results);

// Decisions that are true with probability 1 - p, as programs draw them (lower/random.h): seed and
// offset are operands `state_at` and the next. `wide`: see tpu_random_draw_t.
at::Tensor drawn_mask(R r, int state_at, double p, bool wide, c10::IntArrayRef sizes);

}  // namespace tpu_shim

#endif  // TPU_SHIM_HOST_FORMS_H_
