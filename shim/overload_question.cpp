// Calls whose signature is new: PyTorch says which results they have, or why it refuses them.
#include <ATen/EmptyTensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/_log_softmax_meta_dispatch.h>
#include <ATen/ops/_softmax_meta_dispatch.h>
#include <ATen/ops/_upsample_nearest_exact1d_meta_dispatch.h>
#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/addcdiv_meta_dispatch.h>
#include <ATen/ops/addcmul_meta_dispatch.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/argmax_meta_dispatch.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/bitwise_and_meta_dispatch.h>
#include <ATen/ops/bitwise_or_meta_dispatch.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/cat_meta_dispatch.h>
#include <ATen/ops/ceil_meta_dispatch.h>
#include <ATen/ops/clamp_meta_dispatch.h>
#include <ATen/ops/cos_meta_dispatch.h>
#include <ATen/ops/cumprod_meta_dispatch.h>
#include <ATen/ops/cumsum_meta_dispatch.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/eq_meta_dispatch.h>
#include <ATen/ops/exp_meta_dispatch.h>
#include <ATen/ops/gather_meta_dispatch.h>
#include <ATen/ops/ge_meta_dispatch.h>
#include <ATen/ops/gt_meta_dispatch.h>
#include <ATen/ops/le_meta_dispatch.h>
#include <ATen/ops/lerp_meta_dispatch.h>
#include <ATen/ops/lt_meta_dispatch.h>
#include <ATen/ops/maximum_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/mm_meta_dispatch.h>
#include <ATen/ops/mul_meta_dispatch.h>
#include <ATen/ops/ne_meta_dispatch.h>
#include <ATen/ops/neg_meta_dispatch.h>
#include <ATen/ops/pow_meta_dispatch.h>
#include <ATen/ops/rsqrt_meta_dispatch.h>
#include <ATen/ops/sigmoid_meta_dispatch.h>
#include <ATen/ops/silu_meta_dispatch.h>
#include <ATen/ops/sin_meta_dispatch.h>
#include <ATen/ops/sqrt_meta_dispatch.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <ATen/ops/sum_meta_dispatch.h>
#include <ATen/ops/tanh_meta_dispatch.h>
#include <ATen/ops/topk_meta_dispatch.h>
#include <ATen/ops/upsample_nearest1d_meta_dispatch.h>

#include <string>
#include <unordered_map>

#include "meta_query.h"
#include "overload.h"
#include "signature_checks.h"

namespace tpu_shim {

namespace {

using MetaKernel = void (*)(const c10::OperatorHandle&, torch::jit::Stack*);

template <auto function>
void call_structured(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
  run_below_modes(
      [&] { kernel.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), stack); });
}

using OneTensor = at::Tensor (*)(const at::Tensor&, const at::Tensor&);
using OneNumber = at::Tensor (*)(const at::Tensor&, const at::Scalar&);
using InPlace = at::Tensor& (*)(at::Tensor&, const at::Tensor&);
using Mix = at::Tensor (*)(const at::Tensor&, const at::Tensor&, const at::Scalar&);
using TwoNumbers = at::Tensor (*)(const at::Tensor&, const std::optional<at::Scalar>&,
                                  const std::optional<at::Scalar>&);

// Meta kernels in C++ whose place a reference in Python has taken, which takes 10 to 50 times as
// long: of the operations that programs begin with. And where the reference cannot do what they
// can: those of scans make a mask of length * length, which overflows at 2**32; those of 1d
// resampling raise a TypeError for an empty batch.
MetaKernel structured_meta(const c10::OperatorHandle& op) {
#define TPU_META(name) {"aten::" #name, &call_structured<&at::meta::name>}
#define TPU_META_AS(name, overload, type) \
  {"aten::" #name "." overload, &call_structured<static_cast<type>(&at::meta::name)>}
#define TPU_META_OF(name, overload) {"aten::" #name "." overload, &call_structured<&at::meta::name>}
#define TPU_META_COMPARE(name) \
  TPU_META_AS(name, "Tensor", OneTensor), TPU_META_AS(name, "Scalar", OneNumber)
  static const auto* kernels = new std::unordered_map<std::string, MetaKernel>{
      TPU_META(cumsum),
      TPU_META(cumprod),
      TPU_META(upsample_nearest1d),
      TPU_META(_upsample_nearest_exact1d),
      TPU_META(cat),
      TPU_META(mm),
      TPU_META(bmm),
      TPU_META(addmm),
      TPU_META(baddbmm),
      TPU_META(neg),
      TPU_META(rsqrt),
      TPU_META(sqrt),
      TPU_META(silu),
      TPU_META(sigmoid),
      TPU_META(cos),
      TPU_META(sin),
      TPU_META(exp),
      TPU_META(tanh),
      TPU_META(maximum),
      TPU_META(_softmax),
      TPU_META(_log_softmax),
      TPU_META(gather),
      TPU_META(argmax),
      TPU_META(topk),
      TPU_META_OF(add, "Tensor"),
      TPU_META_OF(sub, "Tensor"),
      TPU_META_OF(mul, "Tensor"),
      TPU_META_OF(sum, "dim_IntList"),
      TPU_META_OF(mean, "dim"),
      TPU_META_AS(div, "Tensor", OneTensor),
      TPU_META_AS(pow, "Tensor_Tensor", OneTensor),
      TPU_META_AS(pow, "Tensor_Scalar", OneNumber),
      TPU_META_COMPARE(eq),
      TPU_META_COMPARE(ne),
      TPU_META_COMPARE(lt),
      TPU_META_COMPARE(le),
      TPU_META_COMPARE(gt),
      TPU_META_COMPARE(ge),
      TPU_META(addcmul),
      TPU_META(addcdiv),
      TPU_META(ceil),
      TPU_META_OF(add_, "Tensor"),
      TPU_META_OF(sub_, "Tensor"),
      TPU_META_OF(mul_, "Tensor"),
      TPU_META_AS(div_, "Tensor", InPlace),
      TPU_META_AS(lerp, "Scalar", Mix),
      {"aten::clamp", &call_structured<static_cast<TwoNumbers>(&at::meta::clamp)>},
      TPU_META_OF(bitwise_and, "Tensor"),
      TPU_META_OF(bitwise_or, "Tensor")};
#undef TPU_META_COMPARE
#undef TPU_META_OF
#undef TPU_META_AS
#undef TPU_META
  const auto found = kernels->find(c10::toString(op.operator_name()));
  return found == kernels->end() ? nullptr : found->second;
}

}  // namespace

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

// Calls the overload on meta tensors, leaves the results.
void Overload::question(const c10::IValue* args, c10::IValue (*convert)(const c10::IValue&),
                        torch::jit::Stack* stack) const {
  stack->clear();
  const size_t count = functional_.has_value() ? kinds_.size() - out_count_ : kinds_.size();
  for (size_t i = 0; i < count; ++i) {
    if (kinds_[i] == ArgumentKind::kOut) {
      stack->emplace_back(
          at::Tensor(at::detail::empty_meta({0}, args[i].toTensor().scalar_type())));
    } else {
      stack->push_back(convert(args[i]));
    }
  }
  const c10::OperatorHandle& op = functional_.has_value() ? *functional_ : question_;
  const MetaKernel structured = structured_meta(op);
  structured != nullptr ? structured(op, stack) : call_below_modes(op, stack);
}

bool Overload::has_cpu_number(const c10::IValue* args) const {
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i] == ArgumentKind::kTensor && args[i].isTensor() && args[i].toTensor().defined() &&
        is_cpu_scalar(args[i].toTensor()))
      return true;
  }
  return false;
}

// Some meta kernels read a 0-dim CPU tensor, some want it on the device of the others.
void Overload::question_with_number(const c10::IValue* args, torch::jit::Stack* stack) const {
  try {
    question(args, &to_meta, stack);
  } catch (const c10::NotImplementedError&) {
    throw;
  } catch (const std::exception&) {
    question(args, &to_meta_only, stack);
  }
}

// Throws what kernels throw where meta kernels do not.
void Overload::refuse(const c10::IValue* args, bool always) const {
  check_signature(row_, op_.schema(), args);
  if (has(TPU_OP_RANDOM)) return;
  const bool beyond = kinds_[0] == ArgumentKind::kTensor && args[0].toTensor().defined() &&
                      tpu_op_is_beyond_cpu(row_, dtype_from(args[0].toTensor().scalar_type()));
  if (beyond) return;
  // Lists of indices are checked by the lowering; its error names the line that recorded the call.
  const bool lists = kinds_.size() > 1 && kinds_[1] == ArgumentKind::kTensorList;
  if (has(TPU_OP_CHECK_INDEX) && lists && args[0].toTensor().is_floating_point()) return;
  // Rows with indices are no elementwise ones, whatever their family.
  const bool elementwise =
      tpu_op_info(row_)->family == TPU_FAMILY_POINTWISE && !has(TPU_OP_CHECK_INDEX);
  const bool itself = op_.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  refuse_as_on_cpu(itself ? op_ : question_, args, kinds_.size(), elementwise, always);
}

// The memory format of a result whose row has rules of that; else that of the result as it is.
at::MemoryFormat Overload::image_format(const c10::IValue* args, const at::Tensor& result) const {
  for (const size_t i : images_) {
    const at::Tensor& image = args[i].toTensor();
    if (image.dim() != result.dim()) continue;
    const at::MemoryFormat format = image.suggest_memory_format();
    if (format != at::MemoryFormat::Contiguous) return format;
  }
  return at::MemoryFormat::Preserve;
}

// False when PyTorch has no meta kernel for the overload.
bool Overload::ask_pytorch(const c10::IValue* args, Call* call, bool set_metas) const {
  torch::jit::Stack stack;
  try {
    has_cpu_number(args) ? question_with_number(args, &stack) : question(args, &to_meta, &stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (...) {
    throw_as_on_cpu(op_, args, kinds_.size());
    throw;
  }
  refuse(args, tpu_op_probes_floating(row_));
  for (size_t k = 0; set_metas && k < return_count_; ++k) {
    at::Tensor result = stack[k].toTensor();
    const at::MemoryFormat format = image_format(args, result);
    if (format != at::MemoryFormat::Preserve)
      result = at::detail::empty_meta(result.sizes(), result.scalar_type(), format);
    call->set_result_meta(k, result.defined() ? result_meta_of(result) : absent_meta());
  }
  call->compute(compute_dtype(args)).known();
  return true;
}

// Throws PyTorch's error if this out= call, whose result has another dtype, would be refused.
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
  refuse(args, /*always=*/true);
}

}  // namespace tpu_shim
