// Functional and in-place calls.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>

#include "fallback.h"
#include "overload.h"

namespace tpu_shim {

namespace {

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return is_tpu(b) && a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

}  // namespace

// PyTorch's error for memory that is read and written in an order that no kernel promises. (The
// device would compute it; programs that need that run nowhere else.) A tensor that is written in
// place may be read by the argument that it is.
void Overload::check_overlap(const c10::IValue* args, const at::Tensor& written,
                             bool in_place) const {
  if (overlap_ == TPU_OVERLAP_NONE) return;
  const auto check = [&](const at::Tensor& read, bool may_be_same) {
    if (!read.defined() || !share_storage(written, read)) return;
    overlap_ == TPU_OVERLAP_PARTIAL || may_be_same ? at::assert_no_partial_overlap(written, read)
                                                   : at::assert_no_overlap(written, read);
  };
  for (size_t i = in_place ? 1 : 0; i < kinds_.size(); ++i) {
    if (kinds_[i] == ArgumentKind::kTensor && args[i].isTensor()) {
      check(args[i].toTensor(), i == 0 && writes_self_);
    } else if (kinds_[i] == ArgumentKind::kTensorList && !args[i].isNone()) {
      for (const c10::IValue& item : args[i].toListRef()) {
        if (item.isTensor()) check(item.toTensor(), /*may_be_same=*/false);
      }
    }
  }
}

void Overload::run_functional(torch::jit::Stack* stack) {
  const c10::IValue* args = arguments(*stack);
  Call call(row_);
  std::optional<at::Generator> generator;
  if (!add_arguments(&call, args, /*skip_self=*/false, &generator)) return run_on_host(op_, stack);
  if (has(TPU_OP_RANDOM)) append_random(&call, args, generator);
  for (size_t k = 0; k < return_count_; ++k) call.result();
  if (!call.try_record()) {
    if (!ask_pytorch(args, &call, true)) return run_on_host(op_, stack);
    call.record();
  }
  torch::jit::drop(*stack, kinds_.size());
  for (size_t k = 0; k < return_count_; ++k) stack->emplace_back(call.take(k));
}

void Overload::run_in_place(torch::jit::Stack* stack) {
  const c10::IValue* args = arguments(*stack);
  const at::Tensor self = args[0].toTensor();
  if (C10_UNLIKELY(is_lazy(self))) {
    const at::Tensor plain = self.resolve_conj().resolve_neg();
    (*stack)[stack->size() - kinds_.size()] = plain;
    run_in_place(stack);
    stack->back() = self.copy_(plain);
    return;
  }
  if (C10_UNLIKELY(has(TPU_OP_RANDOM) && self.is_complex())) return draw_parts(self, stack);
  const bool overwrite = has(TPU_OP_OVERWRITE);
  Call call(row_, TPU_CALL_IN_PLACE);
  std::optional<at::Generator> generator;
  if (!add_arguments(&call, args, overwrite, &generator)) return run_on_host(op_, stack);
  if (has(TPU_OP_RANDOM)) append_random(&call, args, generator);
  call.written(self);
  check_overlap(args, self, /*in_place=*/true);
  if (!call.try_record()) {
    // One number for all elements may be written to one element twice.
    if (!overwrite || has(TPU_OP_RANDOM)) at::assert_no_internal_overlap(self);
    if (!ask_pytorch(args, &call, false)) return run_on_host(op_, stack);
    call.record();
  }
  torch::jit::drop(*stack, kinds_.size());
  stack->emplace_back(self);
}

// fill(self, 1): like the in-place form on a new tensor, since self is only a shape.
void Overload::run_overwrite_functional(torch::jit::Stack* stack) {
  const c10::IValue* args = arguments(*stack);
  const at::Tensor result = at::empty_like(args[0].toTensor());
  Call call(row_, TPU_CALL_IN_PLACE);
  std::optional<at::Generator> generator;
  if (!add_arguments(&call, args, /*skip_self=*/true, &generator)) return run_on_host(op_, stack);
  if (has(TPU_OP_RANDOM)) append_random(&call, args, generator);
  call.written(result).record();
  torch::jit::drop(*stack, kinds_.size());
  stack->emplace_back(result);
}

}  // namespace tpu_shim
