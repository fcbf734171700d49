/* A trace: a window of records in program order, as flat words.
 *
 * Two windows with equal words (and equal metadata of external values) are the same program up to
 * the numbers in their slots, so verifying a prediction is one memcmp.
 *
 * A record is
 *   word 0   op | result_count << 16
 *   word 1   operand_count | compute_dtype << 16 | variant << 24
 *   word 2   attrs id
 *   then 2 words per operand: reference, view metadata id
 *   then 1 word per result: metadata id
 *
 * References (kind in the top bits, see tpu_ref_kind):
 *   WINDOW    number of a value made in this window (values are numbered in record order)
 *   EXTERNAL  index into the window's external values, in order of first use
 *   SCALAR    dtype of a host number, and TPU_REF_WEAK_BIT if weak; its bits are the next slot
 *   NONE      an operand that was not given
 * A WINDOW or EXTERNAL operand whose view is not the value's own metadata reads through a view, and
 * its storage offset is the next slot (in elements of the view's dtype).
 *
 * This file is the only one that knows where in a word something stands: tpu_record_encode and
 * tpu_record_decode for records, the tpu_ref_ functions for references.
 */
#ifndef TPU_TRACE_TRACE_H_
#define TPU_TRACE_TRACE_H_

#include "ops/attrs.h"
#include "ops/ops.h"
#include "types/meta.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tpu_ref_kind_t {
  TPU_REF_WINDOW = 0,
  TPU_REF_EXTERNAL = 1,
  TPU_REF_SCALAR = 2,
  TPU_REF_NONE = 3,
} tpu_ref_kind_t;

#define TPU_REF_KIND_SHIFT 30
#define TPU_REF_VIEW_BIT (1u << 29)  // reads through a view: one slot with the offset
#define TPU_REF_INDEX_MASK ((1u << 29) - 1)

static inline tpu_ref_kind_t tpu_ref_kind(uint32_t ref) {
  return (tpu_ref_kind_t)(ref >> TPU_REF_KIND_SHIFT);
}
static inline uint32_t tpu_ref_index(uint32_t ref) { return ref & TPU_REF_INDEX_MASK; }
static inline uint32_t tpu_ref_make(tpu_ref_kind_t kind, uint32_t index) {
  return ((uint32_t)kind << TPU_REF_KIND_SHIFT) | index;
}
/* A host number; a weak (Python) one yields to the other operands in promotion. */
#define TPU_REF_WEAK_BIT 256u
static inline uint32_t tpu_ref_scalar(tpu_dtype_t dtype, bool weak) {
  return tpu_ref_make(TPU_REF_SCALAR, (uint32_t)dtype | (weak ? TPU_REF_WEAK_BIT : 0u));
}
static inline tpu_dtype_t tpu_ref_scalar_dtype(uint32_t ref) { return (tpu_dtype_t)(ref & 0xff); }
static inline bool tpu_ref_scalar_is_weak(uint32_t ref) { return (ref & TPU_REF_WEAK_BIT) != 0; }
/* True when this operand consumes a slot. */
static inline bool tpu_ref_has_slot(uint32_t ref) {
  return tpu_ref_kind(ref) == TPU_REF_SCALAR || (ref & TPU_REF_VIEW_BIT) != 0;
}

/* A slot: one number that belongs to a record but not to its identity. */
typedef union tpu_slot_t {
  double as_double;  // SCALAR of a float dtype
  int64_t as_int;    // SCALAR of other dtypes; view offsets
  uint64_t bits;
} tpu_slot_t;

#define TPU_RECORD_HEADER_WORDS 3
#define TPU_RECORD_MAX_COUNT 0xffff  // most operands, most results

/* One record, decoded. Pointers point into the window's words. */
typedef struct tpu_record_t {
  tpu_op_t op;
  int operand_count;
  int result_count;
  tpu_dtype_t compute_dtype;  // INVALID when the op does not promote
  uint8_t variant;            // tpu_call_variant_t
  tpu_attrs_id_t attrs;
  const uint32_t* operands;  // 2 words each
  const uint32_t* results;   // metadata ids
  uint32_t first_value;      // window number of result 0
  uint32_t first_slot;       // index of the record's first slot in the window's slots
} tpu_record_t;

/* Words of a record with so many operands and results. */
static inline uint32_t tpu_record_size(int operand_count, int result_count) {
  return TPU_RECORD_HEADER_WORDS + 2 * (uint32_t)operand_count + (uint32_t)result_count;
}
/* Writes the TPU_RECORD_HEADER_WORDS words in front of the operands. */
static inline void tpu_record_encode(uint32_t* words, tpu_op_t op, int operand_count,
                                     int result_count, uint8_t variant, tpu_attrs_id_t attrs,
                                     tpu_dtype_t compute_dtype) {
  words[0] = (uint32_t)op | (uint32_t)result_count << 16;
  words[1] = (uint32_t)operand_count | (uint32_t)compute_dtype << 16 | (uint32_t)variant << 24;
  words[2] = attrs;
}
/* The record at `words`; first_value and first_slot are 0, since the words do not say them. */
static inline tpu_record_t tpu_record_decode(const uint32_t* words) {
  tpu_record_t r;
  r.op = (tpu_op_t)(words[0] & 0xffff);
  r.operand_count = (int)(words[1] & 0xffff);
  r.result_count = (int)(words[0] >> 16);
  r.compute_dtype = (tpu_dtype_t)(words[1] >> 16 & 0xff);
  r.variant = (uint8_t)(words[1] >> 24);
  r.attrs = words[2];
  r.operands = words + TPU_RECORD_HEADER_WORDS;
  r.results = r.operands + 2 * r.operand_count;
  r.first_value = r.first_slot = 0;
  return r;
}

static inline uint32_t tpu_record_ref(const tpu_record_t* r, int k) { return r->operands[2 * k]; }
static inline tpu_meta_id_t tpu_record_view(const tpu_record_t* r, int k) {
  return r->operands[2 * k + 1];
}

/* Index of operand k's slot in the window's slots; the operand must have one. */
static inline uint32_t tpu_record_slot(const tpu_record_t* r, int k) {
  uint32_t slot = r->first_slot;
  for (int i = 0; i < k; ++i) slot += tpu_ref_has_slot(tpu_record_ref(r, i));
  return slot;
}

/* Walks the operands that have slots:
 *   for (tpu_slot_walk_t at = tpu_record_slots(&r); tpu_record_next_slot(&r, &at);)
 * `operand` and `slot` (index in the window's slots) say where it is. */
typedef struct tpu_slot_walk_t {
  int operand;
  uint32_t slot, next;
} tpu_slot_walk_t;
static inline tpu_slot_walk_t tpu_record_slots(const tpu_record_t* r) {
  return (tpu_slot_walk_t){.operand = -1, .slot = 0, .next = r->first_slot};
}
static inline bool tpu_record_next_slot(const tpu_record_t* r, tpu_slot_walk_t* at) {
  while (++at->operand < r->operand_count) {
    if (!tpu_ref_has_slot(tpu_record_ref(r, at->operand))) continue;
    at->slot = at->next++;
    return true;
  }
  return false;
}

/* A window's structure: what a plan is made from. All arrays are borrowed. */
typedef struct tpu_window_t {
  const uint32_t* words;
  uint32_t word_count;
  const uint32_t* record_words;   // [record_count] index of each record's word 0
  const uint32_t* record_values;  // [record_count] first_value of each record
  const uint32_t* record_slots;   // [record_count] first_slot of each record
  uint32_t record_count;
  const tpu_meta_id_t* value_metas;  // [value_count] metadata of each value
  const uint32_t* value_records;     // [value_count] record that makes it
  uint32_t value_count;
  const tpu_meta_id_t* external_metas;  // [external_count]
  uint32_t external_count;
  const tpu_slot_t* slots;
  uint32_t slot_count;
} tpu_window_t;

/* Decodes record `index`. */
void tpu_window_record(const tpu_window_t* window, uint32_t index, tpu_record_t* out_record);

/* The op behind a record: what an internal record moves was made by its last operand. */
tpu_op_t tpu_window_origin(const tpu_window_t* window, uint32_t index);

/* Metadata of the value behind a WINDOW or EXTERNAL reference; 0 for others. */
static inline tpu_meta_id_t tpu_window_ref_meta(const tpu_window_t* window, uint32_t ref) {
  switch (tpu_ref_kind(ref)) {
    case TPU_REF_WINDOW: return window->value_metas[tpu_ref_index(ref)];
    case TPU_REF_EXTERNAL: return window->external_metas[tpu_ref_index(ref)];
    default: return 0;
  }
}

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_TRACE_TRACE_H_
