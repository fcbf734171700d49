#include "engine/channel.h"

#include "base/alloc.h"
#include "engine/flight.h"
#include "engine/flush.h"
#include "engine/rescue.h"
#include "engine/storage.h"
#include "engine/watch.h"

struct tpu_channel_t {
  tpu_engine_t* engine;
  tpu_queue_t* queue;
  tpu_channel_landed_t landed;
  void* context;
};

tpu_status_t tpu_channel_create(tpu_engine_t* engine, tpu_channel_landed_t landed, void* context,
                                tpu_channel_t** out_channel) {
  *out_channel = NULL;
  tpu_channel_t* channel = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(*channel), (void**)&channel));
  *channel = (tpu_channel_t){.engine = engine, .landed = landed, .context = context};
  tpu_status_t status = tpu_queue_create(&channel->queue);
  if (status != NULL) {
    tpu_free(channel);
    return status;
  }
  *out_channel = channel;
  return NULL;
}

void tpu_channel_destroy(tpu_channel_t* channel) {
  if (channel == NULL) return;
  tpu_queue_destroy(channel->queue);
  tpu_free(channel);
}

static tpu_status_t check_call(const tpu_call_t* call) {
  bool whole = call->has_metas && call->operand_count > 0 &&
               call->operands[0].kind == TPU_OPERAND_SCALAR && call->result_count > 0;
  for (int k = 0; k < call->result_count && whole; ++k) {
    const tpu_result_t* result = &call->results[k];
    whole = result->storage == NULL ||
            tpui_storage_is_whole(result->storage, result->meta, result->offset);
  }
  if (whole) return NULL;
  return tpu_status_make(TPU_INVALID_ARGUMENT,
                         "a record of a channel needs a ticket, and results of known metadata that "
                         "are whole storages");
}

tpu_status_t tpui_channel_prepare(tpui_lane_t* lane, const tpu_call_t* call,
                                  const tpui_touch_t* touch) {
  TPU_RETURN_IF_ERROR(check_call(call));
  if (lane->ahead) {
    return tpu_status_make(
        TPU_FAILED_PRECONDITION,
        "a collective runs when it is called: it is no part of programs that are "
        "made ahead of time");
  }
  if (lane->capture != NULL) tpui_capture_touched(lane, "it communicates");
  for (;;) {
    // A flush gives the lock up, and others may then record what is touched here.
    TPU_RETURN_IF_ERROR(tpui_lane_settle(lane, touch));
    TPU_RETURN_IF_ERROR(tpui_prepare_operands(lane, call->operand_count, call->operands,
                                              tpu_op_info(call->op)->name));
    if (lane->recorder.record_count == 0) return NULL;
    TPU_RETURN_IF_ERROR(tpui_flush(lane));
  }
}

bool tpui_channels_busy(const tpu_engine_t* e, uint64_t newest_job) {
  for (const tpui_flight_t* f = e->apart; f != NULL; f = f->launched) {
    if (f->job.serial <= newest_job) return true;
  }
  return false;
}

static void unlist_flight(tpu_engine_t* e, const tpui_flight_t* flight) {
  tpui_flight_t** at = &e->apart;
  while (*at != flight) at = &(*at)->launched;
  *at = flight->launched;
}

/* On the channel's thread. */
static void run_apart(tpu_queue_item_t* item) {
  tpui_flight_t* flight = (tpui_flight_t*)item;
  tpu_channel_t* channel = flight->channel;
  tpu_engine_t* e = channel->engine;
  int64_t ticket = flight->job.slots[0].as_int;
  uint64_t job = flight->job.serial;
  tpu_mutex_lock(&e->lock);
  tpui_flight_await_inputs(flight);
  tpu_mutex_unlock(&e->lock);
  tpui_flight_run(flight);
  tpu_status_t error = tpu_status_copy(flight->job.error);
  tpu_mutex_lock(&e->lock);
  unlist_flight(e, flight);
  tpui_flight_finish(flight);
  (void)pthread_cond_broadcast(&e->landed);
  tpu_mutex_unlock(&e->lock);
  channel->landed(channel->context, ticket, error, job);
  tpu_status_free(error);
}

/* What the record wrote is lost if it fails: a tensor that quietly went back to what it held
 * before would pass for the result. */
static void forget_undo(tpui_lane_t* lane) {
  for (size_t i = 0; i < lane->undo_count; ++i) {
    tpu_value_release(&lane->engine->pool, lane->undo[i].old);
  }
  lane->undo_count = 0;
}

static tpu_status_t load_flight(tpui_lane_t* lane, tpu_channel_t* channel, tpui_plan_t* plan,
                                tpui_flight_t** out_flight) {
  const tpu_recorder_t* r = &lane->recorder;
  tpui_planner_t planner = tpui_planner(lane->engine);
  uint8_t *live, *dead;
  tpui_variant_t* variant = NULL;
  TPU_RETURN_IF_ERROR(tpui_mark_flags(lane, false, &live, &dead));
  TPU_RETURN_IF_ERROR(tpui_plan_interpret(&planner, plan, r->slots, live, dead, true, &variant));
  return tpui_flight_load(lane, plan, variant, dead, channel, out_flight);
}

tpu_status_t tpui_channel_launch(tpui_lane_t* lane, tpu_channel_t* channel) {
  tpu_engine_t* e = lane->engine;
  tpu_window_t window;
  tpui_plan_t* plan = NULL;
  tpui_flight_t* flight = NULL;
  forget_undo(lane);
  tpu_recorder_window(&lane->recorder, &window);
  TPU_RETURN_IF_ERROR(tpui_plan_make(&window, &plan));
  tpu_status_t status = load_flight(lane, channel, plan, &flight);
  if (status != NULL) {
    tpui_plan_free(plan);
    return status;
  }
  ++e->stats.flushes;
  // The windows around it follow each other.
  tpui_plan_t* next = lane->last_plan != NULL ? lane->last_plan->next : NULL;
  tpu_recorder_reset(&lane->recorder, next != NULL ? &next->window : NULL);
  flight->item.run = run_apart;
  flight->launched = e->apart;
  e->apart = flight;
  status = tpu_queue_push(channel->queue, &flight->item);
  if (status == NULL) return NULL;
  unlist_flight(e, flight);
  tpu_job_keep_error(&flight->job, &flight->job.steps[0], status);
  tpui_flight_finish(flight);
  return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "no thread for a channel could be started");
}
