#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/version.h"
#include "compile/compile_internal.h"

/* Raise when a program must not share files with others of the same version and text any more. */
static const char cache_version[] = "1";

void tpui_key_begin(tpui_key_t* key) { tpu_digest_begin(&key->state); }

void tpui_key_add(tpui_key_t* key, const char* name, const void* data, size_t size) {
  /* Sizes keep neighbouring parts apart. */
  uint64_t sizes[2] = {strlen(name), size};
  tpu_digest_update(&key->state, sizes, sizeof(sizes));
  tpu_digest_update(&key->state, name, sizes[0]);
  tpu_digest_update(&key->state, data, size);
  if (!tpu_log_enabled(TPU_LOG_CACHE)) return;
  tpu_digest_state_t part;
  tpu_digest_begin(&part);
  tpu_digest_update(&part, data, size);
  char hex[33];
  tpu_digest_hex(tpu_digest_end(&part), hex);
  tpu_log(TPU_LOG_CACHE, "key part %-8s %s (%zu bytes)", name, hex, size);
}

tpu_digest_t tpui_key_end(const tpui_key_t* key) {
  tpu_digest_state_t copy = key->state;
  return tpu_digest_end(&copy);
}

static void add_text(tpui_key_t* key, const char* name, const char* text) {
  tpui_key_add(key, name, text, strlen(text));
}

/* Lines of /proc/cpuinfo that say which instructions there are (x86, then Arm). The "model" row
 * also takes "model name". */
static bool is_cpu_line(const char* line) {
  static const char* const names[] = {"vendor_id",   "cpu family",      "model",
                                      "flags",       "CPU implementer", "CPU architecture",
                                      "CPU variant", "CPU part",        "Features"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    if (strncmp(line, names[i], strlen(names[i])) == 0) return true;
  }
  return false;
}

/* Digest of the first processor's entry. Zero when there is none to read: such machines share keys,
 * which is no worse than having no part at all. */
static tpu_digest_t cpu_digest(void) {
  tpu_digest_state_t state;
  tpu_digest_begin(&state);
  FILE* file = fopen("/proc/cpuinfo", "re");
  if (file == NULL) return tpu_digest_end(&state);
  char line[1024];
  bool at_start = true, wanted = false;
  while (fgets(line, sizeof(line), file) != NULL) {
    if (at_start && line[0] == '\n') break;
    size_t size = strlen(line);
    if (at_start) wanted = is_cpu_line(line);
    if (wanted) tpu_digest_update(&state, line, size);
    at_start = size > 0 && line[size - 1] == '\n';  // long lines come in pieces
  }
  (void)fclose(file);
  return tpu_digest_end(&state);
}

void tpui_key_add_machine(tpui_key_t* key, const tpu_device_t* device) {
  const tpu_platform_t* platform = tpu_device_platform(device);
  add_text(key, "version", tpu_version());
  add_text(key, "cache", cache_version);
  add_text(key, "plugin", tpu_device_plugin_version(device));
  add_text(key, "platform", platform->name);
  /* These variables change generated code behind our back. */
  const char* flags = getenv(platform->kind == TPU_PLATFORM_TPU ? "LIBTPU_INIT_ARGS" : "XLA_FLAGS");
  add_text(key, "flags", flags != NULL ? flags : "");
  if (platform->kind == TPU_PLATFORM_CPU) {
    tpu_digest_t cpu = cpu_digest();
    tpui_key_add(key, "cpu", &cpu, sizeof(cpu));
  } else {
    add_text(key, "device", tpu_device_name(device));
  }
}
