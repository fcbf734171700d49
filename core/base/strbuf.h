/* String builder with a latched error: append freely, ask once at the end. */
#ifndef TPU_BASE_STRBUF_H_
#define TPU_BASE_STRBUF_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero-initialise with {0}. After an out-of-memory all further appends do nothing. */
typedef struct tpu_strbuf_t {
  char* data;   // NUL-terminated once something was appended; owned
  size_t size;  // bytes, without the NUL
  size_t capacity;
  bool failed;
} tpu_strbuf_t;

void tpu_strbuf_append(tpu_strbuf_t* buffer, const char* text);
void tpu_strbuf_append_bytes(tpu_strbuf_t* buffer, const char* bytes, size_t size);
void tpu_strbuf_printf(tpu_strbuf_t* buffer, const char* format, ...) TPU_PRINTF(2, 3);
void tpu_strbuf_append_int(tpu_strbuf_t* buffer, int64_t value);  // fast decimal
/* Empties the buffer but keeps its memory; also clears the latched error. */
void tpu_strbuf_clear(tpu_strbuf_t* buffer);
void tpu_strbuf_free(tpu_strbuf_t* buffer);
TPU_MUST_USE tpu_status_t tpu_strbuf_status(const tpu_strbuf_t* buffer);
/* The text so far; "" when nothing was appended. */
const char* tpu_strbuf_text(const tpu_strbuf_t* buffer);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_STRBUF_H_
