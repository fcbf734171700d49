// histc of integers: CUDA has it, the CPU does not; mixtures of experts count their tokens by it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "adapter.h"
#include "fallback.h"

namespace tpu_shim {

namespace {

at::Tensor on_host(const at::Tensor& self, int64_t bins, const at::Scalar& min,
                   const at::Scalar& max) {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::histc", "");
  torch::jit::Stack stack{self, bins, min, max};
  run_on_host(op, &stack);
  return std::move(stack.front()).toTensor();
}

// Both ends belong to the range; where they are equal it is that of the values, and of one more on
// either side if those are equal. Counts have the dtype of the values and wrap around, as on CUDA.
at::Tensor count(const at::Tensor& self, int64_t bins, int64_t min, int64_t max) {
  TORCH_CHECK(bins > 0, "histc: bins must be > 0, but got ", bins);
  TORCH_CHECK(min <= max, "histc: max must not be less than min, but got min=", min,
              " and max=", max);
  at::Tensor counts = at::zeros({bins}, self.options());
  if (self.numel() == 0) return counts;
  const at::Tensor x = self.reshape({-1}).to(at::kLong);
  at::Tensor low = at::scalar_tensor(min, at::kLong), high = at::scalar_tensor(max, at::kLong);
  if (min == max) {
    const at::Tensor least = x.min(), most = x.max();
    const at::Tensor apart = least.eq(most).to(at::kLong);
    low = least.sub(apart);
    high = most.add(apart);
  }
  const at::Tensor inside = x.ge(low).logical_and_(x.le(high));
  const at::Tensor bin = at::div(x.sub(low).mul_(bins), high.sub(low), "floor").clamp_(0, bins - 1);
  return counts.scatter_add_(0, bin, inside.to(self.scalar_type()));
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min,
                 const at::Scalar& max) {
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false))
    return on_host(self, bins, min, max);
  return count(self, bins, min.toLong(), max.toLong());
}

at::Tensor& histc_out(const at::Tensor& self, int64_t bins, const at::Scalar& min,
                      const at::Scalar& max, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == self.scalar_type(),
              "torch.histogram: input tensor and hist tensor should have the same dtype, but got "
              "input ",
              self.scalar_type(), " and hist ", out.scalar_type());
  write_out(histc(self, bins, min, max), out);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("histc", TORCH_FN(histc));
  m.impl("histc.out", TORCH_FN(histc_out));
}

}  // namespace tpu_shim
