/* Runs that a device accepted and has not ended: what waits for a device waits for them too, also
 * where nobody holds their results, and hears of those that failed. */
#include "base/alloc.h"
#include "device/device_internal.h"

/* More may not be open: a launch waits for the oldest. */
#define MOST_OPEN 1024

/* With the device's mutex. */
static tpui_completion_t take_oldest(tpui_completions_t* list) {
  tpui_completion_t oldest = list->open[list->first];
  if (++list->first == list->count) list->first = list->count = 0;
  return oldest;
}

static void keep_error(tpu_device_t* device, uint64_t run, tpu_status_t status) {
  tpui_completions_t* list = &device->completions;
  if (status != NULL && list->error == NULL && run > list->told) {
    list->error = status;
    list->failed = run;
  } else {
    tpu_status_free(status);
  }
}

static bool is_over(const tpu_device_t* device, pjrt_event_t* event) {
  pjrt_event_is_ready_args_t args = {.event = event};
  tpu_status_t status = tpu_pjrt_call(device->plugin, Event_IsReady, &args);
  bool over = status != NULL || args.is_ready;
  tpu_status_free(status);
  return over;
}

/* Ends the oldest one; with the mutex, which is given up meanwhile. */
static void await_oldest(tpu_device_t* device) {
  tpui_completion_t oldest = take_oldest(&device->completions);
  tpu_mutex_unlock(&device->mutex);
  tpu_status_t status = tpui_event_await(device->plugin, oldest.event);
  tpu_mutex_lock(&device->mutex);
  keep_error(device, oldest.run, status);
}

static bool has_open(const tpui_completions_t* list) { return list->first < list->count; }

static tpu_status_t append_completion(tpui_completions_t* list, tpui_completion_t completion) {
  if (list->first > 0 && list->count == list->capacity) {
    for (size_t i = list->first; i < list->count; ++i) list->open[i - list->first] = list->open[i];
    list->count -= list->first;
    list->first = 0;
  }
  TPU_RETURN_IF_ERROR(
      tpu_grow((void**)&list->open, &list->capacity, list->count + 1, sizeof(*list->open)));
  list->open[list->count++] = completion;
  return NULL;
}

void tpui_completion_add(tpu_device_t* device, uint64_t run, pjrt_event_t* event) {
  if (event == NULL) return;
  tpui_completions_t* list = &device->completions;
  tpu_mutex_lock(&device->mutex);
  while (has_open(list) && (list->count - list->first >= MOST_OPEN ||
                            is_over(device, list->open[list->first].event))) {
    await_oldest(device);
  }
  tpu_status_t status = append_completion(list, (tpui_completion_t){.run = run, .event = event});
  if (status != NULL) {  // no memory for the list: this one is waited for now
    tpu_status_free(status);
    tpu_mutex_unlock(&device->mutex);
    status = tpui_event_await(device->plugin, event);
    tpu_mutex_lock(&device->mutex);
    keep_error(device, run, status);
  }
  tpu_mutex_unlock(&device->mutex);
}

void tpui_completion_told(tpu_device_t* device, uint64_t run) {
  tpui_completions_t* list = &device->completions;
  tpu_mutex_lock(&device->mutex);
  if (run > list->told) list->told = run;
  if (list->error != NULL && list->failed <= run) {
    tpu_status_free(list->error);
    list->error = NULL;
  }
  tpu_mutex_unlock(&device->mutex);
}

tpu_status_t tpu_device_await_runs(tpu_device_t* device, tpu_stop_t stop) {
  tpui_completions_t* list = &device->completions;
  uint64_t last = atomic_load_explicit(&device->runs, memory_order_relaxed);
  tpu_mutex_lock(&device->mutex);
  while (has_open(list) && list->open[list->first].run <= last) {
    tpui_completion_t oldest = take_oldest(list);
    tpu_mutex_unlock(&device->mutex);
    tpu_status_t stopped =
        stop != NULL ? tpui_event_poll(device->plugin, oldest.event, stop) : NULL;
    if (stopped != NULL) {
      tpui_completion_add(device, oldest.run, oldest.event);
      return stopped;
    }
    tpu_status_t status = tpui_event_await(device->plugin, oldest.event);
    tpu_mutex_lock(&device->mutex);
    keep_error(device, oldest.run, status);
  }
  tpu_status_t error = list->error;
  list->error = NULL;
  tpu_mutex_unlock(&device->mutex);
  return error;
}

void tpui_completions_free(tpu_device_t* device) {
  tpu_status_free(tpu_device_await_runs(device, NULL));
  tpu_free(device->completions.open);
}
