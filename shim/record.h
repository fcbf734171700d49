// Building a tpu_call_t from PyTorch values and recording it.
#ifndef TPU_SHIM_RECORD_H_
#define TPU_SHIM_RECORD_H_

#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "precision.h"
#include "stacks.h"
#include "storage.h"

namespace tpu_shim {

// Metadata of a result that is not there (an output mask said no). Rank and sizes no tensor has.
tpu_meta_id_t absent_meta();

// Metadata of empty_like(tensor): its dtype and sizes, and its strides, or where those leave gaps
// or overlap, dense ones in the same order of dimensions.
tpu_meta_id_t result_meta_of(const at::Tensor& tensor);
tpu_meta_id_t contiguous_meta(c10::IntArrayRef sizes, c10::ScalarType dtype);
tpu_meta_id_t strided_meta(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);

// The op table's row with this name. Ids differ between builds of the core: a kernel looks its row
// up once, at its first call. Throws for a name without a row.
tpu_op_t op_row(const char* name);

// One call. Operands, attributes and results are added in the op table's order, then record().
// Up to 10 operands and 4 results need no allocation.
class Call {
 public:
  explicit Call(tpu_op_t op, tpu_call_variant_t variant = TPU_CALL_FUNCTIONAL) {
    call_.op = op;
    call_.variant = variant;
    call_.compute_dtype = TPU_DTYPE_INVALID;
    call_.has_metas = false;
  }
  ~Call() {
    for (size_t k = 0; k < results_.size(); ++k) {
      if (owned_[k] && results_[k].storage != nullptr) tpu_storage_release(results_[k].storage);
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // --- operands ---
  // A tpu tensor (a copy of it if it is lazy), a 0-dim CPU tensor (as a number) or an undefined one
  // (as NONE). Throws for tensors of other devices.
  Call& tensor(const at::Tensor& t) {
    tpu_operand_t& o = operands_.emplace_back();
    if (C10_LIKELY(is_plain(t))) {
      tensor_operand(t, &o);
    } else {
      other_tensor(t, &o);
    }
    return *this;
  }
  // False, and the call is of no more use, for what takes more than adding an operand: lazy,
  // undefined, complex numbers, tensors of other devices.
  bool try_tensor(const at::Tensor& t) {
    tpu_operand_t& o = operands_.emplace_back();
    if (C10_LIKELY(is_plain(t))) return tensor_operand(t, &o), true;
    return t.defined() && is_cpu_scalar(t) && cpu_scalar_operand(t, &o);
  }
  // False, and the call is of no more use, for a complex number.
  bool try_scalar(const at::Scalar& value) {
    return scalar_operand(value, &operands_.emplace_back());
  }
  Call& optional(const std::optional<at::Tensor>& t) {
    return t.has_value() && t->defined() ? tensor(*t) : none();
  }
  Call& none() {
    none_operand(&operands_.emplace_back());
    return *this;
  }
  Call& number(double value) {
    double_operand(value, &operands_.emplace_back());
    return *this;
  }
  Call& integer(int64_t value) {
    int_operand(value, &operands_.emplace_back());
    return *this;
  }
  Call& scalar(const at::Scalar& value) {
    if (C10_UNLIKELY(!scalar_operand(value, &operands_.emplace_back())))
      complex_number(value, true);
    return *this;
  }
  size_t operand_count() const { return operands_.size(); }
  // Another operand is another view of the storage of operand 0.
  bool overlaps_first() const {
    const tpu_operand_t& first = operands_.front();
    for (const tpu_operand_t& o : operands_) {
      if (o.kind == TPU_OPERAND_TENSOR && o.storage == first.storage &&
          (o.view != first.view || o.offset != first.offset))
        return true;
    }
    return false;
  }

  // --- attributes ---
  Call& attr(int64_t value) {
    tpu_attrs_add_int(attributes(), value);
    return *this;
  }
  Call& attr_none() {
    tpu_attrs_add_none(attributes());
    return *this;
  }
  Call& attr_ints(c10::IntArrayRef values) {
    tpu_attrs_add_ints(attributes(), values.data(), values.size());
    return *this;
  }
  Call& attr_dtype(c10::ScalarType type) {
    tpu_attrs_add_dtype(attributes(), checked_dtype(type));
    return *this;
  }
  Call& attr_text(c10::string_view text) {
    tpu_attrs_add_text(attributes(), text.data(), text.size());
    return *this;
  }

  // --- results ---
  // A new storage; metadata from the memo unless given.
  Call& result(tpu_meta_id_t meta = 0) {
    results_.push_back({nullptr, meta, 0});
    owned_.push_back(true);
    return *this;
  }
  // Written to an existing tensor.
  Call& written(const at::Tensor& destination) {
    if (C10_UNLIKELY(!is_tpu(destination))) throw_device_mismatch(destination.device());
    const Located at = locate(destination);
    tpu_result_t r{at.storage, 0, 0};
    r.meta = view_of(destination, at, &r.offset);
    results_.push_back(r);
    owned_.push_back(false);
    return *this;
  }
  // Written to operand 0, which is a tpu tensor.
  Call& written_to_first() {
    const tpu_operand_t& first = operands_.front();
    results_.push_back({first.storage, first.view, first.offset});
    owned_.push_back(false);
    return *this;
  }
  void set_result_meta(size_t k, tpu_meta_id_t meta) { results_[k].meta = meta; }
  // Runs on a channel, beside the device's own work.
  Call& on(tpu_channel_t* channel) {
    call_.channel = channel;
    return *this;
  }
  Call& compute(tpu_dtype_t dtype) {
    call_.compute_dtype = dtype;
    return *this;
  }
  // The caller vouches for all metadata: the call is never unknown.
  Call& known() {
    call_.has_metas = true;
    return *this;
  }

  // Records. False when the signature is not known yet and nothing was recorded.
  bool try_record() {
    // The dtype of Python floats and the precision of products are hidden arguments of many
    // operations; they become part of the signature only when someone changed them.
    if (C10_UNLIKELY(!salted_)) {
      salted_ = true;
      if (complex_numbers_ != 0) tpu_attrs_add_complex(attributes(), complex_numbers_);
      const c10::ScalarType dtype = c10::get_default_dtype_as_scalartype();
      if (dtype != c10::ScalarType::Float)
        tpu_attrs_add_default_dtype(attributes(), checked_dtype(dtype));
      const tpu_precision_t precision = precision_of(call_.op);
      if (C10_UNLIKELY(precision != TPU_PRECISION_HIGHEST))
        tpu_attrs_add_precision(attributes(), precision);
      if (has_attrs_) TPU_THROW_IF_ERROR(tpu_attrs_intern(&attrs_, &call_.attrs));
    }
    call_.operand_count = static_cast<int>(operands_.size());
    call_.operands = operands_.data();
    call_.result_count = static_cast<int>(results_.size());
    call_.results = results_.data();
    note_location();
    bool unknown = false;
    TPU_THROW_IF_ERROR(tpu_engine_record(engine(), &call_, &unknown));
    return !unknown;
  }
  // Records a call whose metadata are known.
  Call& record() {
    call_.has_metas = true;
    TORCH_CHECK(try_record(), "internal: the tpu engine did not accept given metadata");
    return *this;
  }
  // New tensor for result k; undefined if it is absent.
  at::Tensor take(size_t k) {
    const tpu_meta_id_t meta = results_[k].meta;
    if (C10_UNLIKELY(meta == absent_meta())) return {};
    tpu_storage_t* storage = results_[k].storage;
    results_[k].storage = nullptr;
    return wrap_storage(storage, tpu_meta_get(meta));
  }

 private:
  static bool is_plain(const at::Tensor& t) { return t.defined() && is_tpu(t) && !is_lazy(t); }
  tpu_attrs_builder_t* attributes() {
    if (!has_attrs_) tpu_attrs_begin(&attrs_);
    has_attrs_ = true;
    return &attrs_;
  }
  void other_tensor(const at::Tensor& tensor, tpu_operand_t* out);
  // Replaces the last operand, a host number that is complex, by a 0-dim device tensor.
  void complex_number(const at::Scalar& value, bool wrapped);

  tpu_call_t call_{};
  c10::SmallVector<tpu_operand_t, 10> operands_;
  c10::SmallVector<tpu_result_t, 4> results_;
  c10::SmallVector<bool, 4> owned_;
  bool salted_ = false;
  bool has_attrs_ = false;
  // Complex numbers promote as numbers but travel as tensors: which operands do so is part of the
  // key.
  int64_t complex_numbers_ = 0;
  c10::SmallVector<at::Tensor, 1> kept_;
  tpu_attrs_builder_t attrs_;  // last: large, not initialised
};

// Copies a tpu tensor's elements into another one (broadcasting, converting).
void copy_on_device(const at::Tensor& source, const at::Tensor& destination);

}  // namespace tpu_shim

#endif  // TPU_SHIM_RECORD_H_
