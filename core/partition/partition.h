/* Partition: a window -> an ordered list of programs. A pure function of its arguments.
 *
 *   1. records whose results nobody needs are dropped, unless they check their data (an index out
 *      of range raises an error also when nobody reads the result);
 *   2. long runs of pointwise records (optimizers) are reordered so that what belongs to one tensor
 *      stands together (values are immutable, so any topological order gives the same results);
 *   3. repeated sub-sequences (the layers of a model) are found and cut at the same place of each
 *      repeat, where the fewest bytes cross; the rest is cut by size, again where the fewest bytes
 *      cross. Equal sub-sequences thus become programs with equal text, which compile once.
 *
 *   Records that have no lowering (TPU_OP_HOST) are programs of their own;
 *   4. numbers in which such programs still differ (places in a sequence) become arguments.
 *
 * Why cut at all: compile time then does not grow with depth, and XLA:CPU fuses long residual
 * chains into every consumer and recomputes them (docs/decisions/001-partition.md).
 */
#ifndef TPU_PARTITION_PARTITION_H_
#define TPU_PARTITION_PARTITION_H_

#include "partition/program.h"

typedef struct tpu_partition_options_t {
  uint32_t max_records;            // most records in one program
  uint32_t min_records;            // repeats shorter than this are chunked together
  bool single;                     // one program per record (to find the one that fails)
  const tpu_platform_t* platform;  // that programs are written for
  bool host_calls;                 // they may call the C kernels of host/
  bool checks;                     // they also say whether indices and the like are in order
} tpu_partition_options_t;

typedef struct tpu_partition_t {
  uint32_t program_count;
  tpu_program_t* programs;  // owned, with the arrays below
  uint32_t* records;
  tpu_program_input_t* inputs;
  uint32_t* outputs;
} tpu_partition_t;

/* `live[v]`: value v is needed after the window. `external_dead[e]`: nobody else holds external e,
 * so its last user may take its content. Programs borrow `window` and
 * `slot_dynamic` [window->slot_count], which may still be changed before they are lowered. */
TPU_MUST_USE tpu_status_t tpu_partition(const tpu_window_t* window, const uint8_t* live,
                                        const uint8_t* external_dead, const uint8_t* slot_dynamic,
                                        const tpu_partition_options_t* options,
                                        tpu_partition_t* out_partition);
/* Programs of some of a window's records (in an order in which they can be computed), for a second
 * try: one, or one per record when options->single. */
TPU_MUST_USE tpu_status_t tpu_partition_records(const tpu_window_t* window, const uint32_t* records,
                                                uint32_t count, const uint8_t* live,
                                                const uint8_t* external_dead,
                                                const uint8_t* slot_dynamic,
                                                const tpu_partition_options_t* options,
                                                tpu_partition_t* out_partition);
void tpu_partition_free(tpu_partition_t* partition);

/* Marks in `dynamic` [window->slot_count] the numbers (window->slots) in which programs differ that
 * are equal otherwise: as arguments they let these programs have one text. */
TPU_MUST_USE tpu_status_t tpu_partition_share(const tpu_window_t* window,
                                              const tpu_partition_t* partition, uint8_t* dynamic);

/* Number of records after which the window's second half repeats itself, 0 if it does not: a loop
 * that never asks for a result. */
TPU_MUST_USE tpu_status_t tpu_partition_period(const tpu_window_t* window, uint32_t* out_period);

#endif  // TPU_PARTITION_PARTITION_H_
