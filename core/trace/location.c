#include "trace/location.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/intern.h"

static tpu_intern_t texts = TPU_INTERN_INIT;
static _Thread_local tpu_location_t current_location;

static bool same_text(const void* item, const void* key) { return strcmp(item, key) == 0; }

static tpu_status_t copy_text(const void* key, void** out_item) {
  size_t size = strlen(key) + 1;
  TPU_RETURN_IF_ERROR(tpu_calloc(size, 1, out_item));
  memcpy(*out_item, key, size);
  return NULL;
}

tpu_status_t tpu_location_intern(const char* text, tpu_location_t* out_location) {
  uint64_t hash = tpu_hash_bytes(text, strlen(text), 0);
  *out_location = tpu_intern_find(&texts, hash, same_text, text);
  if (TPU_LIKELY(*out_location != 0)) return NULL;
  return tpu_intern_add(&texts, hash, same_text, copy_text, text, out_location);
}

const char* tpu_location_text(tpu_location_t location) { return tpu_intern_get(&texts, location); }

void tpu_location_set(tpu_location_t location) { current_location = location; }
tpu_location_t tpu_location_get(void) { return current_location; }

tpu_status_t tpu_location_append(tpu_status_t status, tpu_location_t location) {
  const char* text = tpu_location_text(location);
  if (status == NULL || text == NULL) return status;
  tpu_status_t longer = tpu_status_make(tpu_status_code(status), "%s (recorded at %s)",
                                        tpu_status_message(status), text);
  tpu_status_free(status);
  return longer;
}
