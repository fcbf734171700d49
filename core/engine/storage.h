/* Storages and the values they hold. Where there is a lane, it is the one that may record: what the
 * storage holds is not recorded in another one. */
#ifndef TPU_ENGINE_STORAGE_H_
#define TPU_ENGINE_STORAGE_H_

#include "engine/state.h"

TPU_MUST_USE tpu_status_t tpui_storage_make(tpu_engine_t* engine, int64_t nbytes,
                                            tpu_storage_t** out_storage);
/* Makes `value` (taken) the content. When `undoable`, the old content can come back (flight.c). */
TPU_MUST_USE tpu_status_t tpui_storage_bind(tpui_lane_t* lane, tpu_storage_t* storage,
                                            tpu_value_t* value, bool undoable);
/* Gives the storage a value if it has none: zeros, laid out for `view`. */
TPU_MUST_USE tpu_status_t tpui_storage_ensure_value(tpui_lane_t* lane, tpu_storage_t* storage,
                                                    tpu_meta_id_t view);
/* Metadata of the whole storage as a vector of this dtype (bytes if the size does not divide). */
TPU_MUST_USE tpu_status_t tpui_storage_flat(const tpu_storage_t* storage, tpu_dtype_t dtype,
                                            tpu_meta_id_t* out_meta);
/* True when `view` at `offset` is the whole storage, each element once. */
bool tpui_storage_is_whole(const tpu_storage_t* storage, tpu_meta_id_t view, int64_t offset);

/* Writes `value` (taken; sizes of `view`) into the part of the storage that the view names. */
TPU_MUST_USE tpu_status_t tpui_storage_write(tpui_lane_t* lane, tpu_storage_t* storage,
                                             tpu_meta_id_t view, int64_t offset,
                                             tpu_value_t* value);

/* True when the call does its work inside a part of a large storage: its result is then recorded as
 * the storage's whole content (TPU_CALL_THROUGH). Makes the content row-major and of the view's
 * dtype first. */
TPU_MUST_USE tpu_status_t tpui_storage_prepare_through(tpui_lane_t* lane, const tpu_call_t* call,
                                                       bool* out_through);

/* Gives operands values, since that may record an op. The error of a failed one names `reader`. */
TPU_MUST_USE tpu_status_t tpui_prepare_operands(tpui_lane_t* lane, int count,
                                                const tpu_operand_t* operands, const char* reader);

/* The content as a vector of `dtype`, with one reference; identity when it is one already. */
TPU_MUST_USE tpu_status_t tpui_storage_flat_value(tpui_lane_t* lane, tpu_storage_t* storage,
                                                  tpu_dtype_t dtype, tpu_value_t** out_value);

#endif  // TPU_ENGINE_STORAGE_H_
