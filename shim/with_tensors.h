// Tensors inside the arguments and results of a boxed call.
#ifndef TPU_SHIM_WITH_TENSORS_H_
#define TPU_SHIM_WITH_TENSORS_H_

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace tpu_shim {

// The value with each tensor of it replaced by change(tensor). An undefined one stays as it is,
// and is none in a list of optional tensors.
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return value.toTensor().defined() ? change(value.toTensor()) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<at::Tensor>> list;
  for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
    const bool given = tensor.has_value() && tensor->defined();
    list.push_back(given ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
  }
  return list;
}

}  // namespace tpu_shim

#endif  // TPU_SHIM_WITH_TENSORS_H_
