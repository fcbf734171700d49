#include "engine/engine.h"

#include "base/alloc.h"
#include "base/env.h"
#include "base/log.h"
#include "engine/errors.h"
#include "engine/flags.h"
#include "engine/flight.h"
#include "engine/flush.h"
#include "engine/lane.h"
#include "engine/reason.h"
#include "engine/tier.h"
#include "host/host.h"

/* Windows and programs have 32-bit numbers for what is in them. */
#define MOST_RECORDS ((int64_t)1 << 24)

static int64_t at_most(int64_t number, int64_t most) { return number < most ? number : most; }

void tpui_partition_write_for(tpu_partition_options_t* options, const tpu_platform_t* platform) {
  int64_t program = at_most(tpu_env_int(TPU_ENV_PROGRAM_OPS), MOST_RECORDS);
  options->max_records = program > 0 ? (uint32_t)program : (uint32_t)platform->program_ops;
  // With small programs asked for, small repeats too.
  options->min_records = (uint32_t)at_most(options->max_records / 4, (int64_t)platform->repeat_ops);
  options->platform = platform;
  options->host_calls = false;
}

static void choose_limits(tpu_engine_t* e) {
  int64_t window = at_most(tpu_env_int(TPU_ENV_WINDOW_OPS), MOST_RECORDS);
  tpui_partition_write_for(&e->partition, tpu_device_platform(e->device));
  e->partition.host_calls = tpu_device_has_host_calls(e->device);
  e->code_limit = tpu_env_int(TPU_ENV_PROGRAM_CACHE_BYTES);
  e->window_limit = window > 0 ? (uint32_t)window : 1;
}

static void choose_traces(tpu_engine_t* e) {
  bool traces = e->mode == TPU_MODE_DEBUG || tpu_env_bool(TPU_ENV_TRACE_STACKS);
  for (tpui_lane_t* lane = e->lanes; lane != NULL; lane = lane->next) {
    lane->recorder.traces = traces;
  }
  atomic_store_explicit(&e->traces, traces, memory_order_relaxed);
}

tpu_status_t tpu_engine_create(const tpu_device_options_t* options, tpu_engine_t** out_engine) {
  *out_engine = NULL;
  tpu_engine_t* e = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(*e), (void**)&e));
  (void)pthread_mutex_init(&e->lock, NULL);
  (void)pthread_cond_init(&e->landed, NULL);
  static _Atomic uint64_t newest_serial;
  e->serial = atomic_fetch_add_explicit(&newest_serial, 1, memory_order_relaxed) + 1;
  tpu_eager_mode_t mode;
  tpu_status_t status = tpu_eager_mode_default(&mode);
  atomic_init(&e->mode, mode);
  choose_traces(e);
  if (status == NULL) status = tpu_queue_create(&e->queue);
  if (status == NULL) status = tpu_queue_create(&e->builds);
  if (status == NULL) status = tpu_queue_create(&e->compiles);
  if (status == NULL) status = tpu_memo_create(&e->memo);
  if (status == NULL) status = tpu_address_space_create(&e->addresses);
  if (status == NULL) status = tpu_device_create(options, &e->device);
  if (status == NULL) tpu_host_register(e->device);
  if (status == NULL) status = tpu_compiler_create(e->device, &e->compiler);
  if (status != NULL) {
    tpu_engine_destroy(e);
    return status;
  }
  choose_limits(e);
  *out_engine = e;
  return NULL;
}

void tpu_engine_destroy(tpu_engine_t* e) {
  if (e == NULL) return;
  tpu_queue_destroy(e->queue);  // runs what is queued
  if (e->compiler != NULL) tpu_compiler_refuse(e->compiler, true);
  tpu_queue_destroy(e->builds);
  tpu_queue_destroy(e->compiles);
  tpui_flights_free(e);
  tpui_reasons_free(e);
  tpui_lanes_free(e);
  tpui_plan_cache_clear(&e->plans);
  tpui_flags_free(e);
  tpu_value_pool_free(&e->pool);
  tpu_memo_destroy(e->memo);
  tpu_address_space_destroy(e->addresses);
  tpu_compiler_destroy(e->compiler);
  tpu_device_destroy(e->device);
  for (size_t i = 0; i < e->storage_slab_count; ++i) tpu_free(e->storage_slabs[i]);
  tpu_free(e->storage_slabs);
  tpu_free(e->flags);
  tpu_status_free(e->pending_error);
  (void)pthread_cond_destroy(&e->landed);
  (void)pthread_mutex_destroy(&e->lock);
  tpu_free(e);
}

void tpu_engine_set_stop(tpu_engine_t* engine, tpu_stop_t stop) {
  tpu_mutex_lock(&engine->lock);
  engine->stop = stop;
  tpu_mutex_unlock(&engine->lock);
}

void tpu_engine_set_task(tpu_engine_t* engine, tpu_task_number_t task) {
  tpu_mutex_lock(&engine->lock);
  engine->task = task;
  tpu_mutex_unlock(&engine->lock);
}

tpu_compiler_t* tpu_engine_compiler(tpu_engine_t* engine) { return engine->compiler; }
tpu_device_t* tpu_engine_device(tpu_engine_t* engine) { return engine->device; }

tpu_eager_mode_t tpu_engine_mode(const tpu_engine_t* engine) {
  return atomic_load_explicit(&engine->mode, memory_order_relaxed);
}

bool tpu_engine_checks_finite(const tpu_engine_t* engine) {
  return tpu_engine_mode(engine) == TPU_MODE_DEBUG && tpu_env_bool(TPU_ENV_CHECK_NONFINITE) &&
         !atomic_load_explicit(&engine->expects_nonfinite, memory_order_relaxed);
}

void tpu_engine_expect_nonfinite(tpu_engine_t* engine, bool expected) {
  atomic_store_explicit(&engine->expects_nonfinite, expected, memory_order_relaxed);
}

bool tpu_engine_traces(const tpu_engine_t* engine) {
  return atomic_load_explicit(&engine->traces, memory_order_relaxed);
}

tpu_status_t tpu_engine_set_mode(tpu_engine_t* engine, tpu_eager_mode_t mode) {
  if (tpu_eager_mode_name(mode) == NULL) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "eager mode %d: must be 0, 1 or 2", (int)mode);
  }
  tpu_mutex_lock(&engine->lock);
  tpu_status_t status = NULL;
  // Waiting gives the lock up, so that others may record meanwhile.
  do {
    status = tpui_lanes_flush(engine, true);
    if (status == NULL) status = tpui_wait_idle(engine);
  } while (status == NULL && tpui_lanes_waiting(engine));
  if (status == NULL) {
    atomic_store_explicit(&engine->mode, mode, memory_order_relaxed);
    choose_traces(engine);
  }
  tpu_mutex_unlock(&engine->lock);
  return status;
}

tpu_status_t tpu_engine_set_host_ops(tpu_engine_t* engine, const tpu_host_ops_t* ops) {
  bool wanted;
  TPU_RETURN_IF_ERROR(tpu_tiers_default(&wanted));
  tpu_mutex_lock(&engine->lock);
  engine->host_ops = ops;
  tpu_mutex_unlock(&engine->lock);
  return NULL;
}

void tpu_engine_told(tpu_engine_t* engine, uint64_t job) {
  tpu_mutex_lock(&engine->lock);
  tpui_told_of(engine, job);
  tpu_mutex_unlock(&engine->lock);
}

void tpu_engine_stats(tpu_engine_t* engine, tpu_engine_stats_t* out_stats) {
  tpu_mutex_lock(&engine->lock);
  *out_stats = engine->stats;
  tpu_mutex_unlock(&engine->lock);
}

void tpu_engine_compile_stats(tpu_engine_t* engine, tpu_compile_stats_t* out_stats) {
  tpu_compiler_stats(engine->compiler, out_stats);
}

void tpu_engine_reset_stats(tpu_engine_t* engine) {
  tpu_mutex_lock(&engine->lock);
  engine->stats = (tpu_engine_stats_t){0};
  tpu_mutex_unlock(&engine->lock);
  tpu_compiler_reset_stats(engine->compiler);
}

void tpu_engine_set_told(tpu_engine_t* engine, void (*told)(void)) { engine->told_reason = told; }

tpu_status_t tpu_engine_await_builds(tpu_engine_t* engine) {
  tpu_status_t status = NULL;
  tpu_mutex_lock(&engine->lock);
  while (engine->building > 0 && status == NULL) status = tpui_wait_landing(engine);
  tpu_mutex_unlock(&engine->lock);
  return status;
}

void tpu_engine_stop_builds(tpu_engine_t* engine) {
  tpu_mutex_lock(&engine->lock);
  tpui_tier_stop(engine);
  tpu_mutex_unlock(&engine->lock);
}

void tpu_engine_clear_cache(tpu_engine_t* engine) {
  tpu_mutex_lock(&engine->lock);
  do {  // each gives the lock up
    tpui_tier_stop(engine);
    tpui_wait_to_the_end(engine);
  } while (engine->building > 0);
  tpui_lanes_expect_nothing(engine);
  tpui_plan_cache_clear(&engine->plans);
  tpu_mutex_unlock(&engine->lock);
  tpu_compiler_clear_memory(engine->compiler);
}
