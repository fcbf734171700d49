// Unboxed kernels for the overloads that programs call most. They do what the boxed adapter does
// for these rows, without a stack: 50 to 100 ns less per call.
#ifndef TPU_SHIM_HOT_H_
#define TPU_SHIM_HOT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>

#include <array>
#include <optional>
#include <tuple>

#include "adapter.h"
#include "debug_checks.h"
#include "record.h"

namespace tpu_shim {

// A call on the stack, filled by put() in schema order. put() is false when the adapter must
// decide.
struct HotCall {
  static constexpr int kMaxOperands = 10;
  tpu_operand_t operands[kMaxOperands];
  int operand_count = 0;
  bool has_attrs = false;
  tpu_attrs_builder_t attrs;  // not initialised until the first attribute

  tpu_operand_t* next() { return &operands[operand_count++]; }
  tpu_attrs_builder_t* attribute() {
    if (!has_attrs) {
      tpu_attrs_begin(&attrs);
      has_attrs = true;
    }
    return &attrs;
  }

  bool put(const at::Tensor& tensor) {
    if (C10_LIKELY(tensor.defined() && is_tpu(tensor) && !is_lazy(tensor))) {
      tensor_operand(tensor, next());
      return true;
    }
    return tensor.defined() && is_cpu_scalar(tensor) && cpu_scalar_operand(tensor, next());
  }
  bool put(const std::optional<at::Tensor>& tensor) {
    if (tensor.has_value() && tensor->defined()) return put(*tensor);
    none_operand(next());
    return true;
  }
  bool put(const at::Scalar& value) { return scalar_operand(value, next()); }
  bool put(const std::optional<at::Scalar>& value) {
    if (value.has_value()) return put(*value);
    none_operand(next());
    return true;
  }
  bool put(double value) { return double_operand(value, next()), true; }
  bool put(int64_t value) { return tpu_attrs_add_int(attribute(), value), true; }
  bool put(bool value) { return tpu_attrs_add_int(attribute(), value), true; }
  bool put(at::IntArrayRef values) {
    return tpu_attrs_add_ints(attribute(), values.data(), values.size()), true;
  }
  bool put(at::OptionalIntArrayRef values) {
    if (values.has_value()) return put(*values);
    return tpu_attrs_add_none(attribute()), true;
  }
  bool put(std::optional<at::ScalarType> type) {
    if (type.has_value()) {
      tpu_attrs_add_dtype(attribute(), checked_dtype(*type));
    } else {
      tpu_attrs_add_none(attribute());
    }
    return true;
  }
  bool put(at::ScalarType type) {
    return tpu_attrs_add_dtype(attribute(), checked_dtype(type)), true;
  }
  bool put(c10::string_view text) {
    return tpu_attrs_add_text(attribute(), text.data(), text.size()), true;
  }
  template <size_t N>
  bool put(const std::array<bool, N>& values) {
    int64_t ints[N];
    for (size_t i = 0; i < N; ++i) ints[i] = values[i];
    return tpu_attrs_add_ints(attribute(), ints, N), true;
  }

  // False when the signature is unknown.
  bool record(tpu_op_t row, tpu_call_variant_t variant, tpu_result_t* results, int result_count) {
    tpu_call_t call{};
    call.op = row;
    call.variant = variant;
    if (has_attrs) TPU_THROW_IF_ERROR(tpu_attrs_intern(&attrs, &call.attrs));
    call.operand_count = operand_count;
    call.operands = operands;
    call.result_count = result_count;
    call.results = results;
    bool unknown = false;
    TPU_THROW_IF_ERROR(tpu_engine_record(engine(), &call, &unknown));
    return !unknown;
  }
};

// Debug mode and an unusual default dtype are the adapter's business.
inline bool hot_allowed() {
  return C10_LIKELY(c10::get_default_dtype_as_scalartype() == c10::ScalarType::Float &&
                    !debug_mode());
}

inline at::Tensor take_result(const tpu_result_t& result) {
  if (C10_UNLIKELY(result.meta == absent_meta())) {
    tpu_storage_release(result.storage);
    return {};
  }
  return wrap_storage(result.storage, tpu_meta_get(result.meta));
}

// The row that lists an ATen overload; INVALID if none does.
tpu_op_t find_row(const char* name);

// True for overloads that hot.cpp registers.
bool has_hot_kernel(const std::string& name);

// What a hot kernel knows about its overload, by type: one instance per kernel.
template <class Name>
struct HotInfo {
  static tpu_op_t row() {
    static const tpu_op_t found = find_row(Name::text);
    return found;
  }
  static Overload* plan() {
    static Overload* made = overload(row(), Name::text);
    return made;
  }
};

template <class Name, class Signature>
struct HotKernel;

// One new tensor.
template <class Name, class... Args>
struct HotKernel<Name, at::Tensor(Args...)> {
  static at::Tensor run(Args... args) {
    if (hot_allowed()) {
      HotCall call;
      if (C10_LIKELY((call.put(args) && ...))) {
        tpu_result_t result{};
        if (C10_LIKELY(call.record(HotInfo<Name>::row(), TPU_CALL_FUNCTIONAL, &result, 1))) {
          return wrap_storage(result.storage, tpu_meta_get(result.meta));
        }
      }
    }
    return run_unboxed(HotInfo<Name>::plan(), args...);
  }
};

// In place: the first argument.
template <class Name, class... Args>
struct HotKernel<Name, at::Tensor&(at::Tensor&, Args...)> {
  static at::Tensor& run(at::Tensor& self, Args... args) {
    if (hot_allowed() && is_tpu(self) && !is_lazy(self)) {
      HotCall call;
      tensor_operand(self, call.next());
      if (C10_LIKELY((call.put(args) && ...))) {
        const tpu_operand_t& mine = call.operands[0];
        tpu_result_t result{mine.storage, mine.view, mine.offset};
        if (C10_LIKELY(call.record(HotInfo<Name>::row(), TPU_CALL_IN_PLACE, &result, 1)))
          return self;
      }
    }
    run_unboxed(HotInfo<Name>::plan(), self, args...);
    return self;
  }
};

// Several new tensors; masked ones are undefined.
template <class Name, class... Results, class... Args>
struct HotKernel<Name, std::tuple<Results...>(Args...)> {
  static constexpr size_t kCount = sizeof...(Results);
  using Tuple = std::tuple<Results...>;

  static Tuple run(Args... args) {
    if (hot_allowed()) {
      HotCall call;
      if (C10_LIKELY((call.put(args) && ...))) {
        tpu_result_t results[kCount] = {};
        if (C10_LIKELY(call.record(HotInfo<Name>::row(), TPU_CALL_FUNCTIONAL, results, kCount))) {
          return take(results, std::make_index_sequence<kCount>());
        }
      }
    }
    torch::jit::Stack stack;
    (stack.emplace_back(args), ...);
    run_boxed(HotInfo<Name>::plan(), &stack);
    return unpack(stack, std::make_index_sequence<kCount>());
  }

 private:
  template <size_t... K>
  static Tuple take(const tpu_result_t* results, std::index_sequence<K...>) {
    return Tuple(take_result(results[K])...);
  }
  template <size_t... K>
  static Tuple unpack(torch::jit::Stack& stack, std::index_sequence<K...>) {
    return Tuple(std::move(stack[K]).toTensor()...);
  }
};

}  // namespace tpu_shim

#endif  // TPU_SHIM_HOT_H_
