#include "engine/holders.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/strbuf.h"
#include "ops/ops.h"

#define MOST_LINES 8

/* Equal contents from the same op are one line. */
typedef struct holder_t {
  int64_t bytes;  // of each
  tpu_meta_id_t meta;
  uint32_t origin;
  int64_t count;
} holder_t;

static int compare_kinds(const void* a, const void* b) {
  const holder_t *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  if (x->meta != y->meta) return x->meta < y->meta ? -1 : 1;
  return x->origin < y->origin ? -1 : x->origin > y->origin;
}

static int compare_totals(const void* a, const void* b) {
  const holder_t *x = a, *y = b;
  int64_t left = x->bytes * x->count, right = y->bytes * y->count;
  return left < right ? 1 : left > right ? -1 : compare_kinds(a, b);
}

static void add_holder(tpu_buffer_t* buffer, tpu_meta_id_t meta, holder_t* holders, size_t* count) {
  if (buffer == NULL || !tpu_buffer_has_content(buffer)) return;
  holders[(*count)++] = (holder_t){.bytes = tpu_buffer_bytes(buffer),
                                   .meta = meta,
                                   .origin = tpu_buffer_origin(buffer),
                                   .count = 1};
}

/* One entry per content; NULL without memory. */
static holder_t* list_holders(const tpu_value_pool_t* pool, const tpui_flight_t* flight,
                              size_t* out_count) {
  holder_t* holders = NULL;
  size_t own = flight != NULL ? flight->job.value_count : 0;
  *out_count = 0;
  tpu_status_t status =
      tpu_calloc(pool->slab_count * TPU_VALUE_SLAB + own, sizeof(*holders), (void**)&holders);
  tpu_status_free(status);
  for (size_t i = 0; holders != NULL && i < pool->slab_count * TPU_VALUE_SLAB; ++i) {
    const tpu_value_t* value = &pool->slabs[i / TPU_VALUE_SLAB][i % TPU_VALUE_SLAB];
    if (value->refs == 0 || value->state != TPU_VALUE_READY) continue;
    add_holder(value->ready.buffer, value->meta, holders, out_count);
  }
  for (size_t v = 0; holders != NULL && v < own; ++v) {
    add_holder(flight->job.buffers[v], flight->plan->window.value_metas[v], holders, out_count);
  }
  return holders;
}

/* Joins equal ones; gives how many are left. */
static size_t join_holders(holder_t* holders, size_t count) {
  size_t kinds = 0;
  qsort(holders, count, sizeof(*holders), compare_kinds);
  for (size_t i = 0; i < count; ++i) {
    if (kinds > 0 && compare_kinds(&holders[kinds - 1], &holders[i]) == 0) {
      ++holders[kinds - 1].count;
    } else {
      holders[kinds++] = holders[i];
    }
  }
  qsort(holders, kinds, sizeof(*holders), compare_totals);
  return kinds;
}

static void print_holder(tpu_strbuf_t* text, const holder_t* holder) {
  const tpu_meta_t* meta = tpu_meta_get(holder->meta);
  tpu_strbuf_append(text, "\n  ");
  if (holder->count > 1) tpu_strbuf_printf(text, "%lld x ", (long long)holder->count);
  tpu_strbuf_printf(text, "%.1f MiB  %s[", (double)holder->bytes / (1 << 20),
                    tpu_dtype_name(meta->dtype));
  for (int i = 0; i < meta->rank; ++i) {
    tpu_strbuf_printf(text, "%s%lld", i > 0 ? ", " : "", (long long)meta->sizes[i]);
  }
  if (holder->origin == 0) {
    tpu_strbuf_append(text, "]  copied from the host");
  } else {
    tpu_strbuf_printf(text, "]  made by %s", tpu_op_info((tpu_op_t)holder->origin)->name);
  }
}

tpu_status_t tpui_add_holders(const tpu_engine_t* e, const tpui_flight_t* flight,
                              tpu_status_t status) {
  size_t count = 0;
  if (tpu_status_code(status) != TPU_RESOURCE_EXHAUSTED) return status;
  holder_t* holders = list_holders(&e->pool, flight, &count);
  if (count == 0) {
    tpu_free(holders);
    return status;
  }
  tpu_strbuf_t text = {0};
  size_t kinds = join_holders(holders, count), shown = kinds < MOST_LINES ? kinds : MOST_LINES;
  for (size_t i = 0; i < shown; ++i) print_holder(&text, &holders[i]);
  int64_t rest = 0;
  for (size_t i = shown; i < kinds; ++i) rest += holders[i].bytes * holders[i].count;
  if (rest > 0) tpu_strbuf_printf(&text, "\n  and %.1f MiB more", (double)rest / (1 << 20));
  if (!text.failed) {
    tpu_status_t longer = tpu_status_make(TPU_RESOURCE_EXHAUSTED, "%s\nheld by:%s",
                                          tpu_status_message(status), tpu_strbuf_text(&text));
    tpu_status_free(status);
    status = longer;
  }
  tpu_strbuf_free(&text);
  tpu_free(holders);
  return status;
}
