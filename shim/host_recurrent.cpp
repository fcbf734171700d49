// Forms of recurrent cells, as core/lower/rnn.c has them.
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

#include "host_forms.h"

namespace tpu_shim {

namespace {

// Operand k in the dtype of sums.
at::Tensor operand(R r, int k) {
  const at::Tensor x = r.tensor(k);
  return x.to(at::toOpMathType(x.scalar_type()));
}

at::Tensor with_bias(R r, int k, int bias) {
  return r.has(bias) ? operand(r, k) + operand(r, bias) : operand(r, k);
}

at::Tensor sum_if(bool wanted, const at::Tensor& gates) {
  return wanted ? gates.sum(0) : at::Tensor();
}

}  // namespace

// Operands: gates of the input, of the hidden state, the cell state, biases?.
void lstm_cell(R r, Results results) {
  const auto parts = (with_bias(r, 0, 3) + with_bias(r, 1, 4)).chunk(4, 1);
  const at::Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid();
  const at::Tensor cell = parts[2].tanh(), out = parts[3].sigmoid();
  const at::Tensor state = forget * operand(r, 2) + in * cell;
  results->append({out * state.tanh(), state, at::cat({in, forget, cell, out}, 1)});
}

// Operands: grad_hy?, grad_cy?, cx, cy, workspace.
void lstm_cell_backward(R r, Results results) {
  const at::Tensor state = operand(r, 3).tanh();
  const auto parts = operand(r, 4).chunk(4, 1);
  const at::Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  at::Tensor d_state = r.has(1) ? operand(r, 1) : at::zeros_like(state);
  at::Tensor d_out = at::zeros_like(out);
  if (r.has(0)) {
    const at::Tensor d_hidden = operand(r, 0);
    d_state = d_state + d_hidden * out * (1 - state * state);
    d_out = d_hidden * state;
  }
  const at::Tensor d_gates =
      at::cat({d_state * cell * in * (1 - in), d_state * operand(r, 2) * forget * (1 - forget),
               d_state * in * (1 - cell * cell), d_out * out * (1 - out)},
              1);
  results->append({d_gates, d_state * forget, sum_if(r.attr_int(0) != 0, d_gates)});
}

// Operands: gates of the input, of the hidden state, the state, biases?.
void gru_cell(R r, Results results) {
  const auto input = with_bias(r, 0, 3).chunk(3, 1), hidden = with_bias(r, 1, 4).chunk(3, 1);
  const at::Tensor state = operand(r, 2);
  const at::Tensor reset = (input[0] + hidden[0]).sigmoid();
  const at::Tensor update = (input[1] + hidden[1]).sigmoid();
  const at::Tensor fresh = (input[2] + reset * hidden[2]).tanh();
  results->append(
      {fresh + update * (state - fresh), at::cat({reset, update, fresh, state, hidden[2]}, 1)});
}

// Operands: grad_hy, workspace.
void gru_cell_backward(R r, Results results) {
  const at::Tensor grad = operand(r, 0);
  const auto saved = operand(r, 1).chunk(5, 1);
  const at::Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2];
  const at::Tensor d_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const at::Tensor d_reset = d_fresh * saved[4] * reset * (1 - reset);
  const at::Tensor d_update = grad * (saved[3] - fresh) * update * (1 - update);
  const at::Tensor d_input = at::cat({d_reset, d_update, d_fresh}, 1);
  const at::Tensor d_hidden = at::cat({d_reset, d_update, d_fresh * reset}, 1);
  const bool has_bias = r.attr_int(0) != 0;
  results->append(
      {d_input, d_hidden, grad * update, sum_if(has_bias, d_input), sum_if(has_bias, d_hidden)});
}

}  // namespace tpu_shim
