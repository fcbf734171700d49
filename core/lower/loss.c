/* Losses and their gradients. Reduction (an attribute): 0 none, 1 mean, 2 sum. */
#include <string.h>

#include "lower/gather.h"
#include "lower/op_lowering.h"

enum { REDUCE_NONE = 0, REDUCE_MEAN = 1, REDUCE_SUM = 2 };

static tpui_hlo_t constant_like(tpui_builder_t* b, tpui_hlo_t like, double value) {
  return tpui_constant(b, like.dtype, value);
}

static tpui_hlo_t sum_all(tpui_builder_t* b, tpui_hlo_t x) {
  int dims[TPU_MAX_RANK];
  for (int i = 0; i < x.rank; ++i) dims[i] = i;
  return x.rank == 0 ? x : tpui_reduce(b, "add", x, x.rank, dims);
}

static void set_reduced(const tpui_lowering_t* op, tpui_hlo_t loss, int64_t reduction) {
  tpui_builder_t* b = op->b;
  if (reduction != REDUCE_NONE) {
    double count = (double)tpui_count(loss, 0, loss.rank);
    loss = sum_all(b, loss);
    if (reduction == REDUCE_MEAN) loss = tpui_binary_constant(b, "divide", loss, count);
  }
  tpui_set_result(op, 0, loss);
}

/* Operands k and k+1 in their math dtype and common shape. */
typedef struct pair_t {
  tpui_hlo_t x, y;
  tpu_dtype_t dtype;
} pair_t;

static pair_t read_pair(const tpui_lowering_t* op, int k) {
  pair_t p;
  tpu_dtype_t compute = op->record->compute_dtype;
  p.dtype = tpui_math_dtype(compute != TPU_DTYPE_INVALID ? compute : tpui_operand(op, k).dtype);
  p.x = tpui_operand_as(op, k, p.dtype);
  p.y = tpui_operand_as(op, k + 1, p.dtype);
  tpui_broadcast_pair(op->b, &p.x, &p.y);
  return p;
}

/* grad_output (operand 0) divided by the number of elements for a mean. */
static tpui_hlo_t read_grad(const tpui_lowering_t* op, const pair_t* p, int64_t reduction) {
  tpui_hlo_t grad = tpui_operand_as(op, 0, p->dtype);
  if (reduction != REDUCE_MEAN) return grad;
  return tpui_binary_constant(op->b, "divide", grad, (double)tpui_count(p->x, 0, p->x.rank));
}

/* --- squared, Huber, smooth L1 --- */

void tpui_lower_mse_loss(const tpui_lowering_t* op) {
  pair_t p = read_pair(op, 0);
  tpui_hlo_t difference = tpui_binary(op->b, "subtract", p.x, p.y);
  set_reduced(op, tpui_binary(op->b, "multiply", difference, difference),
              tpu_attr_int(op->record->attrs, 0, REDUCE_MEAN));
}

void tpui_lower_mse_loss_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  pair_t p = read_pair(op, 1);
  tpui_hlo_t grad = read_grad(op, &p, tpu_attr_int(op->record->attrs, 0, REDUCE_MEAN));
  tpui_hlo_t slope = tpui_binary_constant(b, "multiply", tpui_binary(b, "subtract", p.x, p.y), 2);
  tpui_set_result(op, 0, tpui_binary(b, "multiply", slope, grad));
}

/* Quadratic within `limit` (operand 2), linear outside. argument "huber": 0.5 d^2 and
 * limit (|d| - limit/2); "smooth": the same divided by limit. */
void tpui_lower_huber_loss(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  pair_t p = read_pair(op, 0);
  tpui_hlo_t limit = tpui_operand_as(op, 2, p.dtype);
  tpui_hlo_t distance = tpui_unary(b, "abs", tpui_binary(b, "subtract", p.x, p.y));
  tpui_hlo_t square =
      tpui_binary_constant(b, "multiply", tpui_binary(b, "multiply", distance, distance), 0.5);
  tpui_hlo_t line =
      tpui_binary(b, "subtract", distance, tpui_binary_constant(b, "multiply", limit, 0.5));
  if (strcmp(op->argument, "huber") == 0) {
    line = tpui_binary(b, "multiply", limit, line);
  } else {
    square = tpui_binary(b, "divide", square, limit);
  }
  tpui_hlo_t inside = tpui_compare(b, "LT", distance, limit);
  set_reduced(op, tpui_select(b, inside, square, line),
              tpu_attr_int(op->record->attrs, 0, REDUCE_MEAN));
}

void tpui_lower_huber_loss_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  pair_t p = read_pair(op, 1);
  tpui_hlo_t grad = read_grad(op, &p, tpu_attr_int(op->record->attrs, 0, REDUCE_MEAN));
  tpui_hlo_t limit = tpui_operand_as(op, 3, p.dtype);
  tpui_hlo_t difference = tpui_binary(b, "subtract", p.x, p.y);
  tpui_hlo_t inside = tpui_compare(b, "LT", tpui_unary(b, "abs", difference), limit);
  tpui_hlo_t sign = tpui_unary(b, "sign", difference), slope;
  if (strcmp(op->argument, "huber") == 0) {
    slope = tpui_select(b, inside, difference, tpui_binary(b, "multiply", sign, limit));
  } else {
    slope = tpui_select(b, inside, tpui_binary(b, "divide", difference, limit), sign);
  }
  tpui_set_result(op, 0, tpui_binary(b, "multiply", slope, grad));
}

/* --- binary cross entropy on probabilities --- */

/* Logarithms are held above -100, as PyTorch does. */
void tpui_lower_binary_cross_entropy(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  pair_t p = read_pair(op, 0);
  tpui_check_within(op, p.x, 0, 1, "all elements of input should be between 0 and 1");
  tpui_check_within(op, p.y, 0, 1, "all elements of target should be between 0 and 1");
  tpui_hlo_t floor_value = constant_like(b, p.x, -100);
  tpui_hlo_t log_x = tpui_binary(b, "maximum", tpui_unary(b, "log", p.x), floor_value);
  tpui_hlo_t log_rest = tpui_unary(b, "log_plus_one", tpui_unary(b, "negate", p.x));
  log_rest = tpui_binary(b, "maximum", log_rest, floor_value);
  tpui_hlo_t loss =
      tpui_binary(b, "subtract",
                  tpui_binary(b, "multiply",
                              tpui_binary(b, "subtract", p.y, constant_like(b, p.x, 1)), log_rest),
                  tpui_binary(b, "multiply", p.y, log_x));
  if (tpui_has_operand(op, 2)) {
    loss = tpui_binary(b, "multiply", loss, tpui_operand_as(op, 2, p.dtype));
  }
  set_reduced(op, loss, tpu_attr_int(op->record->attrs, 0, REDUCE_MEAN));
}

void tpui_lower_binary_cross_entropy_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  pair_t p = read_pair(op, 1);
  tpui_hlo_t grad = read_grad(op, &p, tpu_attr_int(op->record->attrs, 0, REDUCE_MEAN));
  tpui_hlo_t spread =
      tpui_binary(b, "multiply", tpui_binary(b, "subtract", constant_like(b, p.x, 1), p.x), p.x);
  spread = tpui_binary(b, "maximum", spread, constant_like(b, p.x, 1e-12));
  tpui_hlo_t slope = tpui_binary(b, "divide", tpui_binary(b, "subtract", p.x, p.y), spread);
  if (tpui_has_operand(op, 3)) {
    slope = tpui_binary(b, "multiply", slope, tpui_operand_as(op, 3, p.dtype));
  }
  tpui_set_result(op, 0, tpui_binary(b, "multiply", slope, grad));
}

/* --- negative log likelihood: classes are dimension 1 (0 of a 1-d input) --- */

typedef struct nll_t {
  tpui_hlo_t x;       // [N, C, ..] in the math dtype
  tpui_hlo_t target;  // [N, 1, ..] int64
  tpui_hlo_t valid;   // target is not ignore_index
  tpui_hlo_t weight;  // [C], or one element
  bool weighted;
  int dim;
} nll_t;

/* An ignored target is in order whatever it is. */
static void check_targets(const tpui_lowering_t* op, const nll_t* n) {
  tpui_builder_t* b = op->b;
  if (!tpui_checks_data(b) || !tpui_ok(b) || n->x.rank == 0) return;
  tpui_hlo_t counted = tpui_select(b, n->valid, n->target, tpui_constant_int(b, TPU_I64, 0));
  tpui_check_index(op, counted, n->x.sizes[n->dim], false, n->dim);
}

/* Operands k: self, k+1: target, k+2: weight?, k+3: ignore_index; attribute: reduction. */
static nll_t read_nll(const tpui_lowering_t* op, int k) {
  tpui_builder_t* b = op->b;
  nll_t n = {0};
  n.x = tpui_operand(op, k);
  n.x = tpui_convert(b, n.x, tpui_math_dtype(n.x.dtype));
  n.dim = n.x.rank > 1 ? 1 : 0;
  int64_t sizes[TPU_MAX_RANK];
  for (int i = 0; i < n.x.rank; ++i) sizes[i] = i == n.dim ? 1 : n.x.sizes[i];
  n.target = tpui_reshape(b, tpui_operand_as(op, k + 1, TPU_I64), n.x.rank, sizes);
  n.valid = tpui_compare(b, "NE", n.target, tpui_operand_as(op, k + 3, TPU_I64));
  check_targets(op, &n);
  n.weighted = tpui_has_operand(op, k + 2);
  if (n.weighted) n.weight = tpui_operand_as(op, k + 2, n.x.dtype);
  return n;
}

/* Weight of every target, 0 where it is ignored. */
static tpui_hlo_t target_weights(tpui_builder_t* b, const nll_t* n) {
  tpui_hlo_t weight = constant_like(b, n->x, 1);
  if (n->weighted) weight = tpui_take_flat(b, n->weight, n->target);
  return tpui_select(b, n->valid, weight, constant_like(b, n->x, 0));
}

void tpui_lower_nll_loss(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  nll_t n = read_nll(op, 0);
  if (!tpui_ok(b)) return;
  int64_t reduction = tpu_attr_int(op->record->attrs, 0, REDUCE_MEAN);
  tpui_hlo_t weights = target_weights(b, &n);
  tpui_hlo_t picked = tpui_take_along(b, n.x, n.dim, n.target);
  picked =
      tpui_select(b, n.valid, picked, constant_like(b, n.x, 0));  // an ignored infinity stays out
  tpui_hlo_t loss = tpui_unary(b, "negate", tpui_binary(b, "multiply", picked, weights));
  if (reduction == REDUCE_NONE) {
    tpui_set_result_reshaped(op, 0, loss);
    // PyTorch gives the total of an unreduced loss only for an unbatched input.
    tpui_set_result(op, 1, n.x.rank == 1 ? sum_all(b, weights) : constant_like(b, n.x, 0));
    return;
  }
  tpui_hlo_t total = sum_all(b, weights);
  loss = sum_all(b, loss);
  if (reduction == REDUCE_MEAN) loss = tpui_binary(b, "divide", loss, total);
  tpui_set_result_reshaped(op, 0, loss);
  tpui_set_result(op, 1, total);
}

/* Operands: grad_output, self, target, weight?, ignore_index, total_weight. A comparison with the
 * class number writes the gradient; no scatter. */
void tpui_lower_nll_loss_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  nll_t n = read_nll(op, 1);
  if (!tpui_ok(b)) return;
  int64_t reduction = tpu_attr_int(op->record->attrs, 0, REDUCE_MEAN);
  tpui_hlo_t grad = tpui_operand_as(op, 0, n.x.dtype);
  if (reduction == REDUCE_NONE) {
    grad = tpui_reshape(b, grad, n.target.rank, n.target.sizes);
  } else {
    grad = tpui_reshape(b, grad, 0, NULL);
    if (reduction == REDUCE_MEAN) {
      tpui_hlo_t total = tpui_reshape(b, tpui_operand_as(op, 5, n.x.dtype), 0, NULL);
      grad = tpui_binary(b, "divide", grad, total);
    }
  }
  tpui_hlo_t weights = target_weights(b, &n);
  tpui_hlo_t value = tpui_unary(b, "negate", tpui_binary(b, "multiply", weights, grad));
  value = tpui_broadcast_to(b, value, n.target.rank, n.target.sizes);
  tpui_hlo_t classes = tpui_iota(b, TPU_I64, n.x.rank, n.x.sizes, n.dim);
  tpui_hlo_t hit = tpui_binary(b, "and", tpui_compare(b, "EQ", classes, n.target), n.valid);
  tpui_set_result(op, 0, tpui_select(b, hit, value, constant_like(b, n.x, 0)));
}
