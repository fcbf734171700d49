/* Attributes: the structural arguments of an operation (dims, flags, dtypes, sizes), interned.
 *
 * An attribute set is an ordered list of tagged values in schema order. It is part of an
 * operation's identity: two records are the same only if their sets have the same id. Numbers that
 * may vary between calls (Python scalars, learning rates, seeds) are NOT attributes: they are
 * scalar operands.
 */
#ifndef TPU_OPS_ATTRS_H_
#define TPU_OPS_ATTRS_H_

#include "types/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t tpu_attrs_id_t;  // 0 is the empty set

typedef enum tpu_attr_kind_t {
  TPU_ATTR_NONE = 0,  // an optional argument that was not given
  TPU_ATTR_INT,       // int, bool (0/1), memory format and other enums
  TPU_ATTR_DTYPE,     // tpu_dtype_t
  TPU_ATTR_INTS,      // int[] or bool[]
  TPU_ATTR_DOUBLE,    // a float that is structural by nature
  TPU_ATTR_TEXT,      // str
  // No arguments, and behind those: what the call's meaning depends on beside them.
  TPU_ATTR_COMPLEX,        // int: which operands are complex numbers
  TPU_ATTR_DEFAULT_DTYPE,  // tpu_dtype_t of Python's floats, where it is not F32
  TPU_ATTR_PRECISION,      // tpu_precision_t, where it is not HIGHEST
} tpu_attr_kind_t;

/* Which bits of its operands a product of float32 looks at, on platforms that make a difference
 * (tpu_platform_t.low_default_precision). A TPU multiplies in bfloat16, so often: */
typedef enum tpu_precision_t {
  TPU_PRECISION_HIGHEST,  // six times: all 24 bits
  TPU_PRECISION_HIGH,     // three times: about 16
  TPU_PRECISION_DEFAULT,  // once: 8
} tpu_precision_t;

#define TPU_ATTRS_MAX_WORDS 512

/* Built on the stack on the recording path. One header word (kind << 32 | length) per value, then
 * its payload: INTS `length` words, TEXT ceil(length / 8) words, NONE none, others 1 word. */
typedef struct tpu_attrs_builder_t {
  uint32_t size;   // words used
  uint32_t count;  // values
  bool overflow;   // more than fits; interning then fails
  uint64_t words[TPU_ATTRS_MAX_WORDS];
} tpu_attrs_builder_t;

static inline void tpu_attrs_begin(tpu_attrs_builder_t* builder) {
  builder->size = 0;
  builder->count = 0;
  builder->overflow = false;
}
void tpu_attrs_add_none(tpu_attrs_builder_t* builder);
void tpu_attrs_add_int(tpu_attrs_builder_t* builder, int64_t value);
void tpu_attrs_add_dtype(tpu_attrs_builder_t* builder, tpu_dtype_t dtype);
void tpu_attrs_add_ints(tpu_attrs_builder_t* builder, const int64_t* values, size_t count);
void tpu_attrs_add_double(tpu_attrs_builder_t* builder, double value);
void tpu_attrs_add_text(tpu_attrs_builder_t* builder, const char* text, size_t size);
void tpu_attrs_add_complex(tpu_attrs_builder_t* builder, int64_t operands);
void tpu_attrs_add_default_dtype(tpu_attrs_builder_t* builder, tpu_dtype_t dtype);
void tpu_attrs_add_precision(tpu_attrs_builder_t* builder, tpu_precision_t precision);

/* Interns what was built. The empty set is id 0. */
TPU_MUST_USE tpu_status_t tpu_attrs_intern(const tpu_attrs_builder_t* builder,
                                           tpu_attrs_id_t* out_id);

/* Reading, by position. A wrong kind or position reads as "none", 0 or empty; lowering checks with
 * tpu_attr_kind where it matters. Pointers live forever. */
int tpu_attrs_count(tpu_attrs_id_t id);
int tpu_attrs_argument_count(tpu_attrs_id_t id);  // without the last three kinds
tpu_dtype_t tpu_attrs_default_dtype(tpu_attrs_id_t id);
tpu_precision_t tpu_attrs_precision(tpu_attrs_id_t id);
tpu_attr_kind_t tpu_attr_kind(tpu_attrs_id_t id, int position);
int64_t tpu_attr_int(tpu_attrs_id_t id, int position, int64_t if_none);
tpu_dtype_t tpu_attr_dtype(tpu_attrs_id_t id, int position, tpu_dtype_t if_none);
double tpu_attr_double(tpu_attrs_id_t id, int position, double if_none);
/* Number of values, 0 for none; `*out_values` is NULL then. */
int tpu_attr_ints(tpu_attrs_id_t id, int position, const int64_t** out_values);
const char* tpu_attr_text(tpu_attrs_id_t id, int position);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_OPS_ATTRS_H_
