/* Scaled dot product attention, forward and backward, in plain matrix products.
 *
 * q [B.., H, L, E], k [B.., Hk, S, E], v [B.., Hk, S, Ev]; H is a multiple of Hk (grouped queries).
 * Scores, softmax and sums are float32 for half types. Rows where everything is masked give 0 and a
 * logsumexp of -inf. Inside, tensors are [G, R, L, X] with G = batch * Hk and R = H / Hk.
 *
 * SDPA_FORWARD operands: q, k, v, bias?, dropout_p, scale?, seed?, offset?
 *   attributes: is_causal, has_dropout (seed and offset are given, dropout_p > 0)
 *   results: output, logsumexp [B.., H, L], seed (int64), offset (int64; 0-d, zero without dropout)
 * SDPA_BACKWARD operands: grad_out, q, k, v, bias?, out, logsumexp, dropout_p, scale?, seed?,
 * offset? attributes: is_causal, has_dropout, output_mask (4 flags) results: grad_q, grad_k,
 * grad_v, grad_bias (grad_bias may be left out)
 *
 * Where small products are cheap, causal attention is computed in blocks of query rows, each with
 * the keys that it can see: up to 3/8 of the work falls away.
 *
 * The dropout mask is drawn again in the backward pass from the same seed and offset (wide form,
 * one counter per call).
 */
#include <math.h>
#include <string.h>

#include "lower/gather.h"
#include "lower/op_lowering.h"
#include "lower/random.h"

typedef struct attention_t {
  const tpui_lowering_t* op;
  tpui_builder_t* b;
  tpu_dtype_t dtype;           // of scores and sums
  int rank;                    // of q
  int64_t groups, repeats;     // G, R
  int64_t length, keys;        // L, S
  int64_t width, value_width;  // E, Ev
  tpui_hlo_t q, k, v;          // [G, R, L, E], [G, S, E], [G, S, Ev] in their own dtype
  int64_t first_row;           // of a block: position of its first query row
  tpui_hlo_t scale;            // rank 0, `dtype`
  int bias_at, dropout_at;     // operand positions; dropout_at: p, scale?, seed?, offset?
} attention_t;

static bool read_attention(const tpui_lowering_t* op, int q_at, int dropout_at, attention_t* a) {
  tpui_builder_t* b = op->b;
  *a = (attention_t){.op = op, .b = b, .bias_at = q_at + 3, .dropout_at = dropout_at};
  tpui_hlo_t q = tpui_operand(op, q_at), k = tpui_operand(op, q_at + 1);
  tpui_hlo_t v = tpui_operand(op, q_at + 2);
  if (!tpui_ok(b)) return false;
  if (q.rank < 3 || k.rank != q.rank || v.rank != q.rank) {
    tpui_fail(b, TPU_INVALID_ARGUMENT, "query, key and value need the same number of dimensions");
    return false;
  }
  int r = q.rank;
  int64_t heads = q.sizes[r - 3], key_heads = k.sizes[r - 3];
  if (key_heads == 0 || heads % key_heads != 0) {
    tpui_fail(b, TPU_INVALID_ARGUMENT, "%lld query heads for %lld key heads", (long long)heads,
              (long long)key_heads);
    return false;
  }
  a->dtype = tpui_math_dtype(q.dtype);
  a->rank = r;
  a->groups = tpui_count(k, 0, r - 2);
  a->repeats = heads / key_heads;
  a->length = q.sizes[r - 2];
  a->keys = k.sizes[r - 2];
  a->width = q.sizes[r - 1];
  a->value_width = v.sizes[r - 1];
  a->q = tpui_reshape(b, q, 4, (const int64_t[]){a->groups, a->repeats, a->length, a->width});
  a->k = tpui_reshape(b, k, 3, (const int64_t[]){a->groups, a->keys, a->width});
  a->v = tpui_reshape(b, v, 3, (const int64_t[]){a->groups, a->keys, a->value_width});
  if (tpui_has_operand(op, dropout_at + 1)) {
    a->scale = tpui_operand_as(op, dropout_at + 1, a->dtype);
  } else {
    double scale = a->width > 0 ? 1 / sqrt((double)a->width) : 1;
    a->scale = tpui_constant(b, a->dtype, scale);
  }
  return tpui_ok(b);
}

/* [G, R, L, X] x [G, S, X] over X -> [G, R, L, S] */
static tpui_hlo_t rows_by_rows(const attention_t* a, tpui_hlo_t x, tpui_hlo_t y) {
  const int batch = 0, x_contract = 3, y_contract = 2;
  return tpui_dot_general(a->b, x, y, 1, &batch, &batch, 1, &x_contract, &y_contract, a->dtype);
}

/* [G, R, L, S] x [G, S, X] over S -> [G, R, L, X] */
static tpui_hlo_t rows_by_columns(const attention_t* a, tpui_hlo_t x, tpui_hlo_t y) {
  const int batch = 0, x_contract = 3, y_contract = 1;
  return tpui_dot_general(a->b, x, y, 1, &batch, &batch, 1, &x_contract, &y_contract, a->dtype);
}

/* [G, R, L, S] x [G, R, L, X] over R and L -> [G, S, X] */
static tpui_hlo_t columns_by_columns(const attention_t* a, tpui_hlo_t x, tpui_hlo_t y) {
  const int batch = 0, contract[] = {1, 2};
  return tpui_dot_general(a->b, x, y, 1, &batch, &batch, 2, contract, contract, a->dtype);
}

static tpui_hlo_t reduce_keys(const attention_t* a, const char* kind, tpui_hlo_t x) {
  const int dim = 3;
  return tpui_reduce_keep(a->b, kind, x, 1, &dim);
}

/* Scaled scores with bias and masks, [G, R, L, S]. */
static tpui_hlo_t make_scores(const attention_t* a) {
  tpui_builder_t* b = a->b;
  tpui_hlo_t scores = tpui_mul(a->b, rows_by_rows(a, a->q, a->k), a->scale);
  tpui_hlo_t lowest = tpui_constant(b, a->dtype, -INFINITY);
  if (tpui_has_operand(a->op, a->bias_at)) {
    // The bias broadcasts to [B.., H, L, S], which regroups to [G, R, L, S].
    tpui_hlo_t bias = tpui_operand(a->op, a->bias_at);
    const tpu_meta_t* q = tpui_operand_meta(a->op, a->bias_at - 3);
    int64_t full[TPU_MAX_RANK];
    for (int i = 0; i < a->rank; ++i) full[i] = q->sizes[i];
    full[a->rank - 1] = a->keys;
    bias = tpui_broadcast_to(b, bias, a->rank, full);
    bias = tpui_reshape(b, bias, 4, scores.sizes);
    if (bias.dtype == TPU_BOOL) {
      scores = tpui_select(b, bias, scores, lowest);
    } else {
      scores = tpui_binary(b, "add", scores, tpui_convert(b, bias, a->dtype));
    }
  }
  if (tpu_attr_int(a->op->record->attrs, 0, 0) != 0) {
    const int64_t square[] = {a->length, a->keys};
    tpu_dtype_t dtype = tpui_index_dtype(a->first_row + a->length + a->keys);
    tpui_hlo_t row = tpui_binary(b, "add", tpui_iota(b, dtype, 2, square, 0),
                                 tpui_constant_int(b, dtype, a->first_row));
    tpui_hlo_t seen = tpui_compare(b, "GE", row, tpui_iota(b, dtype, 2, square, 1));
    scores = tpui_select(b, tpui_broadcast_to(b, seen, 4, scores.sizes), scores, lowest);
  }
  return scores;
}

/* 1/(1-p) where kept, 0 where dropped; [G, R, L, S]. */
static tpui_hlo_t dropout_factor(const attention_t* a) {
  tpui_builder_t* b = a->b;
  const int64_t sizes[] = {a->groups, a->repeats, a->length, a->keys};
  tpui_random_t r = tpui_random_read(a->op, a->dropout_at + 2, true);
  tpui_hlo_t p = tpui_operand_as(a->op, a->dropout_at, TPU_F32);
  tpui_hlo_t keep = tpui_random_keep(&r, p, 4, sizes);
  tpui_hlo_t one = tpui_constant(b, a->dtype, 1);
  tpui_hlo_t left = tpui_binary(b, "subtract", one, tpui_convert(b, p, a->dtype));
  tpui_hlo_t factor = tpui_binary(b, "divide", one, left);
  return tpui_select(b, keep, factor, tpui_constant(b, a->dtype, 0));
}

static bool has_dropout(const attention_t* a) {
  return tpu_attr_int(a->op->record->attrs, 1, 0) != 0;
}

/* A result without elements stands for a gradient that nobody asked for. */
static bool is_absent(const attention_t* a, int result) {
  return tpui_result_meta(a->op, result)->numel == 0;
}

static void set_grouped(const attention_t* a, int result, tpui_hlo_t x) {
  if (!tpui_result_needed(a->op, result)) return;
  if (is_absent(a, result)) {
    tpui_set_result(a->op, result, tpui_constant(a->b, a->dtype, 0));
  } else {
    tpui_set_result_reshaped(a->op, result, x);
  }
}

/* exponent x v and the sums of exponent's rows in one product: v gets a column of ones. */
static void product_with_sum(const attention_t* a, tpui_hlo_t exponent, tpui_hlo_t* out_product,
                             tpui_hlo_t* out_sum) {
  tpui_builder_t* b = a->b;
  const int64_t column[] = {a->groups, a->keys, 1};
  const tpui_hlo_t parts[] = {a->v, tpui_full(b, a->dtype, 1, 3, column)};
  tpui_hlo_t both = rows_by_columns(a, exponent, tpui_concatenate(b, 2, parts, 2));
  *out_product = tpui_slice_dim(b, both, 3, 0, a->value_width);
  *out_sum = tpui_slice_dim(b, both, 3, a->value_width, a->value_width + 1);
}

/* --- blocks of query rows --- */

#define MAX_BLOCKS 4
#define MIN_BLOCKED_ROWS 128

static int block_count(const attention_t* a) {
  bool causal = tpu_attr_int(a->op->record->attrs, 0, 0) != 0;
  bool plain = causal && !has_dropout(a) && !tpui_has_operand(a->op, a->bias_at);
  if (!tpui_target(a->b)->cheap_small_dots || !plain) return 1;
  if (a->length != a->keys || a->length < MIN_BLOCKED_ROWS) return 1;
  return a->length < 2 * MIN_BLOCKED_ROWS ? 2 : MAX_BLOCKS;
}

/* Block `index` of `count`; the whole when count is 1. */
static attention_t block_of(const attention_t* a, int index, int count) {
  attention_t part = *a;
  if (count == 1) return part;
  int64_t first = a->length * index / count, last = a->length * (index + 1) / count;
  part.first_row = first;
  part.length = last - first;
  part.keys = last;
  part.q = tpui_slice_dim(a->b, a->q, 2, first, last);
  part.k = tpui_slice_dim(a->b, a->k, 1, 0, last);
  part.v = tpui_slice_dim(a->b, a->v, 1, 0, last);
  return part;
}

/* Rows of `part` out of a [G, R, L, X] value of the whole. */
static tpui_hlo_t block_rows(const attention_t* part, tpui_hlo_t x) {
  return tpui_slice_dim(part->b, x, 2, part->first_row, part->first_row + part->length);
}

static tpui_hlo_t join_rows(const attention_t* a, int count, const tpui_hlo_t* parts) {
  return count == 1 ? parts[0] : tpui_concatenate(a->b, count, parts, 2);
}

/* Adds a block's [G, keys, X] to the sum over blocks, filled up with zeros to [G, S, X]. */
static tpui_hlo_t add_keys(const attention_t* a, tpui_hlo_t sum, tpui_hlo_t part, bool first) {
  const int64_t low[] = {0, 0, 0}, high[] = {0, a->keys - part.sizes[1], 0};
  if (high[1] > 0) {
    part = tpui_pad(a->b, part, tpui_constant(a->b, part.dtype, 0), low, high, NULL);
  }
  return first ? part : tpui_binary(a->b, "add", sum, part);
}

/* --- forward --- */

static void attend_rows(const attention_t* a, tpui_hlo_t* out_result, tpui_hlo_t* out_log_sum) {
  tpui_builder_t* b = a->b;
  tpui_hlo_t scores = make_scores(a), zero = tpui_constant(b, a->dtype, 0);
  tpui_hlo_t top = reduce_keys(a, "maximum", scores);
  tpui_hlo_t shift =
      tpui_select(b, tpui_compare(b, "EQ", top, tpui_constant(b, a->dtype, -INFINITY)), zero, top);
  tpui_hlo_t exponent = tpui_unary(b, "exponential", tpui_binary(b, "subtract", scores, shift));
  tpui_hlo_t result, sum;
  // With a sum of its own, every exponential would be computed for the sum and for the product.
  bool joined = tpui_target(b)->repeats_fused_work && a->v.dtype == a->dtype;
  if (has_dropout(a) || !joined) {
    sum = reduce_keys(a, "add", exponent);
    tpui_hlo_t weights = has_dropout(a) ? tpui_mul(a->b, exponent, dropout_factor(a)) : exponent;
    result = rows_by_columns(a, tpui_convert(b, weights, a->v.dtype), a->v);
  } else {
    product_with_sum(a, exponent, &result, &sum);
  }
  // Dividing after the product touches [L, Ev] numbers instead of [L, S].
  tpui_hlo_t divisor =
      tpui_select(b, tpui_compare(b, "EQ", sum, zero), tpui_constant(b, a->dtype, 1), sum);
  *out_result = tpui_binary(b, "divide", result, divisor);
  *out_log_sum = tpui_binary(b, "add", shift, tpui_unary(b, "log", sum));
}

void tpui_lower_sdpa_forward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  attention_t a;
  if (!read_attention(op, 0, 4, &a)) return;
  for (int i = 0; i < 2; ++i) {
    if (op->record->result_count <= 2 + i) break;
    tpui_hlo_t number =
        has_dropout(&a) ? tpui_operand_as(op, 6 + i, TPU_I64) : tpui_constant_int(b, TPU_I64, 0);
    tpui_set_result(op, 2 + i, number);
  }
  if (tpui_result_meta(op, 0)->numel == 0 || a.keys == 0) {
    tpui_set_result(op, 0, tpui_constant(b, a.dtype, 0));
    tpui_set_result(op, 1, tpui_constant(b, a.dtype, -INFINITY));
    return;
  }
  tpui_hlo_t results[MAX_BLOCKS], log_sums[MAX_BLOCKS];
  int count = block_count(&a);
  for (int i = 0; i < count && tpui_ok(b); ++i) {
    attention_t part = block_of(&a, i, count);
    attend_rows(&part, &results[i], &log_sums[i]);
  }
  if (!tpui_ok(b)) return;
  set_grouped(&a, 0, join_rows(&a, count, results));
  set_grouped(&a, 1, join_rows(&a, count, log_sums));
}

/* --- backward --- */

/* grad_bias: the gradient of the scores summed over what the bias was broadcast along. */
static void set_bias_grad(const attention_t* a, tpui_hlo_t grad_scores) {
  tpui_builder_t* b = a->b;
  const tpu_meta_t* bias = tpui_operand_meta(a->op, a->bias_at);
  const tpu_meta_t* q = tpui_operand_meta(a->op, a->bias_at - 3);
  if (!tpui_result_needed(a->op, 3)) return;
  if (bias == NULL || is_absent(a, 3)) {
    tpui_set_result(a->op, 3, tpui_constant(b, a->dtype, 0));
    return;
  }
  int64_t full[TPU_MAX_RANK];
  int dims[TPU_MAX_RANK], count = 0, missing = a->rank - bias->rank;
  for (int i = 0; i < a->rank; ++i) {
    full[i] = i == a->rank - 1 ? a->keys : q->sizes[i];
    if (i < missing || (bias->sizes[i - missing] == 1 && full[i] != 1)) dims[count++] = i;
  }
  tpui_hlo_t grad = tpui_reshape(b, grad_scores, a->rank, full);
  if (count > 0) grad = tpui_reduce(b, "add", grad, count, dims);
  tpui_set_result_reshaped(a->op, 3, grad);
}

/* What a block adds to the gradients of q, k and v; `grad`, `out` and `log_sum` are its rows. */
static void attend_backward(const attention_t* a, tpui_hlo_t grad, tpui_hlo_t out,
                            tpui_hlo_t log_sum, tpui_hlo_t out_grads[3]) {
  tpui_builder_t* b = a->b;
  tpui_hlo_t scores = make_scores(a);
  tpui_hlo_t weights = tpui_unary(b, "exponential", tpui_binary(b, "subtract", scores, log_sum));
  tpui_hlo_t grad_weights = rows_by_rows(a, grad, a->v), dropped = weights;
  if (has_dropout(a)) {
    tpui_hlo_t factor = dropout_factor(a);
    dropped = tpui_mul(a->b, weights, factor);
    grad_weights = tpui_mul(a->b, grad_weights, factor);
  }
  out_grads[2] = columns_by_columns(a, tpui_convert(b, dropped, grad.dtype), grad);
  // Softmax: dS = P * (dP - sum(dP * P)), and sum(dP * P) = sum(grad_out * out) per row.
  tpui_hlo_t row_sum = reduce_keys(a, "add", tpui_mul(a->b, tpui_convert(b, grad, a->dtype), out));
  tpui_hlo_t grad_scores =
      tpui_mul(a->b, weights, tpui_binary(b, "subtract", grad_weights, row_sum));
  set_bias_grad(a, grad_scores);
  grad_scores = tpui_convert(b, tpui_mul(a->b, grad_scores, a->scale), a->q.dtype);
  out_grads[0] = rows_by_columns(a, grad_scores, a->k);
  out_grads[1] = columns_by_columns(a, grad_scores, a->q);
}

void tpui_lower_sdpa_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  attention_t a;
  if (!read_attention(op, 1, 7, &a)) return;
  tpui_hlo_t grad = tpui_operand(op, 0);
  if (tpui_count(grad, 0, grad.rank) == 0 || a.keys == 0) {
    for (int i = 0; i < op->record->result_count; ++i) {
      if (tpui_result_needed(op, i)) tpui_set_result(op, i, tpui_constant(b, a.dtype, 0));
    }
    return;
  }
  const int64_t rows[] = {a.groups, a.repeats, a.length, a.value_width};
  const int64_t one_per_row[] = {a.groups, a.repeats, a.length, 1};
  grad = tpui_reshape(b, grad, 4, rows);
  tpui_hlo_t out = tpui_reshape(b, tpui_operand_as(op, 5, a.dtype), 4, rows);
  tpui_hlo_t log_sum = tpui_reshape(b, tpui_operand_as(op, 6, a.dtype), 4, one_per_row);
  // A row that is masked everywhere has log_sum -inf: its weights are exp(-inf - 0) = 0.
  tpui_hlo_t empty = tpui_compare(b, "EQ", log_sum, tpui_constant(b, a.dtype, -INFINITY));
  log_sum = tpui_select(b, empty, tpui_constant(b, a.dtype, 0), log_sum);
  int count = block_count(&a);
  tpui_hlo_t q_parts[MAX_BLOCKS], grads[3] = {{0}};
  for (int i = 0; i < count && tpui_ok(b); ++i) {
    attention_t part = block_of(&a, i, count);
    tpui_hlo_t added[3];
    attend_backward(&part, block_rows(&part, grad), block_rows(&part, out),
                    block_rows(&part, log_sum), added);
    q_parts[i] = added[0];
    for (int k = 1; k < 3; ++k) grads[k] = add_keys(&a, grads[k], added[k], i == 0);
  }
  if (!tpui_ok(b)) return;
  set_grouped(&a, 0, join_rows(&a, count, q_parts));
  set_grouped(&a, 1, grads[1]);
  set_grouped(&a, 2, grads[2]);
}
