/* The stages of tpu_partition, and what they share. */
#ifndef TPU_PARTITION_STAGES_H_
#define TPU_PARTITION_STAGES_H_

#include "partition/partition.h"

/* What a record does (op, attributes, metadata), without which values it does it to. */
uint64_t tpui_partition_signature(const tpu_window_t* window, uint32_t record);

/* Order of the needed records; `out_order` has room for window->record_count. With `checks`, those
 * that check their data are needed. */
TPU_MUST_USE tpu_status_t tpui_partition_order(const tpu_window_t* window, const uint8_t* live,
                                               bool checks, uint32_t* out_order,
                                               uint32_t* out_count);
/* Start positions of programs in `order`, first one 0; `out_cuts` has room for `count`. */
TPU_MUST_USE tpu_status_t tpui_partition_cuts(const tpu_window_t* window, const uint32_t* order,
                                              uint32_t count,
                                              const tpu_partition_options_t* options,
                                              uint32_t* out_cuts, uint32_t* out_cut_count);

#endif  // TPU_PARTITION_STAGES_H_
