// Calls whose signature is new: PyTorch says which results they have, or why it refuses them.
#include <ATen/EmptyTensor.h>
#include <ATen/native/TypeProperties.h>

#include "meta_query.h"
#include "overload.h"

namespace tpu_shim {

// PyTorch's result_type over the operands.
c10::ScalarType Overload::promoted_type(const c10::IValue* args) const {
  at::native::ResultTypeState state;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (args[i].isNone() || (has(TPU_OP_LAST_APART) && i == last_operand_)) continue;
    if (kinds_[i] == ArgumentKind::kTensor) {
      if (args[i].toTensor().defined())
        state = at::native::update_result_type_state(args[i].toTensor(), state);
    } else if (kinds_[i] == ArgumentKind::kScalar) {
      state = at::native::update_result_type_state(args[i].toScalar(), state);
    } else if (kinds_[i] == ArgumentKind::kTensorList) {
      for (const c10::IValue& item : args[i].toListRef()) {
        if (item.isTensor()) state = at::native::update_result_type_state(item.toTensor(), state);
      }
    }
  }
  return at::native::result_type(state);
}

// With INT_TO_FLOAT the default dtype for integers.
tpu_dtype_t Overload::compute_dtype(const c10::IValue* args) const {
  if (!has(TPU_OP_PROMOTE)) return TPU_DTYPE_INVALID;
  c10::ScalarType type = promoted_type(args);
  if (has(TPU_OP_INT_TO_FLOAT) && c10::isIntegralType(type, /*includeBool=*/true)) {
    type = c10::get_default_dtype_as_scalartype();
  }
  return checked_dtype(type);
}

// Calls the overload on meta tensors. False when PyTorch has no meta kernel for it.
bool Overload::ask_pytorch(const c10::IValue* args, Call* call, bool set_metas) const {
  const bool use_functional = functional_.has_value();
  const size_t count = use_functional ? kinds_.size() - out_count_ : kinds_.size();
  torch::jit::Stack stack;
  for (size_t i = 0; i < count; ++i) {
    if (kinds_[i] == ArgumentKind::kOut) {
      stack.emplace_back(at::Tensor(at::detail::empty_meta({0}, args[i].toTensor().scalar_type())));
    } else {
      stack.push_back(to_meta(args[i]));
    }
  }
  try {
    call_below_modes(use_functional ? *functional_ : question_, &stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (...) {
    throw_as_on_cpu(op_, args, kinds_.size());
    throw;
  }
  if (!has(TPU_OP_RANDOM)) {
    // Rows with indices are no elementwise ones, whatever their family.
    const bool elementwise =
        tpu_op_info(row_)->family == TPU_FAMILY_POINTWISE && !has(TPU_OP_CHECK_INDEX);
    refuse_as_on_cpu(question_, args, kinds_.size(), elementwise);
  }
  for (size_t k = 0; set_metas && k < return_count_; ++k) {
    const at::Tensor& result = stack[k].toTensor();
    call->set_result_meta(k, result.defined() ? result_meta_of(result) : absent_meta());
  }
  call->compute(compute_dtype(args)).known();
  return true;
}

// Throws PyTorch's error if this out= call would be refused.
void Overload::check_out(const c10::IValue* args) const {
  torch::jit::Stack stack;
  for (size_t i = 0; i < kinds_.size(); ++i) stack.push_back(to_meta(args[i]));
  try {
    call_below_modes(question_, &stack);
  } catch (const c10::NotImplementedError&) {
    return;  // no meta kernel for the out= form: converted, as TensorIterator does
  } catch (...) {
    throw_as_on_cpu(op_, args, kinds_.size());
    throw;
  }
}

}  // namespace tpu_shim
