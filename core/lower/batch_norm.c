/* Batch norm: statistics over all dimensions but the channels, dimension 1. */
#include <string.h>

#include "lower/dims.h"
#include "lower/op_lowering.h"
#include "lower/pointwise.h"

typedef struct channels_t {
  tpui_dims_t dims;             // all but 1
  int64_t sizes[TPU_MAX_RANK];  // 1, C, 1, ...
  double count;                 // elements per channel
} channels_t;

static channels_t channels_of(tpui_hlo_t x) {
  channels_t c = {.count = 1.0};
  for (int i = 0; i < x.rank; ++i) {
    c.sizes[i] = i == 1 ? x.sizes[i] : 1;
    if (i == 1) continue;
    c.dims.dims[c.dims.count++] = i;
    c.count *= (double)x.sizes[i];
  }
  return c;
}

/* Operand k, one number per channel, broadcastable to x. */
static tpui_hlo_t per_channel(const tpui_lowering_t* op, int k, tpui_hlo_t x, const channels_t* c) {
  return tpui_reshape(op->b, tpui_operand_as(op, k, x.dtype), x.rank, c->sizes);
}

static tpui_hlo_t channel_mean(tpui_builder_t* b, tpui_hlo_t x, const channels_t* c) {
  tpui_hlo_t sum = tpui_reduce_keep(b, "add", x, c->dims.count, c->dims.dims);
  return tpui_binary_constant(b, "divide", sum, c->count);
}

/* old + momentum * (new - old) */
static tpui_hlo_t moved_statistic(const tpui_lowering_t* op, int running, tpui_hlo_t x,
                                  tpui_hlo_t fresh, const channels_t* c) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t momentum = tpui_operand_as(op, 5, x.dtype);
  tpui_hlo_t rest = tpui_binary(b, "subtract", tpui_like(b, momentum, 1.0), momentum);
  tpui_hlo_t old = tpui_mul(b, per_channel(op, running, x, c), rest);
  return tpui_binary(b, "add", old, tpui_mul(b, fresh, momentum));
}

static void set_running(const tpui_lowering_t* op, tpui_hlo_t x, tpui_hlo_t mean,
                        tpui_hlo_t variance, bool train, const channels_t* c) {
  for (int k = 0; k < 2; ++k) {
    if (tpui_result_meta(op, 3 + k) == NULL || !tpui_has_operand(op, 3 + k)) continue;
    if (!train) {
      tpui_set_result_reshaped(op, 3 + k, tpui_operand(op, 3 + k));
      continue;
    }
    tpui_hlo_t fresh = mean;
    if (k == 1) {  // the running variance is the unbiased one
      fresh = tpui_binary_constant(op->b, "multiply", variance, c->count / (c->count - 1.0));
    }
    tpui_set_result_reshaped(op, 3 + k, moved_statistic(op, 3 + k, x, fresh, c));
  }
}

/* Statistics that the backward pass wants; evaluation saves none. */
static void set_saved(const tpui_lowering_t* op, int k, tpui_hlo_t value) {
  const tpu_meta_t* meta = tpui_result_meta(op, k);
  if (meta == NULL) return;
  if (meta->numel == 0) value = tpui_full(op->b, value.dtype, 0.0, meta->rank, meta->sizes);
  tpui_set_result_reshaped(op, k, value);
}

/* BATCH_NORM(input, weight?, bias?, running_mean?, running_var?, momentum, eps); attribute 0:
 * training. Results: output, saved mean, saved 1/std, new running mean, new running variance. */
void tpui_lower_batch_norm(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* input = tpui_operand_meta(op, 0);
  if (input == NULL || input->rank < 2) {
    tpui_fail(b, TPU_INVALID_ARGUMENT, "the input has no channel dimension");
    return;
  }
  tpui_hlo_t x = tpui_operand_as(op, 0, tpui_math_dtype(input->dtype));
  channels_t c = channels_of(x);
  bool train = tpu_attr_int(op->record->attrs, 0, 0) != 0;
  tpui_hlo_t mean, variance;
  if (train) {
    mean = channel_mean(b, x, &c);
    tpui_hlo_t gap = tpui_binary(b, "subtract", x, mean);
    variance = channel_mean(b, tpui_mul(b, gap, gap), &c);
  } else {
    mean = per_channel(op, 3, x, &c);
    variance = per_channel(op, 4, x, &c);
  }
  tpui_hlo_t rstd =
      tpui_unary(b, "rsqrt", tpui_binary(b, "add", variance, tpui_operand_as(op, 6, x.dtype)));
  tpui_hlo_t scale = tpui_has_operand(op, 1) ? tpui_mul(b, rstd, per_channel(op, 1, x, &c)) : rstd;
  tpui_hlo_t y = tpui_mul(b, tpui_binary(b, "subtract", x, mean), scale);
  if (tpui_has_operand(op, 2)) y = tpui_binary(b, "add", y, per_channel(op, 2, x, &c));
  tpui_set_result(op, 0, y);
  set_saved(op, 1, mean);
  set_saved(op, 2, rstd);
  set_running(op, x, mean, variance, train, &c);
}

static void set_masked(const tpui_lowering_t* op, int k, tpui_hlo_t value) {
  const tpu_meta_t* meta = tpui_result_meta(op, k);
  const int64_t* mask = NULL;
  int count = tpu_attr_ints(op->record->attrs, 1, &mask);
  if (meta == NULL) return;
  if (k < count && mask[k] == 0) {
    value = tpui_full(op->b, value.dtype, 0.0, meta->rank, meta->sizes);
  }
  tpui_set_result_reshaped(op, k, value);
}

/* BATCH_NORM_BACKWARD(grad, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?,
 * eps); attributes: train, mask. Results: gradients of input, weight, bias. */
void tpui_lower_batch_norm_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* input = tpui_operand_meta(op, 1);
  if (input == NULL || input->rank < 2) {
    tpui_fail(b, TPU_INVALID_ARGUMENT, "the input has no channel dimension");
    return;
  }
  tpui_hlo_t x = tpui_operand_as(op, 1, tpui_math_dtype(input->dtype));
  tpui_hlo_t g = tpui_operand_as(op, 0, x.dtype), mean, rstd;
  channels_t c = channels_of(x);
  bool train = tpu_attr_int(op->record->attrs, 0, 0) != 0;
  if (train) {
    mean = per_channel(op, 5, x, &c);
    rstd = per_channel(op, 6, x, &c);
  } else {
    mean = per_channel(op, 3, x, &c);
    tpui_hlo_t variance = per_channel(op, 4, x, &c);
    rstd = tpui_unary(b, "rsqrt", tpui_binary(b, "add", variance, tpui_operand_as(op, 7, x.dtype)));
  }
  tpui_hlo_t xhat = tpui_mul(b, tpui_binary(b, "subtract", x, mean), rstd);
  tpui_hlo_t scale = tpui_has_operand(op, 2) ? tpui_mul(b, rstd, per_channel(op, 2, x, &c)) : rstd;
  tpui_hlo_t dx = g, g_xhat = tpui_mul(b, g, xhat);
  if (train) {
    dx = tpui_binary(b, "subtract", g, channel_mean(b, g, &c));
    dx = tpui_binary(b, "subtract", dx, tpui_mul(b, xhat, channel_mean(b, g_xhat, &c)));
  }
  set_masked(op, 0, tpui_mul(b, dx, scale));
  set_masked(op, 1, tpui_reduce(b, "add", g_xhat, c.dims.count, c.dims.dims));
  set_masked(op, 2, tpui_reduce(b, "add", g, c.dims.count, c.dims.dims));
}
