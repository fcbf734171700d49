// Unboxed kernels for the overloads that programs call most. They do what the boxed adapter does
// for these rows, without a stack: 50 to 100 ns less per call.
#ifndef TPU_SHIM_HOT_H_
#define TPU_SHIM_HOT_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

#include "adapter.h"
#include "debug_checks.h"
#include "record.h"

namespace tpu_shim {

// Adds a value of a schema type to a call. False when the adapter must decide.
inline bool put(Call& call, const at::Tensor& tensor) { return call.try_tensor(tensor); }
inline bool put(Call& call, const std::optional<at::Tensor>& tensor) {
  if (tensor.has_value() && tensor->defined()) return call.try_tensor(*tensor);
  return call.none(), true;
}
inline bool put(Call& call, const at::Scalar& value) { return call.try_scalar(value); }
inline bool put(Call& call, double value) { return call.number(value), true; }
inline bool put(Call& call, int64_t value) { return call.attr(value), true; }
inline bool put(Call& call, bool value) { return call.attr(value), true; }
inline bool put(Call& call, at::IntArrayRef values) { return call.attr_ints(values), true; }
inline bool put(Call& call, at::OptionalIntArrayRef values) {
  return values.has_value() ? call.attr_ints(*values) : call.attr_none(), true;
}
inline bool put(Call& call, at::ScalarType type) { return call.attr_dtype(type), true; }
inline bool put(Call& call, std::optional<at::ScalarType> type) {
  return type.has_value() ? call.attr_dtype(*type) : call.attr_none(), true;
}
inline bool put(Call& call, c10::string_view text) { return call.attr_text(text), true; }
template <size_t N>
bool put(Call& call, const std::array<bool, N>& values) {
  int64_t ints[N];
  for (size_t i = 0; i < N; ++i) ints[i] = values[i];
  return call.attr_ints(at::IntArrayRef(ints, N)), true;
}

// Debug mode is the adapter's business.
inline bool hot_allowed() { return C10_LIKELY(!debug_mode()); }

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
      Call call(HotInfo<Name>::row());
      if (C10_LIKELY((put(call, args) && ...))) {
        call.result();
        if (C10_LIKELY(call.try_record())) return call.take(0);
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
      Call call(HotInfo<Name>::row(), TPU_CALL_IN_PLACE);
      call.tensor(self).written_to_first();
      if (C10_LIKELY((put(call, args) && ...) && !call.overlaps_first() && call.try_record()))
        return self;
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
      Call call(HotInfo<Name>::row());
      if (C10_LIKELY((put(call, args) && ...))) {
        for (size_t k = 0; k < kCount; ++k) call.result();
        if (C10_LIKELY(call.try_record())) return take(call, std::make_index_sequence<kCount>());
      }
    }
    torch::jit::Stack stack;
    (stack.emplace_back(args), ...);
    run_boxed(HotInfo<Name>::plan(), &stack);
    return unpack(stack, std::make_index_sequence<kCount>());
  }

 private:
  template <size_t... K>
  static Tuple take(Call& call, std::index_sequence<K...>) {
    return Tuple(call.take(K)...);
  }
  template <size_t... K>
  static Tuple unpack(torch::jit::Stack& stack, std::index_sequence<K...>) {
    return Tuple(std::move(stack[K]).toTensor()...);
  }
};

}  // namespace tpu_shim

#endif  // TPU_SHIM_HOT_H_
