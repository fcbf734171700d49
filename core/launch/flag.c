#include "base/alloc.h"
#include "base/strbuf.h"
#include "launch/launch.h"

#define INLINE_NUMBERS 64

static tpu_status_t error_of(const tpu_flag_t* flag, const int64_t* numbers) {
  int64_t number;
  const tpu_check_t* row = tpu_checks_failed(flag->checks, numbers, &number);
  if (TPU_LIKELY(row == NULL)) return NULL;
  tpu_strbuf_t place = {0};
  tpu_strbuf_printf(&place, "op %u of window %llu", row->record, (unsigned long long)flag->job);
  if (flag->locations != NULL) {
    const char* line = tpu_location_text(flag->locations[row - flag->checks->rows]);
    if (line != NULL) tpu_strbuf_printf(&place, ", recorded at %s", line);
  }
  tpu_status_t status = tpu_strbuf_status(&place);
  if (status == NULL) status = tpu_check_error(row, number, tpu_strbuf_text(&place));
  tpu_strbuf_free(&place);
  return status;
}

tpu_status_t tpu_flag_look(const tpu_flag_t* flag) {
  int64_t inline_numbers[INLINE_NUMBERS];
  void* memory = inline_numbers;
  size_t count = flag->checks->count;
  if (count > INLINE_NUMBERS) TPU_RETURN_IF_ERROR(tpu_calloc(count, sizeof(int64_t), &memory));
  tpu_status_t status =
      tpu_buffer_read(flag->buffer, 0, memory, (int64_t)(count * sizeof(int64_t)));
  if (status == NULL) status = error_of(flag, memory);
  if (memory != inline_numbers) tpu_free(memory);
  return status;
}

void tpu_flag_drop(tpu_flag_t* flag) {
  tpu_buffer_release(flag->buffer);
  tpu_checks_release(flag->checks);
  tpu_free(flag->locations);
  *flag = (tpu_flag_t){0};
}
