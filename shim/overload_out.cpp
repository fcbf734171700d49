// Calls with out= arguments.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include "fallback.h"
#include "overload.h"

namespace tpu_shim {

// Computed as the functional form into new storages, then written: one more record, which fuses,
// and none of the resize-while-recording cases.
void Overload::run_out(torch::jit::Stack* stack) {
  const c10::IValue* args = arguments(*stack);
  Call call(row_);
  std::optional<at::Generator> generator;
  const bool skip_self = has(TPU_OP_OVERWRITE) && kinds_[0] == ArgumentKind::kTensor;
  if (!add_arguments(&call, args, skip_self, &generator)) return run_on_host(op_, stack);
  if (has(TPU_OP_RANDOM)) append_random(&call, args, generator);
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i] != ArgumentKind::kOut) continue;
    outs.push_back(args[i].toTensor());
    if (!is_tpu(outs.back())) throw_device_mismatch(outs.back().device());
    // Without a functional twin the results take the outs' dtypes, which must then be part of the
    // key.
    if (!functional_.has_value()) call.attr_dtype(outs.back().scalar_type());
  }
  for (size_t k = 0; k < return_count_; ++k) call.result();
  if (skip_self || !call.try_record()) {
    if (!ask_pytorch(args, &call, true)) return run_on_host(op_, stack);
    call.record();
  }
  for (size_t k = 0; k < return_count_; ++k) {
    const at::Tensor result = call.take(k);
    // Some operations convert to out's dtype, some refuse: PyTorch knows.
    if (result.scalar_type() != outs[k].scalar_type()) check_out(args);
    prepare_out(result, outs[k]);
    check_overlap(args, outs[k], /*in_place=*/false);
    write_prepared(result, outs[k]);
  }
  torch::jit::drop(*stack, kinds_.size());
  for (const at::Tensor& out : outs) stack->emplace_back(out);
}

void prepare_out(const at::Tensor& result, const at::Tensor& out) {
  TORCH_CHECK(at::canCast(result.scalar_type(), out.scalar_type()), "result type ",
              result.scalar_type(), " can't be cast to the desired output type ",
              out.scalar_type());
  at::assert_no_internal_overlap(out);
  const bool resized = at::native::resize_output(out, result.sizes());
  if (resized && !result.is_contiguous()) {
    out.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
  }
}

void write_prepared(const at::Tensor& result, const at::Tensor& out) {
  is_lazy(out) ? (void)out.copy_(result) : copy_on_device(result, out);
}

void write_out(const at::Tensor& result, const at::Tensor& out) {
  prepare_out(result, out);
  write_prepared(result, out);
}

}  // namespace tpu_shim
