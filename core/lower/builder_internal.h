/* The builder's state. Included by builder*.c, views.c, axes.c and program.c only. */
#ifndef TPU_LOWER_BUILDER_INTERNAL_H_
#define TPU_LOWER_BUILDER_INTERNAL_H_

#include "lower/builder.h"
#include "ops/views.h"

/* SSA ids: n >= 0 is %n, -1 an error, -2 - k is %arg<k>. */
#define TPUI_ID_ERROR (-1)
#define TPUI_ID_ARGUMENT(k) (-2 - (int32_t)(k))

/* Values inside a view's chain have more dimensions than tensors do. */
#define TPUI_MAX_HLO_RANK (2 * TPU_MAX_RANK + 8)

typedef struct tpui_arena_block_t {
  struct tpui_arena_block_t* next;
  size_t used, capacity;  // bytes behind this header
} tpui_arena_block_t;

/* One remembered result: a decoded operand or a constant. */
typedef struct tpui_known_value_t {
  uint64_t key[4];
  tpui_hlo_t value;
} tpui_known_value_t;

/* What check k of the program looked at, and what it found (I64, rank 0). */
typedef struct tpui_checked_t {
  int32_t of;  // SSA number
  tpui_hlo_t found;
} tpui_checked_t;

struct tpui_builder_t {
  const tpu_program_t* program;
  const tpu_window_t* window;
  tpu_status_t status;        // first failure
  const char* op_name;        // of the record being lowered; "" outside
  uint32_t record_index;      // of the same, in the window
  tpu_precision_t precision;  // of its products
  tpu_strbuf_t body;          // operations, one a line
  int32_t next_id;
  tpui_arena_block_t* arena;

  tpui_hlo_t* values;     // [window->value_count] id TPUI_ID_ERROR: not in this program (yet)
  tpui_hlo_t* externals;  // [window->external_count]
  uint8_t* value_needed;  // [window->value_count] read by a later record, or an output

  uint8_t *value_gathered, *external_gathered;  // [.] operand 0 of a SPARSE record that reads it

  // Open addressing over constants and decoded operands; capacity is a power of two.
  tpui_known_value_t* memo;
  size_t memo_count, memo_capacity;

  // Dynamic slots: place in packed->doubles (float scalars) or packed->slots (the rest), or -1.
  int32_t* slot_packed;  // [window->slot_count]
  tpu_packed_t* packed;
  tpui_hlo_t packed_doubles;  // arguments; id TPUI_ID_ERROR when there are none
  tpui_hlo_t packed_ints;

  tpu_checks_t* checks;     // NULL while there are none
  tpui_checked_t* checked;  // [checks->count]
  size_t checked_capacity;
};

/* Adds a check that finds nothing: a program needs some result. */
void tpui_check_nothing(tpui_builder_t* b);
/* The result that all checks make, I64[checks->count]; there are some. */
tpui_hlo_t tpui_checks_result(tpui_builder_t* b);

/* Looks a key up; when absent returns false and `*out_memo` is where the caller stores it with
 * tpui_memo_put. Keys of different users differ in word 0. */
bool tpui_memo_get(tpui_builder_t* b, const uint64_t key[4], tpui_hlo_t* out_value);
void tpui_memo_put(tpui_builder_t* b, const uint64_t key[4], tpui_hlo_t value);
/* The largest number of float8_e4m3fn, which has no infinity. */
#define TPUI_F8E4M3FN_MAX 448.0

enum { TPUI_MEMO_CONSTANT = 1, TPUI_MEMO_VIEW = 2, TPUI_MEMO_NUMBER = 3, TPUI_MEMO_CONVERT = 4 };

/* Latches a status (takes it). */
void tpui_latch_status(tpui_builder_t* b, tpu_status_t status);
void tpui_builder_free(tpui_builder_t* b);

/* The value that every call returns after a failure: rank 0, with sizes of 1 that may be read from
 * the front and from the end. */
tpui_hlo_t tpui_harmless(void);
/* A value without an operation behind it (argument or future result). */
tpui_hlo_t tpui_value_make(tpui_builder_t* b, int32_t id, tpu_dtype_t dtype, int rank,
                           const int64_t* sizes);
void tpui_append_value(tpu_strbuf_t* out, tpui_hlo_t value);
void tpui_append_type(tpu_strbuf_t* out, tpu_dtype_t dtype, int rank, const int64_t* sizes);

/* Number `position` of a packed vector as a rank-0 value (F64 or I64). */
tpui_hlo_t tpui_packed_number(tpui_builder_t* b, bool is_double, int32_t position);
/* True when `slot` is a program argument. */
bool tpui_slot_is_dynamic(const tpui_builder_t* b, uint32_t slot);
/* The packed entry of an integer or an offset that is one; NULL when it is fixed. */
const tpu_packed_slot_t* tpui_packed_slot(const tpui_builder_t* b, uint32_t slot);

/* The value behind a WINDOW or EXTERNAL reference, before any view. */
tpui_hlo_t tpui_base_value(tpui_builder_t* b, uint32_t ref);
/* Result 0 of a record that writes through operand 0's view: its content with `value` there. */
void tpui_view_write_result(const tpui_lowering_t* op, tpui_hlo_t value);

/* A storage's content with metadata `base_meta` seen with another dtype. When element sizes differ
 * the content becomes one flat dimension. `*out_meta` is what views of that dtype are planned
 * against. */
tpui_hlo_t tpui_view_retype(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                            tpu_dtype_t dtype, const tpu_meta_t** out_meta);
/* The metadata that tpui_view_retype gives, without emitting anything. */
tpu_status_t tpui_view_base_meta(const tpu_meta_t* base_meta, tpu_dtype_t dtype,
                                 tpu_meta_id_t* out_id);

#endif  // TPU_LOWER_BUILDER_INTERNAL_H_
