#include "fake_internal.h"

/* A reader for the few protobuf fields that matter. */
typedef struct reader_t {
  const unsigned char* next;
  const unsigned char* end;
  bool failed;
} reader_t;

static uint64_t read_varint(reader_t* r) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (r->next == r->end) break;
    unsigned char byte = *r->next++;
    value |= (uint64_t)(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  r->failed = true;
  return 0;
}

/* Bytes of a length-delimited field. */
static reader_t read_part(reader_t* r) {
  uint64_t size = read_varint(r);
  if (size > (uint64_t)(r->end - r->next)) {
    r->failed = true;
    size = 0;
  }
  reader_t part = {.next = r->next, .end = r->next + size};
  r->next += size;
  return part;
}

static void check_build_options(reader_t part, int64_t* replicas, int64_t* partitions,
                                bool* failed) {
  while (part.next < part.end && !part.failed) {
    uint64_t tag = read_varint(&part);
    if ((tag & 7) == 0) {
      uint64_t value = read_varint(&part);
      if (tag >> 3 == 4) *replicas = (int64_t)value;
      if (tag >> 3 == 5) *partitions = (int64_t)value;
    } else if ((tag & 7) == 2) {
      (void)read_part(&part);
    } else {
      part.failed = true;
    }
  }
  *failed = *failed || part.failed;
}

/* A map entry {1: name, 2: {1: text}}. */
static pjrt_error_t* check_override(reader_t entry) {
  char name[128] = "";
  bool has_value = false;
  while (entry.next < entry.end && !entry.failed) {
    uint64_t tag = read_varint(&entry);
    if ((tag & 7) != 2) return fake_error(3, "bad option override");
    reader_t part = read_part(&entry);
    if (tag >> 3 == 1) {
      (void)snprintf(name, sizeof(name), "%.*s", (int)(part.end - part.next),
                     (const char*)part.next);
    }
    if (tag >> 3 == 2) has_value = part.end > part.next;
  }
  if (entry.failed || name[0] == '\0' || !has_value) return fake_error(3, "bad option override");
  fake_settings_t settings = fake_settings();
  if (strcmp(name, settings.refused_option) == 0) {
    return fake_error(3, "No such compile option: '%s'", name);
  }
  return NULL;
}

pjrt_error_t* fake_options_check(const char* bytes, size_t size) {
  reader_t reader = {.next = (const unsigned char*)bytes,
                     .end = (const unsigned char*)bytes + size};
  int64_t replicas = 0, partitions = 0;
  bool failed = false;
  pjrt_error_t* error = NULL;
  while (reader.next < reader.end && !reader.failed && error == NULL) {
    uint64_t tag = read_varint(&reader);
    if ((tag & 7) == 2) {
      reader_t part = read_part(&reader);
      if (tag >> 3 == 3) check_build_options(part, &replicas, &partitions, &failed);
      if (tag >> 3 == 7) error = check_override(part);
    } else {
      (void)read_varint(&reader);
    }
  }
  if (error != NULL) return error;
  if (reader.failed || failed) return fake_error(3, "compile options cannot be parsed");
  if (replicas < 1 || partitions < 1) {
    fake_violation("Client_Compile: %lld replicas, %lld partitions: XLA aborts on that",
                   (long long)replicas, (long long)partitions);
    return fake_error(3, "zero replicas or partitions");
  }
  return NULL;
}
