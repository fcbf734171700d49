/* Channels: records that wait for others, on a thread beside the launch queue. */
#include <stdlib.h>
#include <string.h>

#include "engine_support.h"

/* --- a user whose collectives wait at a gate, and then double their operand --- */

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_moved = PTHREAD_COND_INITIALIZER;
static int64_t opened;  // tickets up to this may pass
static int64_t order[64];
static int passed, landings, failures;
static bool refuse;

static void open_gate(int64_t ticket) {
  (void)pthread_mutex_lock(&gate_lock);
  opened = ticket;
  (void)pthread_cond_broadcast(&gate_moved);
  (void)pthread_mutex_unlock(&gate_lock);
}

static void pass_gate(int64_t ticket) {
  (void)pthread_mutex_lock(&gate_lock);
  while (opened < ticket) (void)pthread_cond_wait(&gate_moved, &gate_lock);
  if (passed < 64) order[passed] = ticket;
  ++passed;
  (void)pthread_mutex_unlock(&gate_lock);
}

static void note_landing(void* context, int64_t ticket, tpu_status_t error, uint64_t job) {
  (void)context;
  TPU_EXPECT(ticket >= 0 && job > 0);
  (void)pthread_mutex_lock(&gate_lock);
  ++landings;
  failures += error != NULL;
  (void)pthread_cond_broadcast(&gate_moved);
  (void)pthread_mutex_unlock(&gate_lock);
}

/* A landing is told after the results are there: who waits for those may be first. */
static void await_landings(int count) {
  (void)pthread_mutex_lock(&gate_lock);
  while (landings < count) (void)pthread_cond_wait(&gate_moved, &gate_lock);
  (void)pthread_mutex_unlock(&gate_lock);
}

static void* prepare_collective(const tpu_record_t* record) {
  return record->op == TPU_OP_COLLECTIVE ? &landings : NULL;
}

static bool never(void) { return false; }

static tpu_status_t run_collective(void* prepared, const tpu_host_op_t* op,
                                   tpu_host_block_t* out_blocks) {
  (void)prepared;
  pass_gate(op->slots[0].as_int);
  if (refuse) return tpu_status_make(TPU_ABORTED, "the ranks disagree");
  const tpu_meta_t* meta = tpu_meta_get(op->record->results[0]);
  float* numbers = aligned_alloc(64, ((size_t)meta->numel * 4 + 63) / 64 * 64);
  const float* x = op->operands[1]->data;
  for (int64_t i = 0; i < meta->numel; ++i) numbers[i] = 2 * x[i];
  out_blocks[0] = (tpu_host_block_t){numbers, numbers, free};
  return NULL;
}

static const tpu_host_ops_t collective_ops = {prepare_collective, never, run_collective};

typedef struct channels_t {
  world_t world;
  tpu_channel_t *first, *second;
} channels_t;

static bool open_channels(channels_t* c, tpu_eager_mode_t mode) {
  const char* path = getenv("TORCH_TPU_PJRT_PLUGIN");
  bool real = path != NULL && path[0] != '\0';
  if (!(real ? world_open_real(&c->world, mode) : world_open(&c->world, TPU_PLATFORM_CPU, mode))) {
    return false;
  }
  opened = passed = landings = failures = 0;
  refuse = false;
  TPU_EXPECT_OK(tpu_engine_set_host_ops(c->world.engine, &collective_ops));
  TPU_EXPECT_OK(tpu_channel_create(c->world.engine, note_landing, NULL, &c->first));
  TPU_EXPECT_OK(tpu_channel_create(c->world.engine, note_landing, NULL, &c->second));
  return true;
}

static void close_channels(channels_t* c) {
  open_gate(INT64_MAX);
  tpu_channel_destroy(c->first);
  tpu_channel_destroy(c->second);
  world_close(&c->world);
}

/* Doubles `x` into a new tensor, or in place, once the gate lets the ticket pass. */
static tpu_status_t collect(channels_t* c, tpu_channel_t* channel, int64_t ticket, tensor_t x,
                            tensor_t* out) {
  const tpu_operand_t operands[] = {
      {.kind = TPU_OPERAND_SCALAR, .scalar_dtype = TPU_I64, .number_int = ticket}, operand_of(x)};
  tpu_result_t result = {.storage = out == NULL ? x.storage : NULL, .meta = x.view};
  tpu_call_t call = {.op = TPU_OP_COLLECTIVE,
                     .variant = TPU_CALL_OUT,
                     .operand_count = 2,
                     .operands = operands,
                     .result_count = 1,
                     .results = &result,
                     .has_metas = true,
                     .channel = channel};
  bool unknown;
  TPU_RETURN_IF_ERROR(tpu_engine_record(c->world.engine, &call, &unknown));
  if (out != NULL) *out = (tensor_t){.storage = result.storage, .view = result.meta};
  return NULL;
}

static void expect_numbers(channels_t* c, tensor_t tensor, float first, float step) {
  float out[8];
  TPU_EXPECT_OK(world_read(&c->world, tensor, out));
  for (int i = 0; i < 8 && c->world.fake == NULL; ++i) {
    TPU_EXPECT(out[i] == first + step * (float)i);
  }
}

static void run_beside(tpu_eager_mode_t mode) {
  channels_t c;
  if (!open_channels(&c, mode)) return;
  world_t* w = &c.world;
  tensor_t x = world_range(w, 8, 0), sum = world_binary(w, TPU_OP_ADD, x, x), twice, more;
  TPU_EXPECT_OK(collect(&c, c.first, 1, sum, &twice));
  // Launched behind what was recorded before, and under way: the rest goes on meanwhile.
  tensor_t other = world_binary(w, TPU_OP_MUL, x, x);
  if (mode != TPU_MODE_DEBUG) expect_numbers(&c, sum, 0, 2);
  TPU_EXPECT_EQ(tpu_storage_state(twice.storage), TPU_STORAGE_LAUNCHED);
  TPU_EXPECT_OK(collect(&c, c.second, 0, x, &more));  // passes the other channel
  expect_numbers(&c, more, 0, 2);
  TPU_EXPECT_EQ(passed, 1);
  open_gate(1);
  tensor_t reads = world_binary(w, TPU_OP_ADD, twice, x);
  expect_numbers(&c, reads, 0, 5);
  TPU_EXPECT_OK(tpu_engine_flush(w->engine, true));
  drop(&x), drop(&sum), drop(&twice), drop(&more), drop(&other), drop(&reads);
  close_channels(&c);
  TPU_EXPECT_EQ(landings, 2);
  TPU_EXPECT_EQ(failures, 0);
}

TPU_TEST(channels_run_beside_windows) {
  run_beside(TPU_MODE_FUSED);
  run_beside(TPU_MODE_STRICT);
}

TPU_TEST(channels_keep_their_order_and_windows_wait_for_what_they_read) {
  channels_t c;
  if (!open_channels(&c, TPU_MODE_FUSED)) return;
  world_t* w = &c.world;
  tensor_t x = world_range(w, 8, 1), y = world_range(w, 8, 0);
  open_gate(1);
  for (int64_t ticket = 1; ticket <= 4; ++ticket) {
    TPU_EXPECT_OK(collect(&c, c.first, ticket, x, NULL));  // in place
    world_update(w, TPU_OP_ADD, x, y);
    TPU_EXPECT_OK(tpu_engine_flush(w->engine, ticket == 1));  // a new window waits for others
  }
  TPU_EXPECT_EQ(passed, 1);
  open_gate(4);
  TPU_EXPECT_OK(tpu_engine_flush(w->engine, true));
  expect_numbers(&c, x, 16, 16 + 15);
  for (int i = 0; i < 4; ++i) TPU_EXPECT_EQ(order[i], i + 1);
  drop(&x), drop(&y);
  close_channels(&c);
}

TPU_TEST(channels_hand_failures_to_readers_and_to_the_next_sync_once) {
  channels_t c;
  if (!open_channels(&c, TPU_MODE_FUSED)) return;
  world_t* w = &c.world;
  float out[8];
  tensor_t x = world_range(w, 8, 0), y = world_range(w, 8, 5), next;
  refuse = true;
  TPU_EXPECT_OK(collect(&c, c.first, 1, x, NULL));
  tensor_t sum = world_binary(w, TPU_OP_ADD, x, y);  // while it has not failed yet
  open_gate(9);
  TPU_EXPECT_CODE(world_read(w, sum, out), TPU_ABORTED);
  // It does not quietly hold what it held before.
  TPU_EXPECT_CODE(world_read(w, x, out), TPU_ABORTED);
  TPU_EXPECT_OK(tpu_engine_flush(w->engine, true));
  // The next one runs, and fails by itself.
  tensor_t fine = world_binary(w, TPU_OP_MUL, y, y);
  TPU_EXPECT_OK(collect(&c, c.first, 2, fine, &next));
  tpu_status_free(tpu_engine_flush(w->engine, true));
  await_landings(2);
  TPU_EXPECT_EQ(passed, 2);
  TPU_EXPECT_EQ(failures, 2);
  drop(&x), drop(&y), drop(&sum), drop(&fine), drop(&next);
  close_channels(&c);
}

TPU_TEST(channels_refuse_what_they_cannot_order) {
  channels_t c;
  if (!open_channels(&c, TPU_MODE_FUSED)) return;
  tensor_t x = world_range(&c.world, 8, 0);
  tensor_t part = x;
  int64_t four = 4;
  TPU_EXPECT_OK(tpu_meta_intern_contiguous(TPU_F32, 1, &four, &part.view));
  TPU_EXPECT_CODE(collect(&c, c.first, 1, part, NULL), TPU_INVALID_ARGUMENT);
  drop(&x);
  close_channels(&c);
}
