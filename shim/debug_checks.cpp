#include "debug_checks.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/TensorBase.h>
#include <ATen/ops/all.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/item.h>

#include "storage.h"

namespace tpu_shim {

namespace {

at::Tensor to_host(const at::Tensor& tensor) {
  return is_tpu(tensor) ? read_tensor(tensor) : tensor;
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

// All of `index` lies in [0, size), or in [-size, size) with `negative`.
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

// `target` of a loss: a class of each element of `scores`, or `skip`.
void check_classes(const at::Tensor& target, const at::Tensor& scores, int64_t skip) {
  const int64_t dim = scores.dim() == 1 ? 0 : 1;
  const at::Tensor host = to_host(target);
  const int64_t* values =
      host.scalar_type() == at::kLong ? host.const_data_ptr<int64_t>() : nullptr;
  for (int64_t i = 0; values != nullptr && i < host.numel(); ++i) {
    TORCH_CHECK_INDEX(values[i] == skip || (values[i] >= 0 && values[i] < scores.size(dim)),
                      "Target ", values[i], " is out of bounds.");
  }
}

// `index` along `dim`, or without one into all elements (take, put).
void check_along(const at::Tensor& index, const at::Tensor& self, const c10::IValue* dim) {
  if (dim == nullptr) return check_index(index, 0, self.numel(), true);
  if (self.dim() == 0) return check_index(index, 0, 1, false);
  const int64_t along = at::maybe_wrap_dim(dim->toInt(), self.dim());
  check_index(index, along, self.size(along), false);
}

// One index for each of the first dimensions, or none.
void check_each(const c10::IValue& indices, const at::Tensor& self) {
  const auto list = indices.toListRef();
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t dim = static_cast<int64_t>(i);
    if (list[i].isTensor() && list[i].toTensor().defined())
      check_index(list[i].toTensor(), dim, self.size(dim), /*negative=*/true);
  }
}

}  // namespace

void check_index_arguments(const c10::FunctionSchema& schema, const c10::IValue* args) {
  const auto find = [&](const char* name) -> const c10::IValue* {
    const auto at = schema.argumentIndexWithName(name);
    return at.has_value() ? &args[*at] : nullptr;
  };
  const c10::IValue* self = find("self");
  if (const c10::IValue* index = find("index")) {
    check_along(index->toTensor(), self->toTensor(), find("dim"));
  } else if (const c10::IValue* target = find("target")) {
    check_classes(target->toTensor(), self->toTensor(), find("ignore_index")->toInt());
  } else if (const c10::IValue* rows = find("num_weights")) {
    check_index(find("indices")->toTensor(), 0, rows->toInt(), false);
  } else if (const c10::IValue* weight = find("weight")) {
    check_index(find("indices")->toTensor(), 0, weight->toTensor().size(0), false);
  } else {
    const c10::IValue* indices = find("indices");
    TORCH_CHECK(indices != nullptr, "internal: ", schema.name(),
                " has the flag CHECK_INDEX and no argument with indices");
    check_each(*indices, self->toTensor());
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
