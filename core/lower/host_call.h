/* Calling the C kernels of host/ from a program. Internal to lower/.
 *
 * Only where tpui_host_calls(b) holds; every lowering that uses a kernel also has a way without.
 */
#ifndef TPU_LOWER_HOST_CALL_H_
#define TPU_LOWER_HOST_CALL_H_

#include "lower/builder.h"

/* An integer attribute of a call. */
typedef struct tpui_call_attr_t {
  const char* name;
  int64_t value;
} tpui_call_attr_t;

/* Emits a call to "tpu_host_<kernel>" (the rows of host/host_kernels.def) with row-major operands
 * and results. Attributes are in the order of their names. */
void tpui_host_call(tpui_builder_t* b, const char* kernel, int operand_count,
                    const tpui_hlo_t* operands, int attr_count, const tpui_call_attr_t* attrs,
                    int result_count, const tpui_type_t* results, tpui_hlo_t* out_results);

#endif  // TPU_LOWER_HOST_CALL_H_
