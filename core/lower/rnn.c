/* Fused LSTM and GRU cells. The gates are already multiplied out; these are pointwise.
 *
 * Workspaces are ours to define but equal PyTorch's CUDA kernels: LSTM [N, 4H] holds the activated
 * gates (input, forget, cell, output); GRU [N, 5H] holds (reset, update, new, hx, h_new), where
 * h_new is the hidden part of the new gate with its bias.
 */
#include "lower/gather.h"
#include "lower/op_lowering.h"

/* Column block `k` of `count` equal ones. */
static tpui_hlo_t gate_block(tpui_builder_t* b, tpui_hlo_t x, int k, int count) {
  if (!tpui_ok(b)) return x;
  int64_t width = x.sizes[x.rank - 1] / count;
  return tpui_slice_dim(b, x, x.rank - 1, k * width, (k + 1) * width);
}

/* 1 - x */
static tpui_hlo_t one_minus(tpui_builder_t* b, tpui_hlo_t x) {
  return tpui_binary(b, "subtract", tpui_constant(b, x.dtype, 1), x);
}

/* Derivative factor of sigmoid and tanh, from their values. */
static tpui_hlo_t sigmoid_slope(tpui_builder_t* b, tpui_hlo_t s) {
  return tpui_mul(b, s, one_minus(b, s));
}
static tpui_hlo_t tanh_slope(tpui_builder_t* b, tpui_hlo_t t) {
  return one_minus(b, tpui_mul(b, t, t));
}

static tpui_hlo_t sum_rows(tpui_builder_t* b, tpui_hlo_t x) {
  const int dim = 0;
  return tpui_reduce(b, "add", x, 1, &dim);
}

/* Operand k (gates [N, kH]) plus its bias, operand `bias` ([kH] or not given). */
static tpui_hlo_t gates_with_bias(const tpui_lowering_t* op, int k, int bias, tpu_dtype_t dtype) {
  tpui_hlo_t gates = tpui_operand_as(op, k, dtype);
  if (!tpui_has_operand(op, bias)) return gates;
  return tpui_add(op->b, gates, tpui_operand_as(op, bias, dtype));
}

void tpui_lower_lstm_cell(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t dtype = tpui_math_dtype(tpui_operand(op, 0).dtype);
  tpui_hlo_t gates =
      tpui_add(b, gates_with_bias(op, 0, 3, dtype), gates_with_bias(op, 1, 4, dtype));
  tpui_hlo_t cx = tpui_operand_as(op, 2, dtype);
  tpui_hlo_t in = tpui_unary(b, "logistic", gate_block(b, gates, 0, 4));
  tpui_hlo_t forget = tpui_unary(b, "logistic", gate_block(b, gates, 1, 4));
  tpui_hlo_t cell = tpui_unary(b, "tanh", gate_block(b, gates, 2, 4));
  tpui_hlo_t out = tpui_unary(b, "logistic", gate_block(b, gates, 3, 4));
  tpui_hlo_t cy = tpui_add(b, tpui_mul(b, forget, cx), tpui_mul(b, in, cell));
  tpui_set_result(op, 0, tpui_mul(b, out, tpui_unary(b, "tanh", cy)));
  tpui_set_result(op, 1, cy);
  if (!tpui_result_needed(op, 2)) return;
  const tpui_hlo_t parts[] = {in, forget, cell, out};
  tpui_set_result(op, 2, tpui_concatenate(b, 4, parts, 1));
}

/* Operands: grad_hy?, grad_cy?, cx, cy, workspace; attribute 0: has_bias. */
void tpui_lower_lstm_cell_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t dtype = tpui_math_dtype(tpui_operand(op, 4).dtype);
  tpui_hlo_t gates = tpui_operand_as(op, 4, dtype);
  tpui_hlo_t in = gate_block(b, gates, 0, 4), forget = gate_block(b, gates, 1, 4);
  tpui_hlo_t cell = gate_block(b, gates, 2, 4), out = gate_block(b, gates, 3, 4);
  tpui_hlo_t cx = tpui_operand_as(op, 2, dtype);
  tpui_hlo_t squashed = tpui_unary(b, "tanh", tpui_operand_as(op, 3, dtype));
  tpui_hlo_t zero = tpui_full_like(b, cx, dtype, 0);
  tpui_hlo_t grad_hy = tpui_has_operand(op, 0) ? tpui_operand_as(op, 0, dtype) : zero;
  tpui_hlo_t grad_cy = tpui_has_operand(op, 1) ? tpui_operand_as(op, 1, dtype) : zero;
  tpui_hlo_t grad_c =
      tpui_add(b, tpui_mul(b, tpui_mul(b, grad_hy, out), tanh_slope(b, squashed)), grad_cy);
  const tpui_hlo_t parts[] = {
      tpui_mul(b, tpui_mul(b, grad_c, cell), sigmoid_slope(b, in)),
      tpui_mul(b, tpui_mul(b, grad_c, cx), sigmoid_slope(b, forget)),
      tpui_mul(b, tpui_mul(b, grad_c, in), tanh_slope(b, cell)),
      tpui_mul(b, tpui_mul(b, grad_hy, squashed), sigmoid_slope(b, out)),
  };
  tpui_hlo_t grad_gates = tpui_concatenate(b, 4, parts, 1);
  tpui_set_result(op, 0, grad_gates);
  tpui_set_result(op, 1, tpui_mul(b, grad_c, forget));
  bool has_bias = tpu_attr_int(op->record->attrs, 0, 0) != 0;
  // Without a bias the result has no elements, but still needs a value.
  tpui_set_result(op, 2, has_bias ? sum_rows(b, grad_gates) : tpui_constant(b, dtype, 0));
}

void tpui_lower_gru_cell(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t dtype = tpui_math_dtype(tpui_operand(op, 0).dtype);
  tpui_hlo_t input = gates_with_bias(op, 0, 3, dtype), hidden = gates_with_bias(op, 1, 4, dtype);
  tpui_hlo_t hx = tpui_operand_as(op, 2, dtype);
  tpui_hlo_t reset = tpui_unary(
      b, "logistic", tpui_add(b, gate_block(b, input, 0, 3), gate_block(b, hidden, 0, 3)));
  tpui_hlo_t update = tpui_unary(
      b, "logistic", tpui_add(b, gate_block(b, input, 1, 3), gate_block(b, hidden, 1, 3)));
  tpui_hlo_t h_new = gate_block(b, hidden, 2, 3);
  tpui_hlo_t fresh =
      tpui_unary(b, "tanh", tpui_add(b, gate_block(b, input, 2, 3), tpui_mul(b, reset, h_new)));
  tpui_hlo_t difference = tpui_binary(b, "subtract", hx, fresh);
  tpui_set_result(op, 0, tpui_add(b, fresh, tpui_mul(b, update, difference)));
  if (!tpui_result_needed(op, 1)) return;
  const tpui_hlo_t parts[] = {reset, update, fresh, hx, h_new};
  tpui_set_result(op, 1, tpui_concatenate(b, 5, parts, 1));
}

/* Operands: grad_hy, workspace; attribute 0: has_bias. */
void tpui_lower_gru_cell_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t dtype = tpui_math_dtype(tpui_operand(op, 0).dtype);
  tpui_hlo_t grad = tpui_operand_as(op, 0, dtype), saved = tpui_operand_as(op, 1, dtype);
  tpui_hlo_t reset = gate_block(b, saved, 0, 5), update = gate_block(b, saved, 1, 5);
  tpui_hlo_t fresh = gate_block(b, saved, 2, 5), hx = gate_block(b, saved, 3, 5);
  tpui_hlo_t h_new = gate_block(b, saved, 4, 5);
  tpui_hlo_t grad_new = tpui_mul(b, tpui_mul(b, grad, one_minus(b, update)), tanh_slope(b, fresh));
  tpui_hlo_t grad_reset = tpui_mul(b, tpui_mul(b, grad_new, h_new), sigmoid_slope(b, reset));
  tpui_hlo_t grad_update = tpui_mul(b, tpui_mul(b, grad, tpui_binary(b, "subtract", hx, fresh)),
                                    sigmoid_slope(b, update));
  const tpui_hlo_t input[] = {grad_reset, grad_update, grad_new};
  const tpui_hlo_t hidden[] = {grad_reset, grad_update, tpui_mul(b, grad_new, reset)};
  tpui_hlo_t grad_input = tpui_concatenate(b, 3, input, 1);
  tpui_hlo_t grad_hidden = tpui_concatenate(b, 3, hidden, 1);
  tpui_set_result(op, 0, grad_input);
  tpui_set_result(op, 1, grad_hidden);
  tpui_set_result(op, 2, tpui_mul(b, grad, update));
  // Without biases these have no elements, but still need a value.
  bool has_bias = tpu_attr_int(op->record->attrs, 0, 0) != 0;
  tpui_hlo_t none = tpui_constant(b, dtype, 0);
  tpui_set_result(op, 3, has_bias ? sum_rows(b, grad_input) : none);
  tpui_set_result(op, 4, has_bias ? sum_rows(b, grad_hidden) : none);
}
