/* The engine: the only place that knows the order record -> flush -> partition -> lower -> compile
 * -> launch. This is the API that the shim uses.
 *
 * A storage (tpu_storage_t) stands behind one c10::StorageImpl. It holds a reference to its current
 * value; in-place operations rebind it to a new value. Values are immutable and internal to core/.
 *
 * All functions are thread-safe; one lock orders recording. Each thread fills a window of its own
 * (see lane.h); what they see of each other's tensors is as if there were one. The engine never
 * calls back into its user while it holds that lock.
 */
#ifndef TPU_ENGINE_ENGINE_H_
#define TPU_ENGINE_ENGINE_H_

#include "compile/compile.h"
#include "device/device.h"
#include "engine/mode.h"
#include "launch/host_step.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "types/meta.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tpu_engine_t tpu_engine_t;
typedef struct tpu_storage_t tpu_storage_t;
typedef struct tpu_channel_t tpu_channel_t;

/* Loads the plugin, registers the C kernels of host/ with it and makes the engine, in
 * tpu_eager_mode_default. Limits come from the environment table. */
TPU_MUST_USE tpu_status_t tpu_engine_create(const tpu_device_options_t* options,
                                            tpu_engine_t** out_engine);
void tpu_engine_destroy(tpu_engine_t* engine);
tpu_device_t* tpu_engine_device(tpu_engine_t* engine);
tpu_compiler_t* tpu_engine_compiler(tpu_engine_t* engine);

tpu_eager_mode_t tpu_engine_mode(const tpu_engine_t* engine);
/* Whether NaN and infinity made from finite numbers are errors: in Debug mode, when asked for, and
 * not while they are expected (a gradient scaler tries how large gradients may get). */
bool tpu_engine_checks_finite(const tpu_engine_t* engine);
void tpu_engine_expect_nonfinite(tpu_engine_t* engine, bool expected);
/* Whether errors are to say where ops were recorded: then tpu_location_set precedes a record. */
bool tpu_engine_traces(const tpu_engine_t* engine);
/* Flushes first, so that nothing recorded under one policy runs under another. */
TPU_MUST_USE tpu_status_t tpu_engine_set_mode(tpu_engine_t* engine, tpu_eager_mode_t mode);

/* Waits for the device ask `stop` every 100 ms, from the waiting thread and without any lock: where
 * it says true they give up with TPU_CANCELLED. What was launched goes on, and nothing is lost. Set
 * it before other threads use the engine; NULL: never asked. */
void tpu_engine_set_stop(tpu_engine_t* engine, tpu_stop_t stop);

/* The number of the task that the calling thread works on for another one, which waits; 0: none.
 * Asked without any lock. Set it before other threads use the engine; NULL: there are no tasks. */
typedef int64_t (*tpu_task_number_t)(void);
void tpu_engine_set_task(tpu_engine_t* engine, tpu_task_number_t task);

/* From now on records without a lowering run with these functions, and new windows are interpreted
 * if TORCH_TPU_TIERS, which is read each time, does not forbid it: with these functions too, or, on
 * platforms whose buffers are not host memory, by a program per record. `ops` lives
 * forever. TPU_INVALID_ARGUMENT when that variable has a word that is none of its own. */
TPU_MUST_USE tpu_status_t tpu_engine_set_host_ops(tpu_engine_t* engine, const tpu_host_ops_t* ops);

/* --- storages --- */

/* A storage of `nbytes` bytes without content: reading it gives zeros. One reference. */
TPU_MUST_USE tpu_status_t tpu_storage_create(tpu_engine_t* engine, int64_t nbytes,
                                             tpu_storage_t** out_storage);
void tpu_storage_retain(tpu_storage_t* storage);
void tpu_storage_release(tpu_storage_t* storage);
/* A unique fake address: [address, address + nbytes) belongs to this storage alone and is never
 * readable. NULL for 0 bytes. Changes when the storage grows. */
void* tpu_storage_address(const tpu_storage_t* storage);
int64_t tpu_storage_nbytes(const tpu_storage_t* storage);
/* The live storage whose range contains `address`, retained; NULL if none. */
tpu_storage_t* tpu_storage_find(tpu_engine_t* engine, const void* address);
/* Grows or shrinks; the common prefix of the content is kept. */
TPU_MUST_USE tpu_status_t tpu_storage_resize(tpu_storage_t* storage, int64_t nbytes);

/* Where the content is: recorded, in a program that is queued or runs, in a buffer (also when there
 * is no content; devices that run behind the host may still be filling it), or lost to an error. */
typedef enum tpu_storage_state_t {
  TPU_STORAGE_RECORDED,
  TPU_STORAGE_LAUNCHED,
  TPU_STORAGE_READY,
  TPU_STORAGE_FAILED,
} tpu_storage_state_t;
tpu_storage_state_t tpu_storage_state(const tpu_storage_t* storage);

/* --- operands --- */

typedef enum tpu_operand_kind_t {
  TPU_OPERAND_NONE,    // an optional argument that was not given
  TPU_OPERAND_TENSOR,  // a view of a storage
  TPU_OPERAND_SCALAR,  // a number held by the host
} tpu_operand_kind_t;

typedef struct tpu_operand_t {
  uint8_t kind;
  uint8_t wrapped;       // SCALAR: a Python number (weak in promotion), not a 0-d CPU tensor
  uint8_t scalar_dtype;  // SCALAR: tpu_dtype_t of the number; floats travel as double, others int64
  tpu_meta_id_t view;    // TENSOR: dtype, sizes and strides of the tensor
  int64_t offset;        // TENSOR: storage offset in elements of the tensor's dtype
  union {
    tpu_storage_t* storage;  // borrowed
    double number_double;
    int64_t number_int;
  };
} tpu_operand_t;

/* Id for a tensor on this storage: compares with the storage's current layout before it hashes. */
TPU_MUST_USE tpu_status_t tpu_storage_view(const tpu_storage_t* storage, tpu_dtype_t dtype,
                                           int rank, const int64_t* sizes, const int64_t* strides,
                                           tpu_meta_id_t* out_view);

/* --- recording --- */

/* Where output k of a call goes. */
typedef struct tpu_result_t {
  tpu_storage_t* storage;  // in: NULL makes a new storage (out: one reference for the caller);
                           // else an existing one (borrowed) that the result is written to
  tpu_meta_id_t meta;      // functional: filled from the memo unless the caller sets it.
                           // written: the destination tensor's view
  int64_t offset;          // written: the destination tensor's offset
} tpu_result_t;

typedef struct tpu_call_t {
  tpu_op_t op;
  tpu_call_variant_t variant;
  tpu_attrs_id_t attrs;
  int operand_count;
  const tpu_operand_t* operands;
  int result_count;
  tpu_result_t* results;
  tpu_dtype_t compute_dtype;  // from the memo, or set by the caller together with the result metas
  bool has_metas;             // the caller filled result metas (and compute dtype) itself
  tpu_channel_t* channel;     // of a record that waits for other processes, or NULL; see below
  bool teach;  // the engine's: set with *out_unknown, so that the second try is learnt
} tpu_call_t;

/* Records a call. When `has_metas` is false and the signature (op, variant, attrs, operand
 * metadata) is not known yet, records nothing and sets `*out_unknown`: the caller then asks
 * PyTorch, sets the metas and `has_metas`, and calls again, which also teaches the memo. On success
 * new storages are in `results`. A written result whose dtype differs from the destination is
 * converted. */
TPU_MUST_USE tpu_status_t tpu_engine_record(tpu_engine_t* engine, tpu_call_t* call,
                                            bool* out_unknown);

/* --- channels --- */

/* A channel runs records that wait for other processes, in their order, on a thread of its own.
 * Such a record is launched when it is recorded, behind what its thread recorded before, and the
 * call does not wait. Windows that read its results wait for them; all others overlap with it. It
 * is never dropped, merged or reordered. Its operand 0 is a number of the caller's, the ticket; it
 * has results, whose metadata are given; those that are written are whole storages. If it fails,
 * what it was to write is lost: readers get the error.
 *
 * `landed` is called on the channel's thread, without any lock, once the results are there or have
 * failed with `error` (borrowed; NULL: none), also when the record did not run since an operand
 * had failed. `job` is for tpu_engine_told. */
typedef void (*tpu_channel_landed_t)(void* context, int64_t ticket, tpu_status_t error,
                                     uint64_t job);
TPU_MUST_USE tpu_status_t tpu_channel_create(tpu_engine_t* engine, tpu_channel_landed_t landed,
                                             void* context, tpu_channel_t** out_channel);
/* Runs what is left. Not on the channel's own thread. NULL is fine. */
void tpu_channel_destroy(tpu_channel_t* channel);

/* The user was told of the failure of this job: the next sync need not. */
void tpu_engine_told(tpu_engine_t* engine, uint64_t job);

/* --- captures and templates --- */

/* A template is what one call of a composite operation recorded, kept so that the next call with
 * the same signature appends the same records for its own tensors without running the call again.
 *
 *   capture_begin(inputs) -> the caller runs the operation -> capture_end(results) -> template
 *   replay(template, other inputs) -> other results
 *
 * A template fits all inputs with the same views; they may lie at other offsets. Two inputs that
 * share a storage must do so in the same way at each replay: that is the caller's to see to, and so
 * is everything else that the operation's course depends on, such as the numbers given to it. */
typedef struct tpu_template_t tpu_template_t;

/* Where a generator of random numbers stands. */
typedef struct tpu_random_state_t {
  int64_t seed, offset;
} tpu_random_state_t;

typedef struct tpu_capture_options_t {
  uint32_t max_records;  // more are no template
  bool writes;           // inputs may be written if they are the whole of their storages
  bool recurs;           // the caller knows that it will come again: it is interpreted only once
  // The generator that may be drawn from as it stands at the beginning, or NULL: none may.
  const tpu_random_state_t* random;
} tpu_capture_options_t;

/* Begins to watch what this thread records. Not within another capture: `*out_began` is false
 * then. Until the capture ends, the inputs' storages must live, and the mode's flushes after
 * records are put off. */
TPU_MUST_USE tpu_status_t tpu_engine_capture_begin(tpu_engine_t* engine, int input_count,
                                                   const tpu_operand_t* inputs,
                                                   const tpu_capture_options_t* options,
                                                   bool* out_began);

/* Ends this thread's capture. `results` are tensors that were made inside; they may be views, also
 * of the same storage. Gives a template (free with tpu_template_destroy) or none: then
 * `*out_obstacle` is a literal that says, in the words "it ...", why this operation never gives one
 * with such inputs; NULL when another thread came between, and the next try may. `name` is for
 * error texts and is copied. */
TPU_MUST_USE tpu_status_t tpu_engine_capture_end(tpu_engine_t* engine, const char* name,
                                                 int result_count, const tpu_operand_t* results,
                                                 tpu_template_t** out_template,
                                                 const char** out_obstacle);
/* Ends it without a template, for an operation that failed. */
void tpu_engine_capture_cancel(tpu_engine_t* engine);

/* A number that a call was made with. */
typedef struct tpu_number_t {
  bool is_float;
  union {
    double as_double;
    int64_t as_int;
  };
} tpu_number_t;

/* Compares two templates of one call that were made with other numbers. True when they differ in
 * nothing but numbers of their records, each of which is one of the call's in both: then `made`
 * takes those from now on from the numbers of each replay. `mine` and `theirs` are the call's
 * numbers at the two captures, `count` each. Those that were the same must be so at each replay. */
bool tpu_template_bind_numbers(tpu_template_t* made, const tpu_template_t* other, int count,
                               const tpu_number_t* mine, const tpu_number_t* theirs);

/* Appends the template's records and writes the inputs that it writes. Fills `results` (as many as
 * were captured) with a reference to a storage, a view of it and its offset each. `random`, which
 * may be NULL for a template that draws no numbers, is where the generator stands. `numbers`, NULL
 * for a template with none bound, are the call's.
 * TPU_INVALID_ARGUMENT when an input's view is not the captured one, or is written and no longer
 * the whole of its storage. */
TPU_MUST_USE tpu_status_t tpu_engine_replay(tpu_engine_t* engine, const tpu_template_t* made,
                                            const tpu_operand_t* inputs,
                                            const tpu_random_state_t* random,
                                            const tpu_number_t* numbers, tpu_result_t* results);
int tpu_template_result_count(const tpu_template_t* made);
/* Whether the template writes its k-th input. */
bool tpu_template_writes(const tpu_template_t* made, int k);
int tpu_template_record_count(const tpu_template_t* made);
/* Before its engine. Nobody may be replaying it. */
void tpu_template_destroy(tpu_template_t* made);

/* --- flushing, reading, writing --- */

/* Launches what this thread recorded. With `wait`: launches what all threads recorded, waits for it
 * and reports its error. */
TPU_MUST_USE tpu_status_t tpu_engine_flush(tpu_engine_t* engine, bool wait);

/* Copies a tensor to host memory as dense row-major elements of its dtype (flushes, waits). */
TPU_MUST_USE tpu_status_t tpu_engine_read(tpu_engine_t* engine, const tpu_operand_t* tensor,
                                          void* dst, int64_t size);
/* Lends them instead, where buffers are host memory: what the tensor holds now, whatever is written
 * to it meanwhile; nobody may write to what is lent. `*out_loan` is NULL where there is nothing to
 * lend: no elements, no content yet, or no host memory. */
typedef struct tpu_value_t tpu_loan_t;
TPU_MUST_USE tpu_status_t tpu_engine_lend(tpu_engine_t* engine, const tpu_operand_t* tensor,
                                          int64_t size, tpu_loan_t** out_loan, void** out_data);
void tpu_engine_end_loan(tpu_engine_t* engine, tpu_loan_t* loan);
/* Writes dense row-major host elements to a tensor. */
TPU_MUST_USE tpu_status_t tpu_engine_write(tpu_engine_t* engine, tpu_storage_t* storage,
                                           tpu_meta_id_t view, int64_t offset, const void* src,
                                           int64_t size);

/* --- numbers --- */

typedef struct tpu_engine_stats_t {
  int64_t records;          // ops recorded
  int64_t predicted;        // of these, matched by prediction
  int64_t flushes;          // windows launched
  int64_t window_hits;      // of these, already planned
  int64_t window_plans;     // planned anew
  int64_t interpretations;  // run op by op instead, since they are new
  int64_t launches;         // programs executed
  int64_t awaits;           // contents that syncs waited for
} tpu_engine_stats_t;
void tpu_engine_stats(tpu_engine_t* engine, tpu_engine_stats_t* out_stats);

/* One structure of windows that is known, and how it was launched. */
typedef struct tpu_window_info_t {
  uint64_t last_use;  // larger: later
  uint32_t record_count;
  tpu_op_t first_op, last_op;
  uint32_t interpreted;           // launches op by op ...
  uint32_t most_interpretations;  // ... and how many there are before its programs run
  uint64_t compiled;              // launches of programs
  uint32_t program_count;         // in the newest set of programs; 0: none yet
  uint32_t set_count;             // sets of programs, which differ in their numbers or results
  bool is_building;               // programs are being compiled in the background
} tpu_window_info_t;
/* All that are known now, in no order; free the array with tpu_free. */
TPU_MUST_USE tpu_status_t tpu_engine_windows(tpu_engine_t* engine, tpu_window_info_t** out_windows,
                                             size_t* out_count);

void tpu_engine_compile_stats(tpu_engine_t* engine, tpu_compile_stats_t* out_stats);
void tpu_engine_reset_stats(tpu_engine_t* engine);

/* Why programs were made: a line for each set of programs that a window got, such as
 * "9 operations (mul ... sum), shape: input 0 is f32[4,8], was f32[2,8]". Appends those from number
 * `since` on; the last 256 are kept. `*out_next` is the number of the next one. */
TPU_MUST_USE tpu_status_t tpu_engine_reasons(tpu_engine_t* engine, uint64_t since,
                                             tpu_strbuf_t* out_lines, uint64_t* out_next);
/* Called when there is a new line, under the engine lock: it must not use the engine. NULL: no one
 * is. Set it before other threads use the engine. */
void tpu_engine_set_told(tpu_engine_t* engine, void (*told)(void));

/* Returns when nothing is compiled in the background any more: all of it is finished. */
TPU_MUST_USE tpu_status_t tpu_engine_await_builds(tpu_engine_t* engine);
/* Returns when nothing is compiled in the background: what has begun is finished, the rest is given
 * up and compiled when it is needed. For the end of the process. */
void tpu_engine_stop_builds(tpu_engine_t* engine);

/* Forgets window plans and compiled programs in memory (not on disk). */
void tpu_engine_clear_cache(tpu_engine_t* engine);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_ENGINE_ENGINE_H_
