#include "debug_checks.h"

#include <ATen/ops/all.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/item.h>

#include "storage.h"

namespace tpu_shim {

namespace {

at::Tensor to_host(const at::Tensor& tensor) {
  return is_tpu(tensor) ? read_tensor(tensor) : tensor;
}

}  // namespace

bool looks_for_nonfinite() { return tpu_engine_checks_finite(engine()); }

namespace {
bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return true;
  if (!at::isFloatingType(tensor.scalar_type()) && !at::isComplexType(tensor.scalar_type()))
    return true;
  return at::isfinite(to_host(tensor)).all().item<bool>();
}
}  // namespace

bool all_finite(const torch::jit::Stack& stack, size_t count) {
  for (auto value = stack.end() - static_cast<ptrdiff_t>(count); value != stack.end(); ++value) {
    if (value->isTensor() && !is_finite(value->toTensor())) return false;
    if (!value->isTensorList()) continue;
    for (const at::Tensor& tensor : value->toTensorVector()) {
      if (!is_finite(tensor)) return false;
    }
  }
  return true;
}

}  // namespace tpu_shim
