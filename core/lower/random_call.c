/* Random numbers from the C kernels of host/random_call.c. */
#include "lower/host_call.h"
#include "lower/random.h"

enum { MAX_PARAMETERS = 2 };

tpui_hlo_t tpui_random_call(const tpui_random_t* r, const char* kernel, int parameter_count,
                            const tpui_hlo_t* parameters, tpu_dtype_t result, int rank,
                            const int64_t* sizes) {
  tpui_builder_t* b = r->b;
  tpui_hlo_t operands[MAX_PARAMETERS + 2], drawn;
  if (parameter_count > MAX_PARAMETERS) {
    tpui_fail(b, TPU_INTERNAL, "%d parameters", parameter_count);
    return r->seed;
  }
  for (int i = 0; i < parameter_count; ++i) {
    bool whole = parameters[i].rank > 0;
    operands[i] = whole ? tpui_broadcast_to(b, parameters[i], rank, sizes) : parameters[i];
  }
  operands[parameter_count] = r->seed;
  operands[parameter_count + 1] = r->offset;
  const tpui_call_attr_t wide = {"wide", r->wide};
  tpui_host_call(b, kernel, parameter_count + 2, operands, 1, &wide, 1,
                 &(tpui_type_t){result, rank, sizes}, &drawn);
  return drawn;
}

tpu_dtype_t tpui_random_result(tpu_dtype_t result, tpu_dtype_t math, bool whole) {
  bool small = result == TPU_F32 || result == TPU_F16 || result == TPU_BF16;
  if (small && (whole || math == TPU_F32)) return result;
  return whole && (result == TPU_F64 || tpu_dtype_is_integral(result)) ? result : math;
}
