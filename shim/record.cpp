#include "record.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/item.h>

namespace tpu_shim {

tpu_op_t op_row(const char* name) {
  const tpu_op_t row = tpu_op_find(name);
  TORCH_CHECK(row != TPU_OP_INVALID, "internal: the op table has no row named '", name, "'");
  return row;
}

tpu_meta_id_t absent_meta() {
  static const tpu_meta_id_t id = [] {
    const int64_t sizes[TPU_MAX_RANK] = {};
    tpu_meta_id_t made = 0;
    TPU_THROW_IF_ERROR(tpu_meta_intern_contiguous(TPU_BOOL, TPU_MAX_RANK, sizes, &made));
    return made;
  }();
  return id;
}

tpu_meta_id_t contiguous_meta(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  tpu_meta_id_t id = 0;
  TPU_THROW_IF_ERROR(tpu_meta_intern_contiguous(checked_dtype(dtype),
                                                static_cast<int>(sizes.size()), sizes.data(), &id));
  return id;
}

tpu_meta_id_t result_meta_of(const at::Tensor& tensor) {
  // Strides of at most one element lead nowhere; they are kept as PyTorch chose them.
  if (tensor.numel() > 1 && !tensor.is_non_overlapping_and_dense()) {
    return strided_meta(tensor.sizes(), at::infer_dense_strides(tensor.sizes(), tensor.strides()),
                        tensor.scalar_type());
  }
  return strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

tpu_meta_id_t strided_meta(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                           c10::ScalarType dtype) {
  tpu_meta_id_t id = 0;
  TPU_THROW_IF_ERROR(tpu_meta_intern(checked_dtype(dtype), static_cast<int>(sizes.size()),
                                     sizes.data(), strides.data(), &id));
  return id;
}

void Call::other_tensor(const at::Tensor& tensor, tpu_operand_t* out) {
  if (!tensor.defined()) {
    none_operand(out);
    return;
  }
  if (is_tpu(tensor)) {
    kept_.push_back(tensor.resolve_conj().resolve_neg());
    tensor_operand(kept_.back(), out);
    return;
  }
  if (!is_cpu_scalar(tensor)) throw_device_mismatch(tensor.device());
  if (!cpu_scalar_operand(tensor, out)) {
    complex_number(tensor.item(), tensor.unsafeGetTensorImpl()->is_wrapped_number());
  }
}

void Call::complex_number(const at::Scalar& value, bool wrapped) {
  at::Tensor host = at::empty({}, at::TensorOptions(at::kComplexDouble).device(at::kCPU));
  *static_cast<c10::complex<double>*>(host.mutable_data_ptr()) = value.toComplexDouble();
  kept_.push_back(host.to(c10::Device(kTpu, current_device())));
  complex_numbers_ =
      complex_numbers_ * 64 + static_cast<int64_t>(operands_.size()) * 2 + (wrapped ? 1 : 0);
  tensor_operand(kept_.back(), &operands_.back());
}

void copy_on_device(const at::Tensor& source, const at::Tensor& destination) {
  if (destination.numel() == 0) return;
  const auto expanded = at::expand_inplace(destination, source, "copy_");
  static const tpu_op_t row = op_row("convert");
  Call call(row, TPU_CALL_OUT);
  call.tensor(*expanded).written(destination).record();
}

}  // namespace tpu_shim
