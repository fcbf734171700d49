#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

// Makes room for `extra` more bytes and the NUL; latches the error.
static bool reserve_bytes(tpu_strbuf_t* buffer, size_t extra) {
  if (buffer->failed) return false;
  size_t needed;
  if (__builtin_add_overflow(buffer->size, extra, &needed) || needed == SIZE_MAX) {
    buffer->failed = true;
    return false;
  }
  if (needed < buffer->capacity) return true;
  void* data = buffer->data;
  tpu_status_t status = tpu_grow(&data, &buffer->capacity, needed + 1, 1);
  // Only one kind of failure exists here; tpu_strbuf_status makes its text anew.
  buffer->failed = status != NULL;
  tpu_status_free(status);
  buffer->data = data;
  return !buffer->failed;
}

void tpu_strbuf_append_bytes(tpu_strbuf_t* buffer, const char* bytes, size_t size) {
  if (!reserve_bytes(buffer, size)) return;
  if (size > 0) memcpy(buffer->data + buffer->size, bytes, size);
  buffer->size += size;
  buffer->data[buffer->size] = '\0';
}

void tpu_strbuf_append(tpu_strbuf_t* buffer, const char* text) {
  tpu_strbuf_append_bytes(buffer, text, strlen(text));
}

void tpu_strbuf_printf(tpu_strbuf_t* buffer, const char* format, ...) {
  // Most pieces are short: one formatting pass into whatever room there is, a second one only when
  // the text did not fit.
  if (!reserve_bytes(buffer, 64)) return;
  size_t room = buffer->capacity - buffer->size;
  va_list args;
  va_start(args, format);
  int length = vsnprintf(buffer->data + buffer->size, room, format, args);
  va_end(args);
  if (length < 0) length = 0;
  if ((size_t)length >= room && reserve_bytes(buffer, (size_t)length)) {
    va_start(args, format);
    (void)vsnprintf(buffer->data + buffer->size, (size_t)length + 1, format, args);
    va_end(args);
  }
  if (!buffer->failed) buffer->size += (size_t)length;
  buffer->data[buffer->size] = '\0';
}

void tpu_strbuf_append_int(tpu_strbuf_t* buffer, int64_t value) {
  char digits[20];
  size_t first = sizeof(digits);
  // Through unsigned, so that INT64_MIN has a magnitude.
  uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  do {
    digits[--first] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  if (value < 0) digits[--first] = '-';
  tpu_strbuf_append_bytes(buffer, digits + first, sizeof(digits) - first);
}

void tpu_strbuf_clear(tpu_strbuf_t* buffer) {
  buffer->size = 0;
  buffer->failed = false;
  if (buffer->data != NULL) buffer->data[0] = '\0';
}

void tpu_strbuf_free(tpu_strbuf_t* buffer) {
  tpu_free(buffer->data);
  *buffer = (tpu_strbuf_t){0};
}

tpu_status_t tpu_strbuf_status(const tpu_strbuf_t* buffer) {
  if (!buffer->failed) return NULL;
  return tpu_status_make(TPU_RESOURCE_EXHAUSTED,
                         "out of host memory: a text of more than %zu bytes", buffer->size);
}

const char* tpu_strbuf_text(const tpu_strbuf_t* buffer) {
  return buffer->data != NULL ? buffer->data : "";
}
