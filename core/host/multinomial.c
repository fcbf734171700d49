/* Draws of classes by weight. */
#include "host/order.h"
#include "host/plain_arithmetic.h"
#include "host/random.h"
#include "host/random_call.h"
#include "host/scratch.h"

/* Classes worth handing to another thread: about 20 us. */
enum { GRAIN_CLASSES = 8192 };

/* Memory of a thread, for rows of `room` draws or classes, whichever are more. */
typedef struct work_t {
  void* numbers;    // [room + 3] of the weights' dtype
  double* running;  // [room]; with replacement
  void* order;      // for tpui_order_first; without
} work_t;

/* Numbers [first, last) of the call; gives where the first of them stands in `numbers`. */
static tpu_status_t draw_numbers(const tpu_random_classes_t* t, tpu_random_kind_t kind,
                                 int64_t first, int64_t last, void* numbers, void** out) {
  int64_t start = first & ~INT64_C(3);
  const tpu_random_draw_t draw = {.kind = kind,
                                  .seed = t->seed,
                                  .offset = t->offset,
                                  .wide = true,
                                  .math = t->dtype,
                                  .a = {.number = kind == TPU_RANDOM_EXPONENTIAL},
                                  .b = {.number = 1}};
  *out = (char*)numbers + (size_t)(first - start) * tpu_dtype_bytes(t->dtype);
  return tpu_random_fill(&draw, t->dtype, start, last, numbers);
}

/* --- with replacement: a draw falls into the class where the running sum passes it --- */

/* Sums up a row; gives its last class that has a weight. */
static int64_t sum_up(const tpu_random_classes_t* t, int64_t row, double* running) {
  double sum = 0;
  int64_t last = 0;
  for (int64_t c = 0; c < t->classes; ++c) {
    int64_t at = row * t->classes + c;
    double weight = t->dtype == TPU_F64 ? ((const double*)t->weights)[at]
                                        : (double)((const float*)t->weights)[at];
    if (weight > 0) last = c;
    sum += weight;
    running[c] = sum;
  }
  return last;
}

static int64_t class_of(const double* running, int64_t classes, double x) {
  int64_t low = 0, high = classes;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (running[middle] > x) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

static tpu_status_t draw_again(const tpu_random_classes_t* t, int64_t row, const work_t* work) {
  int64_t first = row * t->samples, last = sum_up(t, row, work->running);
  double total = work->running[t->classes - 1];
  void* x = NULL;
  TPU_RETURN_IF_ERROR(
      draw_numbers(t, TPU_RANDOM_UNIFORM, first, first + t->samples, work->numbers, &x));
  for (int64_t s = 0; s < t->samples; ++s) {
    double share = t->dtype == TPU_F64 ? ((const double*)x)[s] : (double)((const float*)x)[s];
    int64_t place = class_of(work->running, t->classes, share * total);
    // Not past the last class that has a weight, whatever rounding does to share * total.
    t->out[first + s] = place < last ? place : last;
  }
  return NULL;
}

/* --- without: the largest scores --- */

#define SCORES(name, type)                                                               \
  static void scores_##name(const tpu_random_classes_t* t, int64_t row, type* numbers) { \
    const type* weights = (const type*)t->weights + row * t->classes;                    \
    for (int64_t c = 0; c < t->classes; ++c) numbers[c] = weights[c] / numbers[c];       \
  }                                                                                      \
  static int64_t greatest_##name(const type* scores, int64_t count) {                    \
    int64_t best = 0;                                                                    \
    for (int64_t c = 1; c < count; ++c) best = scores[c] > scores[best] ? c : best;      \
    return best;                                                                         \
  }
SCORES(f32, float)
SCORES(f64, double)

static tpu_status_t draw_once(const tpu_random_classes_t* t, int64_t row, const work_t* work) {
  void* scores = NULL;
  int64_t first = row * t->classes, *out = t->out + row * t->samples;
  TPU_RETURN_IF_ERROR(
      draw_numbers(t, TPU_RANDOM_EXPONENTIAL, first, first + t->classes, work->numbers, &scores));
  bool wide = t->dtype == TPU_F64;
  if (wide) {
    scores_f64(t, row, scores);
  } else {
    scores_f32(t, row, scores);
  }
  if (t->samples == 1) {
    *out = wide ? greatest_f64(scores, t->classes) : greatest_f32(scores, t->classes);
    return NULL;
  }
  tpui_order_t order =
      tpui_order_first(t->dtype, scores, t->classes, t->samples, true, work->order);
  for (int64_t s = 0; s < t->samples; ++s) out[s] = tpui_order_position(order, s);
  return NULL;
}

/* --- rows --- */

static tpu_status_t check_draw(const tpu_random_classes_t* t) {
  bool fits = t->dtype == TPU_F32 || t->dtype == TPU_F64;
  bool counts = t->classes > 0 && t->classes <= TPUI_MAX_ORDER && t->samples >= 0 &&
                (t->replacement || t->samples <= t->classes);
  if (fits && counts) return NULL;
  return tpu_status_make(TPU_INVALID_ARGUMENT, "%lld draws from %lld classes of %s",
                         (long long)t->samples, (long long)t->classes, tpu_dtype_name(t->dtype));
}

static tpu_status_t draw_rows(const tpu_random_classes_t* t, int64_t first, int64_t last,
                              char* memory, size_t number_bytes) {
  const work_t work = {.numbers = memory,
                       .running = (double*)(memory + number_bytes),
                       .order = memory + number_bytes};
  fenv_t environment;
  tpu_status_t status = NULL;
  tpui_plain_arithmetic_begin(&environment);
  for (int64_t row = first; row < last && status == NULL; ++row) {
    status = t->replacement ? draw_again(t, row, &work) : draw_once(t, row, &work);
  }
  tpui_plain_arithmetic_end(&environment);
  return status;
}

tpu_status_t tpu_random_draw_classes(const tpu_random_classes_t* t, int64_t first, int64_t last) {
  TPU_RETURN_IF_ERROR(check_draw(t));
  int64_t room = t->replacement ? t->samples : t->classes;
  size_t number_bytes = sizeof(double) * (size_t)(room + 3);
  size_t rest = t->replacement ? sizeof(double) * (size_t)t->classes
                               : tpui_order_first_scratch(t->dtype, t->classes);
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpui_scratch_take(number_bytes + rest, &memory));
  tpu_status_t status = draw_rows(t, first, last, memory, number_bytes);
  tpui_scratch_give(memory);
  return status;
}

/* --- the kernel --- */

static tpu_status_t draw_range(void* arg, int64_t first, int64_t last) {
  return tpu_random_draw_classes(arg, first, last);
}

/* weights [N, C] (F32 or F64), seed, offset -> classes [N, samples] (int64). Attribute:
 * replacement. */
tpu_status_t tpui_host_multinomial(const tpu_host_call_t* call) {
  const tpu_host_buffer_t *weights = &call->operands[0], *out = &call->results[0];
  int64_t replacement;
  tpu_random_classes_t task = {.dtype = weights->dtype, .weights = weights->data, .out = out->data};
  TPU_RETURN_IF_ERROR(tpui_random_state(call, &task.seed, &task.offset));
  TPU_RETURN_IF_ERROR(tpu_host_attr_int(call, "replacement", &replacement));
  bool fits = weights->rank == 2 && out->rank == 2 && out->dtype == TPU_I64 &&
              weights->sizes[0] == out->sizes[0];
  if (!fits) return tpu_status_make(TPU_INVALID_ARGUMENT, "weights and classes do not fit");
  task.classes = weights->sizes[1];
  task.samples = out->sizes[1];
  task.replacement = replacement != 0;
  int64_t grain = task.classes > 0 ? GRAIN_CLASSES / task.classes : 1;
  return tpu_host_parallel(call, weights->sizes[0], grain, draw_range, &task);
}
