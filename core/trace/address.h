/* Fake addresses: every storage that is not empty owns a range in one reservation that nobody can
 * read, so that pointer identity (tied weights, overlap checks, pickling) works as on any device.
 *
 * The reservation is cut into superblocks of 16 MiB. Small ranges share a superblock of their size
 * class (powers of two from 256 bytes), larger ones take whole superblocks. Ranges are reused after
 * they are freed. All calls belong to the engine lock.
 */
#ifndef TPU_TRACE_ADDRESS_H_
#define TPU_TRACE_ADDRESS_H_

#include "base/status.h"

typedef struct tpu_address_space_t tpu_address_space_t;

TPU_MUST_USE tpu_status_t tpu_address_space_create(tpu_address_space_t** out_space);
void tpu_address_space_destroy(tpu_address_space_t* space);

/* A range of at least `size` > 0 bytes that belongs to `owner`; 256-byte aligned. */
TPU_MUST_USE tpu_status_t tpu_address_take(tpu_address_space_t* space, int64_t size, void* owner,
                                           void** out_address);
/* Gives a range back; NULL is fine. */
void tpu_address_give(tpu_address_space_t* space, void* address);
/* Owner of the range around `address`, or NULL. */
void* tpu_address_owner(const tpu_address_space_t* space, const void* address);

#endif  // TPU_TRACE_ADDRESS_H_
