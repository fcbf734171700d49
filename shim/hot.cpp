#include "hot.h"

#include <torch/library.h>

#include <cstring>

namespace tpu_shim {

namespace {

using T = const at::Tensor&;
using S = const at::Scalar&;
using OptT = const std::optional<at::Tensor>&;
using Out1 = at::Tensor;
using Out2 = std::tuple<at::Tensor, at::Tensor>;
using Out3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Ints = at::IntArrayRef;
using OptInts = at::OptionalIntArrayRef;
using OptType = std::optional<at::ScalarType>;

// HOT(C++ name, ATen overload, signature). Signatures are PyTorch's, with int64_t for SymInt.
#define TPU_HOT_KERNELS(HOT)                                                                   \
  HOT(add, "add.Tensor", Out1(T, T, S))                                                        \
  HOT(add_, "add_.Tensor", at::Tensor&(at::Tensor&, T, S))                                     \
  HOT(sub, "sub.Tensor", Out1(T, T, S))                                                        \
  HOT(sub_, "sub_.Tensor", at::Tensor&(at::Tensor&, T, S))                                     \
  HOT(mul, "mul.Tensor", Out1(T, T))                                                           \
  HOT(mul_, "mul_.Tensor", at::Tensor&(at::Tensor&, T))                                        \
  HOT(div, "div.Tensor", Out1(T, T))                                                           \
  HOT(div_, "div_.Tensor", at::Tensor&(at::Tensor&, T))                                        \
  HOT(maximum, "maximum", Out1(T, T))                                                          \
  HOT(minimum, "minimum", Out1(T, T))                                                          \
  HOT(eq, "eq.Tensor", Out1(T, T))                                                             \
  HOT(neg, "neg", Out1(T))                                                                     \
  HOT(exp, "exp", Out1(T))                                                                     \
  HOT(log, "log", Out1(T))                                                                     \
  HOT(abs, "abs", Out1(T))                                                                     \
  HOT(sqrt, "sqrt", Out1(T))                                                                   \
  HOT(sqrt_, "sqrt_", at::Tensor&(at::Tensor&))                                                \
  HOT(rsqrt, "rsqrt", Out1(T))                                                                 \
  HOT(reciprocal, "reciprocal", Out1(T))                                                       \
  HOT(tanh, "tanh", Out1(T))                                                                   \
  HOT(tanh_backward, "tanh_backward", Out1(T, T))                                              \
  HOT(sigmoid, "sigmoid", Out1(T))                                                             \
  HOT(sigmoid_backward, "sigmoid_backward", Out1(T, T))                                        \
  HOT(relu, "relu", Out1(T))                                                                   \
  HOT(relu_, "relu_", at::Tensor&(at::Tensor&))                                                \
  HOT(threshold_backward, "threshold_backward", Out1(T, T, S))                                 \
  HOT(silu, "silu", Out1(T))                                                                   \
  HOT(silu_backward, "silu_backward", Out1(T, T))                                              \
  HOT(gelu, "gelu", Out1(T, c10::string_view))                                                 \
  HOT(gelu_backward, "gelu_backward", Out1(T, T, c10::string_view))                            \
  HOT(where, "where.self", Out1(T, T, T))                                                      \
  HOT(lerp_, "lerp_.Scalar", at::Tensor&(at::Tensor&, T, S))                                   \
  HOT(addcmul_, "addcmul_", at::Tensor&(at::Tensor&, T, T, S))                                 \
  HOT(addcdiv_, "addcdiv_", at::Tensor&(at::Tensor&, T, T, S))                                 \
  HOT(mm, "mm", Out1(T, T))                                                                    \
  HOT(bmm, "bmm", Out1(T, T))                                                                  \
  HOT(addmm, "addmm", Out1(T, T, T, S, S))                                                     \
  HOT(sum, "sum.dim_IntList", Out1(T, OptInts, bool, OptType))                                 \
  HOT(mean, "mean.dim", Out1(T, OptInts, bool, OptType))                                       \
  HOT(softmax, "_softmax", Out1(T, int64_t, bool))                                             \
  HOT(log_softmax, "_log_softmax", Out1(T, int64_t, bool))                                     \
  HOT(softmax_backward, "_softmax_backward_data", Out1(T, T, int64_t, at::ScalarType))         \
  HOT(log_softmax_backward, "_log_softmax_backward_data", Out1(T, T, int64_t, at::ScalarType)) \
  HOT(layer_norm, "native_layer_norm", Out3(T, Ints, OptT, OptT, double))                      \
  HOT(layer_norm_backward, "native_layer_norm_backward",                                       \
      Out3(T, T, Ints, T, T, OptT, OptT, std::array<bool, 3>))                                 \
  HOT(index_select, "index_select", Out1(T, int64_t, T))

#define TPU_NAME(name, text_, ...)             \
  struct Name_##name {                         \
    static constexpr const char* text = text_; \
  };
TPU_HOT_KERNELS(TPU_NAME)
#undef TPU_NAME

struct Entry {
  const char* name;
  torch::CppFunction (*make)();
};

#define TPU_ENTRY(name, text, ...) \
  {text, [] { return torch::CppFunction(TORCH_FN((HotKernel<Name_##name, __VA_ARGS__>::run))); }},
constexpr Entry kEntries[] = {TPU_HOT_KERNELS(TPU_ENTRY)};
#undef TPU_ENTRY

bool lists(const char* names, const char* name) {
  const size_t size = std::strlen(name);
  for (const char* at = names; (at = std::strstr(at, name)) != nullptr; at += size) {
    const bool begins = at == names || at[-1] == ' ';
    if (begins && (at[size] == ' ' || at[size] == '\0')) return true;
  }
  return false;
}

}  // namespace

tpu_op_t find_row(const char* name) {
  for (tpu_op_t row = 1; row < tpu_op_count(); ++row) {
    if (lists(tpu_op_info(row)->aten, name)) return row;
  }
  return TPU_OP_INVALID;
}

bool has_hot_kernel(const std::string& name) {
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return true;
  }
  return false;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const Entry& entry : kEntries) {
    // An overload without a row stays with the fallback.
    if (find_row(entry.name) != TPU_OP_INVALID) m.impl(entry.name, entry.make());
  }
}

}  // namespace tpu_shim
