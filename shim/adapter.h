// The boxed adapter: kernels for all op table rows, made from the row and the overload's schema.
#ifndef TPU_SHIM_ADAPTER_H_
#define TPU_SHIM_ADAPTER_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "tpu_core.h"

namespace tpu_shim {

// One overload served by one row. Made once, lives forever.
class Overload;

// The overload's handle and adapter plan, for kernels that build their own call and need PyTorch's
// answer for an unknown signature. `name` is "add.Tensor"; the row must list it.
Overload* overload(tpu_op_t row, const char* name);

// Runs the overload on boxed arguments.
void run_boxed(Overload* overload, torch::jit::Stack* stack);

// Runs the overload on unboxed arguments, result in the stack's place.
template <class... Args>
at::Tensor run_unboxed(Overload* o, Args&&... args) {
  torch::jit::Stack stack;
  stack.reserve(sizeof...(args));
  (stack.emplace_back(std::forward<Args>(args)), ...);
  run_boxed(o, &stack);
  return std::move(stack.front()).toTensor();
}

// What the table names for a row, such as "add.Tensor", and such a name as PyTorch's.
std::vector<std::string> names_of(tpu_op_t row);
c10::OperatorName operator_name(const std::string& text);

// Overloads that the table names and the device does not serve, each with the reason. For tests.
std::vector<std::string> unregistered_ops();

// Writes `result` to an out= argument as PyTorch does: checks that the dtype can be cast, resizes
// if the shape differs (with PyTorch's warning), keeps the caller's strides.
void write_out(const at::Tensor& result, const at::Tensor& out);
// Its two halves: all but the copy, and the copy.
void prepare_out(const at::Tensor& result, const at::Tensor& out);
void write_prepared(const at::Tensor& result, const at::Tensor& out);

}  // namespace tpu_shim

#endif  // TPU_SHIM_ADAPTER_H_
