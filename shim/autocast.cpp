// Autocast: CUDA's lists of operations, with bfloat16 as the default low precision. One boxed
// kernel serves them all; ATen/autocast_mode.h, which makes one per operation, includes every
// operation's header.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "runtime.h"

namespace at::autocast {
// Exported by libtorch_cpu, declared in ATen/autocast_mode.h.
TORCH_API ScalarType get_autocast_dtype(DeviceType device_type);
TORCH_API void set_autocast_dtype(DeviceType device_type, ScalarType dtype);
// Tensors that autocast leaves alone (integers, double, other devices) come back as they are.
TORCH_API Tensor cached_cast(ScalarType to_type, const Tensor& arg, DeviceType device_type);
}  // namespace at::autocast

namespace tpu_shim {

namespace {

enum class Policy : uint8_t {
  kLower,            // all tensors in the low precision
  kFloat,            // all tensors in float32
  kFloatResult,      // the result in float32 unless the caller gave a dtype
  kPromote,          // all tensors in the widest dtype among them
  kFloatResultNorm,  // as kFloatResult, for overloads of norm without a dtype argument
  kRefuse,
};

struct List {
  Policy policy;
  std::initializer_list<const char*> names;
};

// clang-format off
const List kLists[] = {
  {Policy::kLower,
   {"_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu",
    "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm",
    "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention"}},
  {Policy::kFloat,
   {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim",
    "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d",
    "upsample_bicubic2d", "_upsample_bicubic2d_aa"}},
  {Policy::kFloatResult,
   {"prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum",
    "sum.dim_IntList"}},
  {Policy::kPromote,
   {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add"}},
  {Policy::kFloatResultNorm, {"norm.Scalar", "norm.ScalarOpt_dim"}},
  {Policy::kRefuse, {"binary_cross_entropy"}},
};
// clang-format on

bool is_eligible(const at::Tensor& t) {
  return t.defined() && t.is_privateuseone() && t.is_floating_point() &&
         t.scalar_type() != at::kDouble;
}

void cast_all(at::ScalarType type, c10::ArrayRef<c10::Argument> schema, c10::IValue* args) {
  const auto cast = [type](const at::Tensor& t) {
    return at::autocast::cached_cast(type, t, kTpu);
  };
  for (size_t i = 0; i < schema.size(); ++i) {
    if (args[i].isTensor()) {
      args[i] = cast(args[i].toTensor());
    } else if (args[i].isTensorList()) {
      std::vector<at::Tensor> tensors = args[i].toTensorVector();
      for (at::Tensor& t : tensors) t = cast(t);
      args[i] = std::move(tensors);
    }
  }
}

void widen(const at::Tensor& t, at::ScalarType low, at::ScalarType* type) {
  if (!is_eligible(t)) return;
  const at::ScalarType mine = t.scalar_type();
  TORCH_CHECK(*type == at::kFloat || mine == at::kFloat || mine == low,
              "autocast of this operation takes float32 and ", low, " tensors, but got one of ",
              mine);
  if (mine == at::kFloat) *type = mine;
}

// float32 if a tensor has it, else the low precision. Optional tensors have no say.
at::ScalarType widest(c10::ArrayRef<c10::Argument> schema, const c10::IValue* args) {
  const at::ScalarType low = at::autocast::get_autocast_dtype(kTpu);
  at::ScalarType type = low;
  for (size_t i = 0; i < schema.size(); ++i) {
    if (schema[i].type()->kind() == c10::TypeKind::TensorType) {
      widen(args[i].toTensor(), low, &type);
    } else if (args[i].isTensorList()) {
      for (const at::Tensor& t : args[i].toTensorVector()) widen(t, low, &type);
    }
  }
  return type;
}

void set_missing_dtype(c10::ArrayRef<c10::Argument> schema, c10::IValue* args) {
  if (!is_eligible(args[0].toTensor())) return;
  for (size_t i = 0; i < schema.size(); ++i) {
    const auto optional = schema[i].real_type()->cast<c10::OptionalType>();
    if (optional != nullptr && args[i].isNone() &&
        optional->getElementType()->kind() == c10::TypeKind::ScalarTypeType) {
      args[i] = at::kFloat;
    }
  }
}

// norm.Scalar and norm.ScalarOpt_dim become the overloads that take a dtype, which comes last.
void call_norm_with_dtype(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const bool has_dim = op.operator_name().overload_name == "ScalarOpt_dim";
  const at::Tensor& self = stack->at(stack->size() - op.schema().arguments().size()).toTensor();
  stack->emplace_back(is_eligible(self) ? at::kFloat : self.scalar_type());
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("aten::norm", has_dim ? "ScalarOpt_dim_dtype" : "ScalarOpt_dtype")
      .callBoxed(stack);
}

[[noreturn]] void refuse() {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: "
      "their input may not be representable in the low precision. Use "
      "binary_cross_entropy_with_logits or BCEWithLogitsLoss, or disable autocast around the "
      "call.");
}

class AutocastKernel final : public c10::OperatorKernel {
 public:
  explicit AutocastKernel(Policy policy) : policy_(policy) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
    const c10::ArrayRef<c10::Argument> schema = op.schema().arguments();
    c10::IValue* args = stack->data() + stack->size() - schema.size();
    switch (policy_) {
      case Policy::kLower: cast_all(at::autocast::get_autocast_dtype(kTpu), schema, args); break;
      case Policy::kFloat: cast_all(at::kFloat, schema, args); break;
      case Policy::kFloatResult: set_missing_dtype(schema, args); break;
      case Policy::kPromote: cast_all(widest(schema, args), schema, args); break;
      case Policy::kFloatResultNorm: return call_norm_with_dtype(op, stack);
      case Policy::kRefuse: refuse();
    }
    op.callBoxed(stack);
  }

 private:
  Policy policy_;
};

}  // namespace

// Runs at import. PyTorch keeps the dtype per thread: others begin with its default, float16.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  at::autocast::set_autocast_dtype(kTpu, at::kBFloat16);
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const List& list : kLists) {
    for (const char* name : list.names) {
      m.impl(name, torch::CppFunction::makeFromBoxedFunctor(
                       std::make_unique<AutocastKernel>(list.policy)));
    }
  }
}

}  // namespace tpu_shim
