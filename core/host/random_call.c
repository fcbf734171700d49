/* The kernels over random.h. Operands: the distribution's parameters, of rank 0 or of the result's
 * sizes, F32 or F64 as the draw computes; then seed and offset. Attribute: wide.
 */
#include "host/random_call.h"

#include "host/distributions.h"

/* Chunks worth handing to another thread: about 20 us. */
enum { GRAIN_CHUNKS = 16 };

static int64_t element_count(const tpu_host_buffer_t* x) {
  int64_t count = 1;
  for (int i = 0; i < x->rank; ++i) count *= x->sizes[i];
  return count;
}

tpu_status_t tpui_random_state(const tpu_host_call_t* call, uint64_t* out_seed,
                               uint64_t* out_offset) {
  uint64_t* const outs[] = {out_seed, out_offset};
  for (int i = 0; i < 2; ++i) {
    const tpu_host_buffer_t* x = &call->operands[call->operand_count - 2 + i];
    *outs[i] = 0;
    if (x->dtype != TPU_U64 || x->rank != 0) {
      return tpu_status_make(TPU_INVALID_ARGUMENT, "seed and offset must be uint64 numbers");
    }
    *outs[i] = *(const uint64_t*)x->data;
  }
  return NULL;
}

/* --- filling --- */

typedef struct task_t {
  tpu_random_draw_t draw;
  tpu_dtype_t result;
  int64_t count;
  void* out;
} task_t;

static tpu_status_t fill_chunks(void* arg, int64_t first, int64_t last) {
  const task_t* t = arg;
  first *= TPUI_CHUNK;
  last = last * TPUI_CHUNK < t->count ? last * TPUI_CHUNK : t->count;
  char* out = (char*)t->out + (size_t)first * tpu_dtype_bytes(t->result);
  return tpu_random_fill(&t->draw, t->result, first, last, out);
}

static tpu_status_t fill_result(const tpu_host_call_t* call, task_t* t) {
  int64_t wide;
  TPU_RETURN_IF_ERROR(tpui_random_state(call, &t->draw.seed, &t->draw.offset));
  TPU_RETURN_IF_ERROR(tpu_host_attr_int(call, "wide", &wide));
  t->draw.wide = wide != 0;
  t->result = call->results[0].dtype;
  t->count = element_count(&call->results[0]);
  t->out = call->results[0].data;
  return tpu_host_parallel(call, (t->count + TPUI_CHUNK - 1) / TPUI_CHUNK, GRAIN_CHUNKS,
                           fill_chunks, t);
}

static tpu_status_t read_parameter(const tpu_host_call_t* call, int k, tpu_dtype_t math,
                                   tpu_random_parameter_t* out) {
  const tpu_host_buffer_t* x = &call->operands[k];
  int64_t count = element_count(x);
  if (x->dtype != math || (x->rank > 0 && count != element_count(&call->results[0]))) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "parameter %d: %s with %lld elements", k,
                           tpu_dtype_name(x->dtype), (long long)count);
  }
  *out = (tpu_random_parameter_t){0};
  if (x->rank > 0) {
    out->elements = x->data;
  } else {
    out->number = math == TPU_F64 ? *(const double*)x->data : *(const float*)x->data;
  }
  return NULL;
}

static tpu_status_t draw_kind(const tpu_host_call_t* call, tpu_random_kind_t kind) {
  task_t task = {.draw = {.kind = kind, .math = call->operands[0].dtype}};
  TPU_RETURN_IF_ERROR(read_parameter(call, 0, task.draw.math, &task.draw.a));
  if (call->operand_count > 3) {
    TPU_RETURN_IF_ERROR(read_parameter(call, 1, task.draw.math, &task.draw.b));
  }
  return fill_result(call, &task);
}

/* --- kernels --- */

tpu_status_t tpui_host_uniform(const tpu_host_call_t* call) {
  return draw_kind(call, TPU_RANDOM_UNIFORM);
}
tpu_status_t tpui_host_normal(const tpu_host_call_t* call) {
  return draw_kind(call, TPU_RANDOM_NORMAL);
}
tpu_status_t tpui_host_log_normal(const tpu_host_call_t* call) {
  return draw_kind(call, TPU_RANDOM_LOG_NORMAL);
}
tpu_status_t tpui_host_exponential(const tpu_host_call_t* call) {
  return draw_kind(call, TPU_RANDOM_EXPONENTIAL);
}
tpu_status_t tpui_host_cauchy(const tpu_host_call_t* call) {
  return draw_kind(call, TPU_RANDOM_CAUCHY);
}
tpu_status_t tpui_host_geometric(const tpu_host_call_t* call) {
  return draw_kind(call, TPU_RANDOM_GEOMETRIC);
}
tpu_status_t tpui_host_bernoulli(const tpu_host_call_t* call) {
  return draw_kind(call, TPU_RANDOM_BERNOULLI);
}

/* Parameters: from and range, INT64 of rank 0; range counts as unsigned, 0 stands for 2^64. */
tpu_status_t tpui_host_random_integers(const tpu_host_call_t* call) {
  int64_t numbers[2];
  for (int i = 0; i < 2; ++i) {
    const tpu_host_buffer_t* x = &call->operands[i];
    if (x->dtype != TPU_I64 || x->rank != 0) {
      return tpu_status_make(TPU_INVALID_ARGUMENT, "from and range must be int64 numbers");
    }
    numbers[i] = *(const int64_t*)x->data;
  }
  task_t task = {.draw = {.kind = TPU_RANDOM_INTEGERS,
                          .math = TPU_F32,
                          .from = numbers[0],
                          .range = (uint64_t)numbers[1]}};
  return fill_result(call, &task);
}
