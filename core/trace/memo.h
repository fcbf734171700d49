/* The signature memo: what PyTorch answered once about an op's output metadata.
 *
 * A signature is (op, variant, attrs, per operand: view id, scalar dtype and weakness, or none, per
 * written result: destination view), in words that engine/record.c lays out. Which values an op
 * reads does not count.
 */
#ifndef TPU_TRACE_MEMO_H_
#define TPU_TRACE_MEMO_H_

#include "types/meta.h"

typedef struct tpu_memo_t tpu_memo_t;

TPU_MUST_USE tpu_status_t tpu_memo_create(tpu_memo_t** out_memo);
void tpu_memo_destroy(tpu_memo_t* memo);

/* `signature` is `size` words. Gives the stored answer (`answer_size` words: compute dtype, then
 * one metadata id per result), or NULL. Valid until the next learn. */
const uint32_t* tpu_memo_find(const tpu_memo_t* memo, const uint32_t* signature, size_t size);
TPU_MUST_USE tpu_status_t tpu_memo_learn(tpu_memo_t* memo, const uint32_t* signature, size_t size,
                                         const uint32_t* answer, size_t answer_size);

#endif  // TPU_TRACE_MEMO_H_
