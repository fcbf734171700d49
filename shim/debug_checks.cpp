#include "debug_checks.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/TensorBase.h>
#include <ATen/ops/all.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/item.h>

#include "storage.h"

namespace tpu_shim {

namespace {

at::Tensor to_host(const at::Tensor& tensor) {
  if (!is_tpu(tensor)) return tensor;
  at::Tensor host =
      at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(at::kCPU));
  if (host.numel() > 0)
    read_tensor(tensor, host.mutable_data_ptr(), static_cast<int64_t>(host.nbytes()));
  return host;
}

template <class T>
void check_values(const at::Tensor& host, int64_t dim, int64_t size, int64_t lowest) {
  const T* values = host.const_data_ptr<T>();
  for (int64_t i = 0; i < host.numel(); ++i) {
    const int64_t value = static_cast<int64_t>(values[i]);
    TORCH_CHECK_INDEX(value >= lowest && value < size, "index ", value,
                      " is out of bounds for dimension ", dim, " with size ", size);
  }
}

// Position of a tensor argument by name, or -1.
int find_argument(const c10::FunctionSchema& schema, const char* name) {
  const auto& args = schema.arguments();
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].name() == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

void check_index(const at::Tensor& index, int64_t dim, int64_t size, bool negative) {
  if (index.numel() == 0) return;
  const at::Tensor host = to_host(index).contiguous();
  const int64_t lowest = negative ? -size : 0;
  switch (host.scalar_type()) {
    case at::kLong: check_values<int64_t>(host, dim, size, lowest); break;
    case at::kInt: check_values<int32_t>(host, dim, size, lowest); break;
    case at::kShort: check_values<int16_t>(host, dim, size, lowest); break;
    case at::kChar: check_values<int8_t>(host, dim, size, lowest); break;
    default: break;  // other dtypes are no indices; the op itself complains
  }
}

void check_index_arguments(const c10::FunctionSchema& schema, const c10::IValue* args) {
  const int self = find_argument(schema, "self");
  const int dim_at = find_argument(schema, "dim");
  const int index = find_argument(schema, "index");
  if (index >= 0 && self >= 0 && dim_at >= 0 && args[index].isTensor() && args[dim_at].isInt()) {
    const at::Tensor& tensor = args[self].toTensor();
    if (tensor.dim() == 0) return check_index(args[index].toTensor(), 0, 1, false);
    const int64_t dim = at::maybe_wrap_dim(args[dim_at].toInt(), tensor.dim());
    return check_index(args[index].toTensor(), dim, tensor.size(dim), false);
  }
  if (index >= 0 && self >= 0 && dim_at < 0 && args[index].isTensor()) {  // take, put
    return check_index(args[index].toTensor(), 0, args[self].toTensor().numel(), true);
  }
  const int indices = find_argument(schema, "indices");
  const int rows = find_argument(schema, "num_weights");
  if (indices >= 0 && rows >= 0 && args[indices].isTensor()) {
    return check_index(args[indices].toTensor(), 0, args[rows].toInt(), false);
  }
  const int weight = find_argument(schema, "weight");
  if (indices >= 0 && weight >= 0 && args[indices].isTensor()) {
    return check_index(args[indices].toTensor(), 0, args[weight].toTensor().size(0), false);
  }
  const int target = find_argument(schema, "target");
  const int ignore = find_argument(schema, "ignore_index");
  if (target >= 0 && ignore >= 0 && self >= 0 && args[target].isTensor()) {
    const at::Tensor& scores = args[self].toTensor();
    const int64_t dim = scores.dim() == 1 ? 0 : 1;
    const at::Tensor host = to_host(args[target].toTensor());
    const int64_t skip = args[ignore].toInt();
    const int64_t* values =
        host.scalar_type() == at::kLong ? host.const_data_ptr<int64_t>() : nullptr;
    for (int64_t i = 0; values != nullptr && i < host.numel(); ++i) {
      TORCH_CHECK_INDEX(values[i] == skip || (values[i] >= 0 && values[i] < scores.size(dim)),
                        "Target ", values[i], " is out of bounds.");
    }
  }
}

bool looks_for_nonfinite() { return debug_mode() && tpu_env_bool(TPU_ENV_CHECK_NONFINITE); }

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
