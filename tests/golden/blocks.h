/* Which basic blocks of the lowering ran: how capture.py knows that a window adds something.
 *
 * Only in builds with -DTPU_GOLDEN_BLOCKS=ON, which compile core/lower, core/partition and core/ops
 * with a call per block; elsewhere no block is ever seen.
 */
#ifndef TPU_TESTS_GOLDEN_BLOCKS_H_
#define TPU_TESTS_GOLDEN_BLOCKS_H_

#include <stdio.h>

/* Forgets the blocks seen so far. */
void golden_blocks_reset(void);
/* Writes a line of numbers, one per block seen since; they mean the same throughout a build. */
void golden_blocks_print(FILE* out);

#endif  // TPU_TESTS_GOLDEN_BLOCKS_H_
