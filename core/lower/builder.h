/* The StableHLO builder that every op family writes with. Internal to lower/.
 *
 * A tpui_hlo_t is one SSA value with its type. Functions emit an operation and return its result.
 * Errors are latched: after the first one every call returns a harmless value and emits nothing, so
 * lowering functions are straight lines without checks. Shapes and dtypes are checked here before
 * the plugin sees them (a malformed program can abort the process inside XLA).
 *
 * Every dims/sizes array is copied; callers may use stack arrays.
 */
#ifndef TPU_LOWER_BUILDER_H_
#define TPU_LOWER_BUILDER_H_

#include "lower/lower.h"

typedef struct tpui_builder_t tpui_builder_t;

typedef struct tpui_hlo_t {
  int32_t id;  // SSA number; -1 after an error
  tpu_dtype_t dtype;
  int32_t rank;
  const int64_t* sizes;  // borrowed from the builder
} tpui_hlo_t;

/* What a lowering function gets: the builder and the record it lowers. */
typedef struct tpui_lowering_t {
  tpui_builder_t* b;
  const tpu_record_t* record;
  const char* argument;  // the op table's column
} tpui_lowering_t;
typedef void (*tpui_lowering_fn_t)(const tpui_lowering_t* op);

/* Facts about the platform that the program is written for. */
const tpu_platform_t* tpui_target(const tpui_builder_t* b);
/* Whether the program may call C kernels: see lower/host_call.h. */
bool tpui_host_calls(const tpui_builder_t* b);

/* Latches an error (the first one wins); the op's name goes in front. */
void tpui_fail(tpui_builder_t* b, tpu_status_code_t code, const char* format, ...) TPU_PRINTF(3, 4);
bool tpui_ok(const tpui_builder_t* b);

/* --- operands, attributes and results of the record --- */

int tpui_operand_count(const tpui_lowering_t* op);
bool tpui_has_operand(const tpui_lowering_t* op, int k);  // in range and not NONE
/* Metadata of operand k as the user sees it (view sizes); NULL for scalars and NONE. */
const tpu_meta_t* tpui_operand_meta(const tpui_lowering_t* op, int k);
/* Operand k: a tensor decoded through its view, or a scalar as a rank-0 value of its own dtype. */
tpui_hlo_t tpui_operand(const tpui_lowering_t* op, int k);
/* The same converted to `dtype`. */
tpui_hlo_t tpui_operand_as(const tpui_lowering_t* op, int k, tpu_dtype_t dtype);
/* True when operand k is a scalar whose value is fixed in this program; gives the value. For
 * shortcuts only (x*1, pow 2): the lowering must also work when this returns false. */
bool tpui_operand_constant(const tpui_lowering_t* op, int k, double* out_value);
/* Attribute readers are ops/attrs.h with op->record->attrs. */

/* Of a record that writes through operand 0's view: of that view. */
const tpu_meta_t* tpui_result_meta(const tpui_lowering_t* op, int k);
/* True when the value behind operand k is also gathered from in this program. */
bool tpui_is_gathered(const tpui_lowering_t* op, int k);
/* True when result 0 is to be the content behind operand 0 (TPU_CALL_THROUGH). tpui_set_result then
 * takes what the view shall hold and writes it there. */
bool tpui_writes_through(const tpui_lowering_t* op);
/* Sets result k. Converts to the result's dtype, broadcasts a rank-0 value; other shape differences
 * are an internal error that names the op. */
void tpui_set_result(const tpui_lowering_t* op, int k, tpui_hlo_t value);
/* False when nobody reads result k: its work can be left out (tpui_set_result is then optional). */
bool tpui_result_needed(const tpui_lowering_t* op, int k);

/* --- constants and shapes --- */

tpui_hlo_t tpui_constant(tpui_builder_t* b, tpu_dtype_t dtype, double value);       // rank 0
tpui_hlo_t tpui_constant_int(tpui_builder_t* b, tpu_dtype_t dtype, int64_t value);  // rank 0
tpui_hlo_t tpui_full(tpui_builder_t* b, tpu_dtype_t dtype, double value, int rank,
                     const int64_t* sizes);
/* Lowest/highest finite-or-infinite value of a dtype (identity of max/min), rank 0. */
tpui_hlo_t tpui_lowest(tpui_builder_t* b, tpu_dtype_t dtype);
tpui_hlo_t tpui_highest(tpui_builder_t* b, tpu_dtype_t dtype);
tpui_hlo_t tpui_constant_ints(tpui_builder_t* b, tpu_dtype_t dtype, int count,
                              const int64_t* values);  // rank 1
tpui_hlo_t tpui_iota(tpui_builder_t* b, tpu_dtype_t dtype, int rank, const int64_t* sizes, int dim);
/* What positions below `count`, and `count` itself, are counted in: I32 where it holds them. */
tpu_dtype_t tpui_index_dtype(int64_t count);

tpui_hlo_t tpui_convert(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype);  // PyTorch's rules:
// to bool is x != 0, float to int truncates
tpui_hlo_t tpui_bitcast(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype);  // equal byte size
tpui_hlo_t tpui_reshape(tpui_builder_t* b, tpui_hlo_t x, int rank, const int64_t* sizes);
tpui_hlo_t tpui_transpose(tpui_builder_t* b, tpui_hlo_t x, const int* permutation);
/* `dims[i]` is the output dimension that x's dimension i becomes. */
tpui_hlo_t tpui_broadcast_in_dim(tpui_builder_t* b, tpui_hlo_t x, int rank, const int64_t* sizes,
                                 const int* dims);
/* NumPy broadcasting to `sizes` (right-aligned, size 1 stretches). */
tpui_hlo_t tpui_broadcast_to(tpui_builder_t* b, tpui_hlo_t x, int rank, const int64_t* sizes);
/* Broadcasts two values to their common shape. */
void tpui_broadcast_pair(tpui_builder_t* b, tpui_hlo_t* x, tpui_hlo_t* y);
tpui_hlo_t tpui_unsqueeze(tpui_builder_t* b, tpui_hlo_t x, int dim);
tpui_hlo_t tpui_squeeze(tpui_builder_t* b, tpui_hlo_t x, int dim);

/* --- elementwise; operands of two-operand forms are broadcast, dtypes must agree --- */

/* `name` is the StableHLO op without dialect ("negate", "exponential", "add", ...). */
tpui_hlo_t tpui_unary(tpui_builder_t* b, const char* name, tpui_hlo_t x);
tpui_hlo_t tpui_binary(tpui_builder_t* b, const char* name, tpui_hlo_t x, tpui_hlo_t y);
static inline tpui_hlo_t tpui_add(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  return tpui_binary(b, "add", x, y);
}
static inline tpui_hlo_t tpui_sub(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  return tpui_binary(b, "subtract", x, y);
}
static inline tpui_hlo_t tpui_mul(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  return tpui_binary(b, "multiply", x, y);
}
static inline tpui_hlo_t tpui_div(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  return tpui_binary(b, "divide", x, y);
}
tpui_hlo_t tpui_binary_constant(tpui_builder_t* b, const char* name, tpui_hlo_t x, double y);
/* chlo.<name>: erf, lgamma, digamma, ... */
tpui_hlo_t tpui_chlo(tpui_builder_t* b, const char* name, tpui_hlo_t x);
/* direction: "EQ" "NE" "LT" "LE" "GT" "GE"; result is BOOL. */
tpui_hlo_t tpui_compare(tpui_builder_t* b, const char* direction, tpui_hlo_t x, tpui_hlo_t y);
tpui_hlo_t tpui_compare_constant(tpui_builder_t* b, const char* direction, tpui_hlo_t x, double y);
/* Broadcasts all three; `condition` is BOOL. */
tpui_hlo_t tpui_select(tpui_builder_t* b, tpui_hlo_t condition, tpui_hlo_t if_true,
                       tpui_hlo_t if_false);
tpui_hlo_t tpui_is_nan(tpui_builder_t* b, tpui_hlo_t x);  // all false for integral dtypes

/* --- moving data --- */

tpui_hlo_t tpui_slice(tpui_builder_t* b, tpui_hlo_t x, const int64_t* starts, const int64_t* limits,
                      const int64_t* steps /* NULL: 1 */);
tpui_hlo_t tpui_slice_dim(tpui_builder_t* b, tpui_hlo_t x, int dim, int64_t start, int64_t limit);
/* `starts`: `rank` rank-0 integer values of one dtype. */
tpui_hlo_t tpui_dynamic_slice(tpui_builder_t* b, tpui_hlo_t x, const tpui_hlo_t* starts,
                              const int64_t* sizes);
tpui_hlo_t tpui_dynamic_update_slice(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t update,
                                     const tpui_hlo_t* starts);
/* Negative low/high crop. `interior` may be NULL. */
tpui_hlo_t tpui_pad(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t value, const int64_t* low,
                    const int64_t* high, const int64_t* interior);
tpui_hlo_t tpui_concatenate(tpui_builder_t* b, int count, const tpui_hlo_t* parts, int dim);
/* The same value; XLA moves nothing across, and fuses nothing. */
tpui_hlo_t tpui_barrier(tpui_builder_t* b, tpui_hlo_t x);
tpui_hlo_t tpui_reverse(tpui_builder_t* b, tpui_hlo_t x, int count, const int* dims);

/* --- reductions --- */

/* `kind`: "add" "multiply" "maximum" "minimum" "and" "or"; NaN propagates through maximum/minimum
 * as in PyTorch. Reduced dimensions disappear. The identity is the kind's own. */
tpui_hlo_t tpui_reduce(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int count,
                       const int* dims);
/* Reduced dimensions stay with size 1. */
tpui_hlo_t tpui_reduce_keep(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int count,
                            const int* dims);
/* Index (of tpui_index_dtype) of the maximum ("GT") or minimum ("LT") along one dimension; the
 * first one wins, NaN counts as extreme. Also gives the value. The dimension disappears. */
void tpui_arg_reduce(tpui_builder_t* b, const char* direction, tpui_hlo_t x, int dim,
                     tpui_hlo_t* out_value, tpui_hlo_t* out_index);

/* --- matrices --- */

/* stablehlo.dot_general. Result: batch dims, then x's free dims, then y's free dims. Accumulates in
 * `result_dtype`. */
tpui_hlo_t tpui_dot_general(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y, int batch_count,
                            const int* x_batch, const int* y_batch, int contract_count,
                            const int* x_contract, const int* y_contract, tpu_dtype_t result_dtype);

/* --- escape hatch: text for the rarer operations (gather, scatter, sort, convolution, ...) --- */

/* Raw operation. `format` is printf text for everything between the op name and the type signature,
 * e.g. op "stablehlo.sort". The builder writes the generic form,
 *   %N = "name"(operands) <attributes> : (types) -> type
 * `attributes` is the text of "<{...}>" or "", `region` the text of "({...})" or "". Result type
 * from dtype/rank/sizes. Use tpui_raw_multi for several results. */
tpui_hlo_t tpui_raw(tpui_builder_t* b, const char* name, int operand_count,
                    const tpui_hlo_t* operands, const char* attributes, const char* region,
                    tpu_dtype_t dtype, int rank, const int64_t* sizes);
typedef struct tpui_type_t {
  tpu_dtype_t dtype;
  int rank;
  const int64_t* sizes;
} tpui_type_t;
void tpui_raw_multi(tpui_builder_t* b, const char* name, int operand_count,
                    const tpui_hlo_t* operands, const char* attributes, const char* region,
                    int result_count, const tpui_type_t* results, tpui_hlo_t* out_results);

/* Text helpers for attributes: "dense<[1, 2]> : tensor<2xi64>", "array<i64: 1, 2>",
 * "tensor<2x3xf32>". The text lives as long as the builder. */
const char* tpui_text(tpui_builder_t* b, const char* format, ...) TPU_PRINTF(2, 3);
const char* tpui_text_array(tpui_builder_t* b, int count,
                            const int64_t* values);                               // array<i64: ...>
const char* tpui_text_ints(tpui_builder_t* b, int count, const int64_t* values);  // "1, 2"
const char* tpui_text_type(tpui_builder_t* b, tpui_type_t type);
/* Attribute of products of two operands of this dtype: float32 keeps all its bits, unless the
 * record being lowered says otherwise (tpu_precision_t). */
const char* tpui_text_precision(const tpui_builder_t* b, tpu_dtype_t dtype);
/* Region with one op on rank-0 arguments, such as "add": for reductions, scatters and the like. */
const char* tpui_text_combiner(tpui_builder_t* b, const char* kind, tpu_dtype_t dtype);

/* --- views --- */

/* Reads `base` (an SSA value holding a storage's content with metadata `base_meta`) through a view,
 * including dtype views. `slot` is the window slot with the offset. */
tpui_hlo_t tpui_view_read(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                          const tpu_meta_t* view, uint32_t slot);
/* The content of `base` with `update` (sizes of `view`) written through the view; base's type. */
tpui_hlo_t tpui_view_write(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                           const tpu_meta_t* view, uint32_t slot, tpui_hlo_t update);

/* --- checks of data: told to the host beside the results (lower/check.h) --- */

/* All of `index` lies in [0, size), or in [-size, size) with `negative`; else an index error that
 * names `dim` (-1: none). Nothing is emitted for an empty index. */
void tpui_check_index(const tpui_lowering_t* op, tpui_hlo_t index, int64_t size, bool negative,
                      int dim);
/* No element of `bad` (BOOL) is true; else an error with `text`, a literal that follows the op's
 * name. */
void tpui_check_none(const tpui_lowering_t* op, tpui_hlo_t bad, tpu_status_code_t code,
                     const char* text);
/* All elements of `x` lie in [low, high], and none is NaN; an infinite `high` bounds nothing. */
void tpui_check_within(const tpui_lowering_t* op, tpui_hlo_t x, double low, double high,
                       const char* text);
/* `number`, rank 0 and not negative, is at most `most`. */
void tpui_check_at_most(const tpui_lowering_t* op, tpui_hlo_t number, int64_t most,
                        tpu_status_code_t code, const char* text);
/* False when checks are switched off: what only they need can be left out. */
bool tpui_checks_data(const tpui_builder_t* b);

/* --- views of something large --- */

/* How operand 0 of a SPARSE record (ops/ops.h) lies in the content that it is a view of; false when
 * it is no view, or one that is decoded like others. And the way back, for records that write
 * through it: `array`, the axes' array in its new state, becomes result 0. */
typedef struct tpui_axes_t tpui_axes_t;
bool tpui_view_axes(const tpui_lowering_t* op, tpui_axes_t* out_axes);
void tpui_view_set_axes(const tpui_lowering_t* op, const tpui_axes_t* axes, tpui_hlo_t array);

/* Memory for lowering functions that need arrays of unknown length; freed with the builder. NULL
 * after an error. */
void* tpui_arena(tpui_builder_t* b, size_t bytes);

#endif  // TPU_LOWER_BUILDER_H_
