/* What kernels that draw random numbers have in common. Internal to host/. */
#ifndef TPU_HOST_RANDOM_CALL_H_
#define TPU_HOST_RANDOM_CALL_H_

#include "host/host_internal.h"

/* The last two operands: seed and offset, UINT64 of rank 0. */
TPU_MUST_USE tpu_status_t tpui_random_state(const tpu_host_call_t* call, uint64_t* out_seed,
                                            uint64_t* out_offset);

#endif  // TPU_HOST_RANDOM_CALL_H_
