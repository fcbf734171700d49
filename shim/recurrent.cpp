// Fused LSTM and GRU cells. Registered by hand: PyTorch has no meta kernel for the GRU ones and its
// LSTM meta kernel fails without biases.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "record.h"

namespace tpu_shim {

namespace {

using OptT = const std::optional<at::Tensor>&;

// Gates are [N, factor * H], the state [N, H], biases [factor * H].
void check_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                const at::Tensor& state, OptT input_bias, OptT hidden_bias, int64_t factor) {
  TORCH_CHECK(input_gates.dim() == 2 && input_gates.sizes() == hidden_gates.sizes(),
              "input and hidden gates must be matrices of equal size, got ", input_gates.sizes(),
              " and ", hidden_gates.sizes());
  TORCH_CHECK(state.dim() == 2 && state.size(0) == input_gates.size(0) &&
                  state.size(1) * factor == input_gates.size(1),
              "hidden state of size ", state.sizes(), " does not fit gates of size ",
              input_gates.sizes());
  for (OptT bias : {input_bias, hidden_bias}) {
    TORCH_CHECK(!bias.has_value() || !bias->defined() || bias->numel() == input_gates.size(1),
                "bias must have ", input_gates.size(1), " elements");
  }
}

tpu_meta_id_t meta_like(const at::Tensor& t, c10::IntArrayRef sizes) {
  return contiguous_meta(sizes, t.scalar_type());
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;
using Five = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Three lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
                OptT input_bias, OptT hidden_bias) {
  check_cell(input_gates, hidden_gates, cx, input_bias, hidden_bias, 4);
  static const tpu_op_t row = op_row("lstm_cell");
  Call call(row);
  call.tensor(input_gates)
      .tensor(hidden_gates)
      .tensor(cx)
      .optional(input_bias)
      .optional(hidden_bias);
  call.result(meta_like(cx, cx.sizes())).result(meta_like(cx, cx.sizes()));
  call.result(meta_like(input_gates, input_gates.sizes())).record();
  return {call.take(0), call.take(1), call.take(2)};
}

Three lstm_cell_backward(OptT grad_hy, OptT grad_cy, const at::Tensor& cx, const at::Tensor& cy,
                         const at::Tensor& workspace, bool has_bias) {
  const bool any =
      (grad_hy.has_value() && grad_hy->defined()) || (grad_cy.has_value() && grad_cy->defined());
  if (!any) return {};
  static const tpu_op_t row = op_row("lstm_cell_backward");
  Call call(row);
  call.optional(grad_hy).optional(grad_cy).tensor(cx).tensor(cy).tensor(workspace).attr(has_bias);
  call.result(meta_like(workspace, workspace.sizes())).result(meta_like(cx, cx.sizes()));
  call.result(has_bias ? meta_like(workspace, {workspace.size(1)}) : absent_meta()).record();
  return {call.take(0), call.take(1), call.take(2)};
}

Two gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& hx,
             OptT input_bias, OptT hidden_bias) {
  check_cell(input_gates, hidden_gates, hx, input_bias, hidden_bias, 3);
  static const tpu_op_t row = op_row("gru_cell");
  Call call(row);
  call.tensor(input_gates)
      .tensor(hidden_gates)
      .tensor(hx)
      .optional(input_bias)
      .optional(hidden_bias);
  call.result(meta_like(hx, hx.sizes()));
  call.result(meta_like(hx, {hx.size(0), hx.size(1) * 5})).record();
  return {call.take(0), call.take(1)};
}

Five gru_cell_backward(const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const int64_t rows = workspace.size(0), hidden = workspace.size(1) / 5;
  const tpu_meta_id_t gates = meta_like(workspace, {rows, hidden * 3});
  const tpu_meta_id_t bias = has_bias ? meta_like(workspace, {hidden * 3}) : absent_meta();
  static const tpu_op_t row = op_row("gru_cell_backward");
  Call call(row);
  call.tensor(grad_hy).tensor(workspace).attr(has_bias);
  call.result(gates).result(gates).result(meta_like(workspace, {rows, hidden}));
  call.result(bias).result(bias).record();
  return {call.take(0), call.take(1), call.take(2), call.take(3), call.take(4)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace tpu_shim
