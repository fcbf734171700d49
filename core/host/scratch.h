/* Working memory of kernels. Internal to host/. */
#ifndef TPU_HOST_SCRATCH_H_
#define TPU_HOST_SCRATCH_H_

#include "base/status.h"

/* Memory of at least `bytes`, aligned for uint64_t, not zeroed. Large blocks are in huge pages,
 * and one of them is kept for the next call: fresh pages cost about as much as sorting what fits
 * into them. */
TPU_MUST_USE tpu_status_t tpui_scratch_take(size_t bytes, void** out_memory);
/* NULL is fine. */
void tpui_scratch_give(void* memory);

#endif  // TPU_HOST_SCRATCH_H_
