#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "device/device_internal.h"

/* Some settings reach a plugin only through the environment, while it is loaded and makes its
 * client. The environment is process-wide, so old values are put back. */
enum { SCOPE_THREADS = 0, THREAD_VARIABLES = 2, SCOPE_LOG = 2, SCOPE_MDS = 3, SCOPE_COUNT = 4 };
enum { VALUE_SIZE = 64 };
static const char* const scope_names[SCOPE_COUNT] = {"PJRT_NPROC", "NPROC", "TF_CPP_MIN_LOG_LEVEL",
                                                     "TPU_SKIP_MDS_QUERY"};

typedef struct env_scope_t {
  bool changed[SCOPE_COUNT];
  bool was_set[SCOPE_COUNT];
  char old[SCOPE_COUNT][VALUE_SIZE];
} env_scope_t;

static int wanted_threads(const tpu_device_options_t* options) {
  if (options->threads > 0) return options->threads;
  for (int i = 0; i < THREAD_VARIABLES; ++i) {
    if (getenv(scope_names[i]) != NULL) return 0;  // set on purpose: leave it to the plugin
  }
  const char* text = getenv("OMP_NUM_THREADS");  // what PyTorch's own CPU kernels follow
  long threads = text != NULL ? strtol(text, NULL, 10) : 0;
  return threads > 0 && threads < 65536 ? (int)threads : 0;
}

static void scope_set(env_scope_t* scope, int i, const char* value) {
  const char* old = getenv(scope_names[i]);
  scope->was_set[i] = old != NULL;
  if (old != NULL) (void)snprintf(scope->old[i], VALUE_SIZE, "%s", old);
  scope->changed[i] = setenv(scope_names[i], value, 1) == 0;
}

static void scope_begin(env_scope_t* scope, const tpu_device_options_t* options) {
  memset(scope, 0, sizeof(*scope));
  /* libtpu asks a metadata server for its TPU, ten minutes long where none answers. */
  if (options->no_chip && getenv(scope_names[SCOPE_MDS]) == NULL) scope_set(scope, SCOPE_MDS, "1");
  if (options->platform != TPU_PLATFORM_CPU) return;
  char threads[VALUE_SIZE];
  int count = wanted_threads(options);
  (void)snprintf(threads, sizeof(threads), "%d", count);
  for (int i = 0; i < THREAD_VARIABLES && count > 0; ++i) {
    scope_set(scope, SCOPE_THREADS + i, threads);
  }
  /* Two INFO lines per client otherwise; warnings and errors stay. */
  if (getenv(scope_names[SCOPE_LOG]) == NULL) scope_set(scope, SCOPE_LOG, "1");
}

static void scope_end(const env_scope_t* scope) {
  for (int i = 0; i < SCOPE_COUNT; ++i) {
    if (!scope->changed[i]) continue;
    if (scope->was_set[i]) {
      (void)setenv(scope_names[i], scope->old[i], 1);
    } else {
      (void)unsetenv(scope_names[i]);
    }
  }
}

static pjrt_named_value_t named_value(const char* name, int32_t type) {
  return (pjrt_named_value_t){.struct_size = PJRT_SIZE_named_value,
                              .name = name,
                              .name_size = strlen(name),
                              .type = type,
                              .value_size = 1};
}

static tpu_status_t create_client(tpu_device_t* device) {
  pjrt_named_value_t values[2];
  pjrt_client_create_args_t args = {0};
  if (device->platform->kind == TPU_PLATFORM_CPU) {
    /* One device keeps the thread count down. Synchronous: a run in the caller costs 3 us, a hop to
     * the pool 20 us; overlap is the launch thread's work. */
    values[0] = named_value("cpu_device_count", PJRT_NAMED_INT64);
    values[0].value.int64_value = 1;
    values[1] = named_value("asynchronous", PJRT_NAMED_BOOL);
    values[1].value.bool_value = false;
    args.create_options = values;
    args.num_options = 2;
  }
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(device->plugin, Client_Create, &args));
  device->client = args.client;
  return NULL;
}

static tpu_status_t load_and_create(tpu_device_t* device, const tpu_device_options_t* options) {
  env_scope_t scope;
  scope_begin(&scope, options);
  tpu_status_t status = tpu_plugin_load(options->plugin_path, &device->plugin);
  if (status == NULL) status = create_client(device);
  scope_end(&scope);
  if (status != NULL && options->no_chip) {
    status = tpu_status_annotate(status,
                                 "PJRT plugin '%s' gives no device. No TPU is on this machine's "
                                 "bus; TORCH_TPU_PLATFORM=cpu chooses the CPU",
                                 options->plugin_path);
  }
  return status;
}

static tpu_status_t take_device(tpu_device_t* device, int index) {
  pjrt_client_addressable_devices_args_t args = {.client = device->client};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(device->plugin, Client_AddressableDevices, &args));
  if (args.num_addressable_devices == 0) {
    return tpu_status_make(TPU_NOT_FOUND, "PJRT plugin '%s' has no device", device->plugin->path);
  }
  // A launcher that shows each process its own chip leaves one here, whatever the process's index.
  bool exists = index > 0 && (size_t)index < args.num_addressable_devices;
  device->device = args.addressable_devices[exists ? index : 0];
  return NULL;
}

/* Hands the text over; the buffer is empty afterwards. */
static tpu_status_t take_text(tpu_strbuf_t* buffer, char** out_text) {
  tpu_status_t status = tpu_strbuf_status(buffer);
  void* copy = NULL;
  if (status == NULL) status = tpu_calloc(buffer->size + 1, 1, &copy);
  if (status == NULL) {
    memcpy(copy, tpu_strbuf_text(buffer), buffer->size);
    *out_text = copy;
  }
  tpu_strbuf_free(buffer);
  return status;
}

static tpu_status_t read_name(tpu_device_t* device) {
  tpu_strbuf_t text = {0};
  if (device->platform->kind == TPU_PLATFORM_CPU) {
    char model[128];
    tpui_platform_cpu_model(model, sizeof(model));
    tpu_strbuf_printf(&text, "TPU (cpu host: %s)", model);
    return take_text(&text, &device->name);
  }
  pjrt_device_get_description_args_t description = {.device = device->device};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(device->plugin, Device_GetDescription, &description));
  pjrt_device_description_kind_args_t kind = {.device_description = description.device_description};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(device->plugin, DeviceDescription_Kind, &kind));
  bool is_tpu = kind.device_kind_size >= 3 && memcmp(kind.device_kind, "TPU", 3) == 0;
  if (!is_tpu) tpu_strbuf_printf(&text, "TPU (%s: ", device->platform->name);
  tpu_strbuf_append_bytes(&text, kind.device_kind, kind.device_kind_size);
  if (!is_tpu) tpu_strbuf_append(&text, ")");
  return take_text(&text, &device->name);
}

static tpu_status_t read_version(tpu_device_t* device) {
  pjrt_client_platform_name_args_t name = {.client = device->client};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(device->plugin, Client_PlatformName, &name));
  pjrt_client_platform_version_args_t version = {.client = device->client};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(device->plugin, Client_PlatformVersion, &version));
  tpu_strbuf_t text = {0};
  tpu_strbuf_append_bytes(&text, name.platform_name, name.platform_name_size);
  tpu_strbuf_append(&text, "; ");
  tpu_strbuf_append_bytes(&text, version.platform_version, version.platform_version_size);
  tpu_strbuf_printf(&text, "; PJRT %d.%d; file %016llx", device->plugin->api->version.major_version,
                    device->plugin->api->version.minor_version,
                    (unsigned long long)device->plugin->fingerprint);
  return take_text(&text, &device->version);
}

/* Devices need not know, and some fail to tell: that is no reason to do without them. */
static bool ask_memory(const tpu_device_t* device, pjrt_device_memory_stats_args_t* out_args) {
  *out_args = (pjrt_device_memory_stats_args_t){.device = device->device};
  if (device->platform->kind == TPU_PLATFORM_CPU) return false;
  tpu_status_t status = tpu_pjrt_call(device->plugin, Device_MemoryStats, out_args);
  if (status != NULL) {
    tpu_log(TPU_LOG_LAUNCH, "no memory statistics: %s", tpu_status_message(status));
  }
  bool known = status == NULL;
  tpu_status_free(status);
  return known;
}

static tpu_status_t read_limit(tpu_device_t* device, const tpu_device_options_t* options) {
  if (device->platform->kind == TPU_PLATFORM_CPU) {
    device->probes_memory = true;
    device->stats.bytes_limit =
        options->memory_limit > 0 ? options->memory_limit : tpui_platform_host_memory();
    return NULL;
  }
  pjrt_device_memory_stats_args_t args;
  // Else the limit stays unknown (0), and the device itself says what does not fit.
  if (ask_memory(device, &args) && args.bytes_limit_is_set) {
    device->stats.bytes_limit = args.bytes_limit;
  }
  return NULL;
}

static tpu_status_t fill_device(tpu_device_t* device, const tpu_device_options_t* options) {
  if (pthread_mutex_init(&device->mutex, NULL) != 0) {
    return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "cannot make a mutex");
  }
  atomic_init(&device->risky_bytes, INT64_MAX);
  device->memory_share = 1;
  device->platform = tpu_platform_get(options->platform);
  if (device->platform == NULL) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "unknown platform kind %d",
                           (int)options->platform);
  }
  if (options->threads < 0 || options->memory_limit < 0) {
    return tpu_status_make(TPU_INVALID_ARGUMENT,
                           "threads (%d) and memory limit (%lld) must not be negative",
                           options->threads, (long long)options->memory_limit);
  }
  TPU_RETURN_IF_ERROR(load_and_create(device, options));
  TPU_RETURN_IF_ERROR(take_device(device, options->index));
  TPU_RETURN_IF_ERROR(read_name(device));
  TPU_RETURN_IF_ERROR(read_version(device));
  return read_limit(device, options);
}

tpu_status_t tpu_device_create(const tpu_device_options_t* options, tpu_device_t** out_device) {
  *out_device = NULL;
  if (options == NULL) return tpu_status_make(TPU_INVALID_ARGUMENT, "device options are NULL");
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(tpu_device_t), &memory));
  tpu_status_t status = fill_device(memory, options);
  if (status != NULL) {
    tpu_device_destroy(memory);
    return status;
  }
  *out_device = memory;
  return NULL;
}

void tpui_log_failed_destroy(tpu_status_t status) {
  if (status == NULL) return;
  tpu_log(TPU_LOG_LAUNCH, "ignored: %s", tpu_status_message(status));
  tpu_status_free(status);
}

void tpu_device_destroy(tpu_device_t* device) {
  if (device == NULL) return;
  tpui_completions_free(device);
  while (device->free_buffers != NULL) {
    tpu_buffer_t* buffer = device->free_buffers;
    device->free_buffers = buffer->next_free;
    tpu_free(buffer);
  }
  if (device->client != NULL) {
    pjrt_client_destroy_args_t args = {.client = device->client};
    tpui_log_failed_destroy(tpu_pjrt_call(device->plugin, Client_Destroy, &args));
  }
  (void)pthread_mutex_destroy(&device->mutex);
  tpu_free(device->name);
  tpu_free(device->version);
  tpu_free(device);
}

const tpu_platform_t* tpu_device_platform(const tpu_device_t* device) { return device->platform; }
const char* tpu_device_name(const tpu_device_t* device) { return device->name; }
const char* tpu_device_plugin_version(const tpu_device_t* device) { return device->version; }

void tpu_device_memory_stats(tpu_device_t* device, tpu_memory_stats_t* out_stats) {
  tpu_mutex_lock(&device->mutex);
  *out_stats = device->stats;
  int64_t peak_before = device->peak_before;
  tpu_mutex_unlock(&device->mutex);
  pjrt_device_memory_stats_args_t args;
  // One that has no peak counts nothing.
  if (!ask_memory(device, &args) || !args.peak_bytes_in_use_is_set) return;
  out_stats->bytes_in_use = args.bytes_in_use;
  if (args.bytes_limit_is_set) out_stats->bytes_limit = args.bytes_limit;
  if (args.peak_bytes_in_use > peak_before) out_stats->bytes_peak = args.peak_bytes_in_use;
  if (out_stats->bytes_peak < args.bytes_in_use) out_stats->bytes_peak = args.bytes_in_use;
}

void tpu_device_memory_reset_peak(tpu_device_t* device) {
  pjrt_device_memory_stats_args_t args;
  bool known = ask_memory(device, &args) && args.peak_bytes_in_use_is_set;
  tpu_mutex_lock(&device->mutex);
  if (known) device->peak_before = args.peak_bytes_in_use;
  device->stats.bytes_peak = device->stats.bytes_in_use;
  device->stats.buffers_peak = device->stats.buffers_in_use;
  tpu_mutex_unlock(&device->mutex);
}

tpu_status_t tpu_device_set_memory_share(tpu_device_t* device, double share) {
  if (!(share >= 0 && share <= 1)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a share of memory is from 0 to 1, not %g", share);
  }
  tpu_mutex_lock(&device->mutex);
  device->memory_share = share;
  tpu_mutex_unlock(&device->mutex);
  return NULL;
}
