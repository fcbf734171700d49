// Host steps: records that run with PyTorch's CPU kernels (core/launch/host_step.h), while a window
// is new. Anything without a form here is compiled as a program of its own instead. And operations
// without a lowering, at any time.
//
// host_ops.cpp   content of values <-> CPU tensors
// host_forms.cpp the form of a row: its ATen overloads, called with the record's arguments
// host_manual.cpp forms of rows that the rule of the op table does not describe
// host_attention.cpp, host_recurrent.cpp some of these
// host_random.cpp forms of rows that draw random numbers
// host_calls.cpp  calls of operations that have no row
#ifndef TPU_SHIM_HOST_OPS_H_
#define TPU_SHIM_HOST_OPS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <memory>

#include "storage.h"

namespace tpu_shim {

// What the engine calls; lives forever.
const tpu_host_ops_t* host_ops();

inline c10::IntArrayRef sizes_of(const tpu_meta_t& meta) { return {meta.sizes, meta.rank}; }
inline c10::IntArrayRef strides_of(const tpu_meta_t& meta) { return {meta.strides, meta.rank}; }
// A new CPU tensor, row-major, with these sizes.
at::Tensor empty_sized(const tpu_meta_t& meta, tpu_dtype_t dtype);

using HostResults = c10::SmallVector<at::Tensor, 4>;

// One record while it runs.
class HostRecord {
 public:
  explicit HostRecord(const tpu_host_op_t& op) : op_(op) {}

  const tpu_record_t& record() const { return *op_.record; }
  int operand_count() const { return op_.record->operand_count; }
  bool has(int k) const { return kind(k) != TPU_REF_NONE; }
  bool is_number(int k) const { return kind(k) == TPU_REF_SCALAR; }

  // A tensor operand as it is read, not to be written. A number is a 0-dim tensor, weak in
  // promotion if the operand is; an operand that was not given is undefined.
  at::Tensor tensor(int k) const;
  // The same as what an argument `Tensor?` takes.
  std::optional<at::Tensor> optional(int k) const;
  // A number operand.
  at::Scalar scalar(int k) const;
  // A number, or the content of a tensor with one element.
  at::Scalar number(int k) const { return is_number(k) ? scalar(k) : tensor(k).item(); }
  // Operand k as a tensor that may be written and become a result of these metadata: the operand's
  // own memory where nobody needs it any more, else a copy.
  at::Tensor writable(int k, tpu_meta_id_t meta) const;

  tpu_meta_id_t result_id(int k) const { return op_.record->results[k]; }
  const tpu_meta_t& result(int k) const { return *tpu_meta_get(result_id(k)); }
  bool is_absent(int k) const;
  // A new tensor with result k's dtype and sizes.
  at::Tensor empty_result(int k) const;

  // Attributes by place.
  int64_t attr_int(int place, int64_t if_none = 0) const {
    return tpu_attr_int(record().attrs, place, if_none);
  }
  c10::IntArrayRef attr_ints(int place) const {
    const int64_t* values = nullptr;
    const int count = tpu_attr_ints(record().attrs, place, &values);
    return {values, static_cast<size_t>(count)};
  }

  // What operand k's view sees of `content`, which has the metadata of the value behind it.
  at::Tensor read(const at::Tensor& content, int k) const;
  // Whether that memory stays while the tensor does, also behind the step.
  bool is_kept(int k) const {
    return op_.operands[k] != nullptr && op_.operands[k]->owner != nullptr;
  }
  // The memory of operand k's value as a tensor of its metadata.
  at::Tensor value(int k) const;
  const tpu_meta_t& value_meta(int k) const { return *tpu_meta_get(op_.value_metas[k]); }
  // Storage offset of the view that operand k reads, in elements.
  int64_t offset(int k) const;

 private:
  tpu_ref_kind_t kind(int k) const { return tpu_ref_kind(tpu_record_ref(op_.record, k)); }
  const tpu_slot_t& slot(int k) const { return op_.slots[tpu_record_slot(op_.record, k)]; }
  const tpu_host_op_t& op_;
};

// How records of one kind run. Made once per kind, lives forever.
class HostForm {
 public:
  virtual ~HostForm() = default;
  // Appends one tensor per result; undefined for absent ones. They may have any dtype and strides,
  // and may be views of operands.
  virtual void run(const HostRecord& record, HostResults* results) const = 0;
};

// Content of a storage in the order of its elements: what views of it index into.
at::Tensor in_storage_order(const at::Tensor& content, const tpu_meta_t& meta);
// And back: dense row-major content.
at::Tensor from_storage_order(const at::Tensor& flat, const tpu_meta_t& meta);

// The form for records like this one, or nothing.
std::unique_ptr<HostForm> make_overload_form(const tpu_record_t& record);
std::unique_ptr<HostForm> make_collective_form(const tpu_record_t& record);
std::unique_ptr<HostForm> make_manual_form(const tpu_record_t& record);
std::unique_ptr<HostForm> make_random_form(const tpu_record_t& record);
// Whether the rule of the op table tells what the operands of such records are.
bool has_rule_form(const tpu_record_t& record);

}  // namespace tpu_shim

#endif  // TPU_SHIM_HOST_OPS_H_
