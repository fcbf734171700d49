/* What tests ask of and do to the allocations of base/alloc.h; the core itself uses none of it. */
#ifndef TPU_BASE_ALLOC_HOOKS_H_
#define TPU_BASE_ALLOC_HOOKS_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The n-th allocation from now fails once (1 = the next); 0 switches it off. */
void tpu_alloc_fail_at(int64_t n);
/* True while the failure of tpu_alloc_fail_at is still to come: fewer allocations were made. */
bool tpu_alloc_fail_pending(void);
/* Allocations made minus frees since the process began. For leak checks in tests. */
int64_t tpu_alloc_live_count(void);
/* Allocations made since the process began. */
int64_t tpu_alloc_total_count(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_ALLOC_HOOKS_H_
