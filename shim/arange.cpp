// arange: its size depends on numbers, so it is counted here; start and step are program arguments.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>

#include "record.h"

namespace tpu_shim {

namespace {

void add_number(Call* call, const at::Scalar& value, bool integral) {
  integral ? call->integer(value.toLong()) : call->number(value.toDouble());
}

at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                       at::Tensor& out) {
  const bool integral = c10::isIntegralType(out.scalar_type(), /*includeBool=*/false);
  const double from = start.toDouble(), to = end.toDouble(), by = step.toDouble();
  TORCH_CHECK(by > 0 || by < 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(from) && std::isfinite(to), "unsupported range: ", from, " -> ", to);
  TORCH_CHECK((by > 0 && to >= from) || (by < 0 && to <= from),
              "upper bound and lower bound inconsistent with step sign");
  double count = std::ceil((to - from) / by);
  // As on the CPU, an int64 range is truncated before it is counted, and counted exactly.
  if (out.scalar_type() == at::kLong) {
    TORCH_CHECK_VALUE(step.toLong() != 0, "step must be nonzero; as int64 it is 0");
    const int64_t sign = step.toLong() > 0 ? 1 : -1;
    count =
        static_cast<double>((end.toLong() - start.toLong() + step.toLong() - sign) / step.toLong());
  }
  TORCH_CHECK(count >= 0 && count <= 9.2e18, "invalid size, possible overflow?");
  const int64_t size = static_cast<int64_t>(count);
  if (out.numel() != size) {
    if (out.numel() > 0) {
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ",
                 out.numel(), " which does not match the computed number of elements ", size,
                 ". Note that this may occur as a result of rounding error. The out tensor will be "
                 "resized "
                 "to a tensor of shape (",
                 size, ",).");
    }
    out.resize_({size});
  }
  if (size == 0) return out;
  const bool flat = out.dim() == 1;
  const at::Tensor target = flat ? out : at::empty({size}, out.options());
  static const tpu_op_t row = op_row("arange");
  Call call(row, TPU_CALL_OUT);
  add_number(&call, start, integral);
  add_number(&call, step, integral);
  call.written(target).record();
  if (!flat) copy_on_device(target.view(out.sizes()), out);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("arange.start_out", TORCH_FN(arange_out)); }

}  // namespace tpu_shim
