/* Random programs on a real plugin (TORCH_TPU_PJRT_PLUGIN), compared with plain C arrays; the same
 * programs run on the fake plugin without comparing. */
#include <math.h>

#include "engine_support.h"

enum { TENSORS = 5, MAX_ELEMENTS = 32 };

typedef struct mirror_t {
  tensor_t tensor;  // the whole storage as a vector
  int64_t size;
  float numbers[MAX_ELEMENTS];
} mirror_t;

typedef struct program_t {
  world_t world;
  bool compare;
  uint64_t random;
  mirror_t mirrors[TENSORS];
} program_t;

typedef struct piece_t {
  int64_t offset, size, stride;
} piece_t;

static int64_t pick(program_t* p, int64_t low, int64_t high) {
  return tpu_test_random_range(&p->random, low, high);
}

static mirror_t* pick_mirror(program_t* p) { return &p->mirrors[pick(p, 0, TENSORS - 1)]; }

static void renew(program_t* p, mirror_t* m) {
  drop(&m->tensor);
  m->size = pick(p, 1, MAX_ELEMENTS);
  bool empty = pick(p, 0, 3) == 0;
  float first = (float)pick(p, -9, 9);
  m->tensor = empty ? world_empty(&p->world, m->size) : world_range(&p->world, m->size, first);
  for (int64_t i = 0; i < m->size; ++i) m->numbers[i] = empty ? 0 : first + (float)i;
}

/* A random piece that fits both; mostly the whole when they are equal. */
static void pick_pieces(program_t* p, const mirror_t* x, const mirror_t* y, piece_t* a,
                        piece_t* b) {
  int64_t most = x->size < y->size ? x->size : y->size;
  int64_t size = x->size == y->size && pick(p, 0, 1) == 0 ? most : pick(p, 1, most);
  const mirror_t* of[2] = {x, y};
  piece_t* pieces[2] = {a, b};
  for (int i = 0; i < 2; ++i) {
    int64_t stride = pick(p, 1, 3);
    while ((size - 1) * stride >= of[i]->size) --stride;
    *pieces[i] = (piece_t){pick(p, 0, of[i]->size - 1 - (size - 1) * stride), size, stride};
  }
}

static tensor_t tensor_of(const mirror_t* m, piece_t piece) {
  return view_of(m->tensor, piece.offset, piece.size, piece.stride);
}

static float* at(mirror_t* m, piece_t piece, int64_t i) {
  return &m->numbers[piece.offset + i * piece.stride];
}

static void check(program_t* p, mirror_t* m, piece_t piece, int step) {
  float numbers[MAX_ELEMENTS];
  tensor_t tensor = tensor_of(m, piece);
  if (!tpu_test_check_code(__FILE__, __LINE__, "read", world_read(&p->world, tensor, numbers),
                           TPU_OK)) {
    return;
  }
  for (int64_t i = 0; p->compare && i < piece.size; ++i) {
    float expected = *at(m, piece, i);
    if (fabsf(numbers[i] - expected) <= 1e-4f + 1e-4f * fabsf(expected)) continue;
    tpu_test_fail(__FILE__, __LINE__, "step %d, tensor %d, element %lld: expected %g, got %g", step,
                  (int)(m - p->mirrors), (long long)i, (double)expected, (double)numbers[i]);
    return;
  }
}

static float apply(tpu_op_t op, float x, float y) {
  return op == TPU_OP_ADD ? x + y : op == TPU_OP_SUB ? x - y : fmaxf(x, y);
}

static tpu_op_t pick_op(program_t* p) {
  static const tpu_op_t ops[3] = {TPU_OP_ADD, TPU_OP_SUB, TPU_OP_MAXIMUM};
  return ops[pick(p, 0, 2)];
}

static void update(program_t* p, mirror_t* x, mirror_t* y) {
  piece_t a, b;
  pick_pieces(p, x, y, &a, &b);
  tpu_op_t op = pick_op(p);
  world_update(&p->world, op, tensor_of(x, a), tensor_of(y, b));
  float old[MAX_ELEMENTS];
  for (int64_t i = 0; i < a.size; ++i) old[i] = apply(op, *at(x, a, i), *at(y, b, i));
  for (int64_t i = 0; i < a.size; ++i) *at(x, a, i) = old[i];
}

static void combine(program_t* p, mirror_t* x, mirror_t* y, mirror_t* into) {
  piece_t a, b;
  pick_pieces(p, x, y, &a, &b);
  tpu_op_t op = pick_op(p);
  tensor_t result = world_binary(&p->world, op, tensor_of(x, a), tensor_of(y, b));
  float numbers[MAX_ELEMENTS];
  for (int64_t i = 0; i < a.size; ++i) numbers[i] = apply(op, *at(x, a, i), *at(y, b, i));
  drop(&into->tensor);
  into->tensor = result;
  into->size = a.size;
  memcpy(into->numbers, numbers, sizeof(numbers));
}

static void scale(program_t* p, mirror_t* x) {
  piece_t a, b;
  pick_pieces(p, x, x, &a, &b);
  static const double factors[4] = {0.5, -0.5, 0.25, 0.125};
  double factor = factors[pick(p, 0, 3)];
  world_update_by(&p->world, TPU_OP_MUL, tensor_of(x, a), factor);
  for (int64_t i = 0; i < a.size; ++i) *at(x, a, i) *= (float)factor;
}

static void write_host(program_t* p, mirror_t* x) {
  piece_t a, b;
  float numbers[MAX_ELEMENTS];
  pick_pieces(p, x, x, &a, &b);
  tensor_t tensor = tensor_of(x, a);
  for (int64_t i = 0; i < a.size; ++i) *at(x, a, i) = numbers[i] = (float)pick(p, -99, 99);
  TPU_EXPECT_OK(tpu_engine_write(p->world.engine, tensor.storage, tensor.view, tensor.offset,
                                 numbers, a.size * 4));
}

static void resize(program_t* p, mirror_t* x) {
  int64_t size = pick(p, 0, MAX_ELEMENTS);
  if (size == 0) {
    TPU_EXPECT_OK(tpu_storage_resize(x->tensor.storage, 0));
    for (int64_t i = 0; i < x->size; ++i) x->numbers[i] = 0;
    size = x->size;
  }
  TPU_EXPECT_OK(tpu_storage_resize(x->tensor.storage, size * 4));
  for (int64_t i = x->size; i < size; ++i) x->numbers[i] = 0;
  x->size = size;
  x->tensor.view = vector_of(size);
  x->tensor.offset = 0;
}

/* An update that fails must leave the tensor as it was. */
static void fail_update(program_t* p, mirror_t* x) {
  if (x->size < 2) return;
  world_flush(&p->world);
  piece_t whole = {0, x->size, 1};
  tensor_t other = world_range(&p->world, x->size + 1, 0);
  tensor_t target = tensor_of(x, whole);
  tpu_operand_t operands[2] = {operand_of(target), operand_of(other)};
  tpu_status_t status = world_try(&p->world, TPU_OP_ADD, TPU_CALL_IN_PLACE, 2, operands, &target);
  if (status == NULL) status = tpu_engine_flush(p->world.engine, true);
  TPU_EXPECT(status != NULL);
  tpu_status_free(status);
  drop(&other);
}

static void step(program_t* p, int number) {
  mirror_t *x = pick_mirror(p), *y = pick_mirror(p), *z = pick_mirror(p);
  piece_t a, b;
  int64_t what = pick(p, 0, 99);
  if (what < 30) {
    update(p, x, y);
  } else if (what < 50) {
    combine(p, x, y, z);
  } else if (what < 65) {
    scale(p, x);
  } else if (what < 72) {
    write_host(p, x);
  } else if (what < 77) {
    resize(p, x);
  } else if (what < 82) {
    renew(p, x);
  } else if (what < 92) {
    pick_pieces(p, x, x, &a, &b);
    check(p, x, a, number);
  } else if (what < 96) {
    world_flush(&p->world);
  } else if (what < 98) {
    tpu_status_free(tpu_engine_flush(p->world.engine, true));
  } else {
    fail_update(p, x);
  }
}

static void run_program(program_t* p, uint64_t seed, int steps) {
  p->random = seed;
  for (int i = 0; i < TENSORS; ++i) renew(p, &p->mirrors[i]);
  for (int i = 0; i < steps; ++i) step(p, i);
  for (int i = 0; i < TENSORS; ++i) {
    check(p, &p->mirrors[i], (piece_t){0, p->mirrors[i].size, 1}, steps);
    drop(&p->mirrors[i].tensor);
  }
}

static const tpu_eager_mode_t modes[3] = {TPU_MODE_FUSED, TPU_MODE_STRICT, TPU_MODE_DEBUG};

TPU_TEST(numbers_of_random_programs_real_plugin) {
  program_t p = {.compare = true};
  if (!world_open_real(&p.world, TPU_MODE_FUSED)) return;
  enum { PROGRAMS = 4, STEPS = 60 };  // most of the time goes into compiling
  for (int i = 0; i < PROGRAMS; ++i) {
    TPU_EXPECT_OK(tpu_engine_set_mode(p.world.engine, modes[i == 1 ? 1 : 0]));
    run_program(&p, 1000 + (uint64_t)i, STEPS);
  }
  world_close(&p.world);
}

TPU_TEST(numbers_of_random_programs_fake_plugin) {
  for (int i = 0; i < 3; ++i) {
    program_t p = {0};
    TPU_REQUIRE(world_open(&p.world, TPU_PLATFORM_CPU, modes[i]));
    for (int k = 0; k < 40; ++k) run_program(&p, 1 + (uint64_t)k, 200);
    world_close(&p.world);
  }
}

/* A loop whose number and row change: variants must not mix up their values. */
TPU_TEST(numbers_of_changing_arguments_real_plugin) {
  world_t w;
  if (!world_open_real(&w, TPU_MODE_FUSED)) return;
  tensor_t table = world_range(&w, 60, 0);
  for (int i = 0; i < 12; ++i) {
    int row = i * 7 % 10;
    tensor_t c = world_scale(&w, TPU_OP_MUL, view_of(table, 6 * row, 6, 1), 1 + i / 2);
    EXPECT_CONTENT(&w, c, 6 * row * (1 + i / 2), 1 + i / 2);
    drop(&c);
  }
  drop(&table);
  world_close(&w);
}

/* Large windows in flight give what they would give one by one. */
TPU_TEST(numbers_of_queued_windows_real_plugin) {
  world_t w;
  if (!world_open_real(&w, TPU_MODE_FUSED)) return;
  tensor_t a = world_range(&w, 70000, 1);
  for (int i = 0; i < 30; ++i) {
    world_update_by(&w, TPU_OP_ADD, a, 1);
    world_flush(&w);
  }
  EXPECT_CONTENT(&w, a, 31, 1);
  tensor_t b = world_scale(&w, TPU_OP_MUL, a, 2);
  world_flush(&w);
  world_update_by(&w, TPU_OP_SUB, a, 31);
  EXPECT_CONTENT(&w, b, 62, 2);
  EXPECT_CONTENT(&w, a, 0, 1);
  drop(&a), drop(&b);
  world_close(&w);
}

/* What was in front of a failed update comes back, also when it was made in the same window. */
TPU_TEST(numbers_after_failures_real_plugin) {
  world_t w;
  if (!world_open_real(&w, TPU_MODE_FUSED)) return;
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 1), other = world_range(&w, 7, 1);
  world_update_by(&w, TPU_OP_MUL, a, 2);
  world_update(&w, TPU_OP_ADD, a, other);  // fails
  world_update_by(&w, TPU_OP_MUL, a, 5);   // with it
  tensor_t c = world_scale(&w, TPU_OP_ADD, b, 10);
  world_update_by(&w, TPU_OP_ADD, view_of(b, 0, 4, 2), 100);
  world_update(&w, TPU_OP_ADD, b, other);  // fails
  tpu_status_t status = tpu_engine_flush(w.engine, true);
  TPU_EXPECT(status != NULL);
  tpu_status_free(status);
  EXPECT_CONTENT(&w, a, 2, 2);
  EXPECT_CONTENT(&w, c, 11, 1);
  EXPECT_CONTENT(&w, view_of(b, 0, 4, 2), 101, 2);
  EXPECT_CONTENT(&w, view_of(b, 1, 4, 2), 2, 2);
  drop(&a), drop(&b), drop(&c), drop(&other);
  world_close(&w);
}
