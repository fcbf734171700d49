/* The op table: one row per operation, op_table.def. No other switch over op ids exists anywhere;
 * what differs between operations is a column.
 *
 * Ids are places in the table, so a new row moves those behind it. Outside core/ they are looked up
 * by name and never stored in a file; inside, ops/op_ids.h names them.
 */
#ifndef TPU_OPS_OPS_H_
#define TPU_OPS_OPS_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int tpu_op_t;
enum { TPU_OP_INVALID = 0 };

/* What kind of work an operation is; partition/ weighs and orders by it. */
typedef enum tpu_op_family_t {
  TPU_FAMILY_POINTWISE,  // one output element from the input elements at the same place
  TPU_FAMILY_CREATE,     // no tensor input
  TPU_FAMILY_REDUCE,     // includes softmax, norms, scans
  TPU_FAMILY_MATMUL,
  TPU_FAMILY_CONV,   // convolutions and pools
  TPU_FAMILY_INDEX,  // gather, scatter, sort
  TPU_FAMILY_MOVE,   // cat, flip, pad, copies, view writes
  TPU_FAMILY_RANDOM,
} tpu_op_family_t;

typedef enum tpu_op_flag_bits_t {
  TPU_OP_PROMOTE = 1u << 0,  // inputs are promoted to one compute dtype (PyTorch's result_type)
  TPU_OP_INT_TO_FLOAT = 1u << 1,  // with PROMOTE: integral compute dtypes become the default float
  TPU_OP_RANDOM = 1u << 2,        // the shim appends two int scalar operands: seed, offset
  TPU_OP_OVERWRITE = 1u << 3,    // in-place forms do not read self: it is no input (fill_, normal_)
  TPU_OP_MANUAL = 1u << 4,       // the shim has kernels of its own for all overloads
  TPU_OP_INTERNAL = 1u << 5,     // recorded by the engine itself, no ATen name
  TPU_OP_CHECK_INDEX = 1u << 6,  // reads or writes by indices; its lowering checks them
  TPU_OP_LAST_APART = 1u << 7,   // with PROMOTE: the last operand takes no part: alpha, sorter
  TPU_OP_FIT = 1u << 8,  // numbers must fit the compute dtype, without PROMOTE the first tensor's
  TPU_OP_COUNTED = 1u << 9,  // with RANDOM: attribute 0 says how many are drawn, for each row (last
                             // dimension) of a tensor; else as many as the result has elements
  TPU_OP_PARTS = 1u << 10,   // with RANDOM: complex numbers are drawn part by part, which share std
  TPU_OP_CHECK_VALUES = 1u << 11,  // some numbers make no sense (a probability of 2); its lowering
                                   // checks them
  TPU_OP_CHECK_INTEGERS = 1u << 12,  // the same where the compute dtype is integral
  TPU_OP_SPARSE = 1u << 13,  // touches few elements of operand 0: costs what it touches, also where
                             // that is a view of something large
  TPU_OP_HOST = 1u << 14,  // has no lowering: runs as a function of the core's user, in a host step
  TPU_OP_PRODUCTS = 1u << 15,  // its float32 products have the precision that was asked for: those
                               // of convolutions (TPU_FAMILY_CONV), or of matrices
} tpu_op_flag_bits_t;

/* How results relate to arguments; part of the signature. */
typedef enum tpu_call_variant_t {
  TPU_CALL_FUNCTIONAL,  // all results are new storages
  TPU_CALL_IN_PLACE,    // result 0 is written to operand 0's tensor (or to `results[0]`)
  TPU_CALL_OUT,         // results are written to out= arguments
} tpu_call_variant_t;
/* Of records only: result 0 is the whole content behind operand 0, with what the in-place operation
 * does done through operand 0's view. */
enum { TPU_CALL_THROUGH = TPU_CALL_OUT + 1 };

typedef struct tpu_op_info_t {
  const char* name;  // id in lower case, such as "add"
  const char* aten;  // ATen overloads that this row serves, separated by spaces
  tpu_op_family_t family;
  uint32_t flags;
  // Both as they stand in the table: "TPU_OP_PROMOTE | TPU_OP_INT_TO_FLOAT", "0" for no flag.
  const char* family_text;
  const char* flags_text;
  const char* opinfo;  // names in PyTorch's op_db that test this row, separated by spaces
} tpu_op_info_t;

/* Lives forever. Ids outside the table read as the INVALID row. */
const tpu_op_info_t* tpu_op_info(tpu_op_t op);

/* All ids are smaller; the first is 1. */
tpu_op_t tpu_op_count(void);

/* The row with this name, such as "add"; INVALID if there is none. Reads the whole table. */
tpu_op_t tpu_op_find(const char* name);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_OPS_OPS_H_
