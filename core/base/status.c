#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

struct tpu_status_s {
  tpu_status_code_t code;
  char text[];
};

// What every function here falls back to when there is no memory for a text. Never written to and
// never freed; freeing recognises the address.
static const struct {
  tpu_status_code_t code;
  char text[64];
} no_memory = {TPU_RESOURCE_EXHAUSTED, "out of host memory (and none left to say for what)"};

static tpu_status_t no_memory_status(void) { return (tpu_status_t)(uintptr_t)&no_memory; }

// A status with room for `length` bytes of text, or NULL.
static tpu_status_t allocate_status(tpu_status_code_t code, size_t length) {
  tpu_status_t status = tpui_alloc(sizeof(struct tpu_status_s) + length + 1);
  if (status == NULL) return NULL;
  status->code = code == TPU_OK ? TPU_INTERNAL : code;
  status->text[length] = '\0';
  return status;
}

// Formats into a new status and appends `tail`. NULL when memory is out.
static tpu_status_t format_status(tpu_status_code_t code, const char* format, va_list args,
                                  const char* separator, const char* tail) {
  va_list measure;
  va_copy(measure, args);
  int length = vsnprintf(NULL, 0, format, measure);
  va_end(measure);
  size_t head = length < 0 ? 0 : (size_t)length;
  size_t separator_size = strlen(separator), tail_size = strlen(tail);
  tpu_status_t status = allocate_status(code, head + separator_size + tail_size);
  if (status == NULL) return NULL;
  if (head > 0) (void)vsnprintf(status->text, head + 1, format, args);
  memcpy(status->text + head, separator, separator_size);
  memcpy(status->text + head + separator_size, tail, tail_size + 1);
  return status;
}

tpu_status_t tpu_status_make(tpu_status_code_t code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  tpu_status_t status = format_status(code, format, args, "", "");
  va_end(args);
  return status != NULL ? status : no_memory_status();
}

tpu_status_t tpu_status_annotate(tpu_status_t status, const char* format, ...) {
  if (status == NULL) return NULL;
  va_list args;
  va_start(args, format);
  tpu_status_t annotated = format_status(status->code, format, args, ": ", status->text);
  va_end(args);
  if (annotated == NULL) return status;  // the plain text says more than "out of memory"
  tpu_status_free(status);
  return annotated;
}

tpu_status_t tpu_status_join(tpu_status_t first, tpu_status_t second) {
  if (second == NULL) return first;
  if (first == NULL) return second;
  tpu_status_t joined = tpu_status_make(first->code, "%s; then %s: %s", first->text,
                                        tpu_status_code_name(second->code), second->text);
  tpu_status_free(second);
  if (joined == no_memory_status()) return first;
  tpu_status_free(first);
  return joined;
}

tpu_status_t tpu_status_copy(tpu_status_t status) {
  if (status == NULL) return NULL;
  size_t length = strlen(status->text);
  tpu_status_t copy = allocate_status(status->code, length);
  if (copy == NULL) return no_memory_status();
  memcpy(copy->text, status->text, length);
  return copy;
}

tpu_status_code_t tpu_status_code(tpu_status_t status) {
  return status == NULL ? TPU_OK : status->code;
}

const char* tpu_status_message(tpu_status_t status) { return status == NULL ? "" : status->text; }

const char* tpu_status_code_name(tpu_status_code_t code) {
  static const char* const names[] = {
      "OK",
      "CANCELLED",
      "UNKNOWN",
      "INVALID_ARGUMENT",
      "DEADLINE_EXCEEDED",
      "NOT_FOUND",
      "ALREADY_EXISTS",
      "PERMISSION_DENIED",
      "RESOURCE_EXHAUSTED",
      "FAILED_PRECONDITION",
      "ABORTED",
      "OUT_OF_RANGE",
      "UNIMPLEMENTED",
      "INTERNAL",
      "UNAVAILABLE",
      "DATA_LOSS",
      "UNAUTHENTICATED",
  };
  size_t index = (size_t)code;
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : "UNKNOWN";
}

void tpu_status_free(tpu_status_t status) {
  if (status != no_memory_status()) tpu_free(status);
}
