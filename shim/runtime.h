// The engine as the shim sees it: made on first use, and statuses turned into PyTorch's exceptions.
//
// Nothing here loads a plugin until the first tensor with content is made.
#ifndef TPU_SHIM_RUNTIME_H_
#define TPU_SHIM_RUNTIME_H_

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <string>

#include "tpu_core.h"

namespace tpu_shim {

constexpr c10::DeviceType kTpu = c10::DeviceType::PrivateUse1;

extern std::atomic<tpu_engine_t*> g_engine;

// Makes the engine. Throws when no plugin is known, when it cannot be loaded, or in a forked child
// of a process that had one.
tpu_engine_t* start_engine();

inline tpu_engine_t* engine() {
  tpu_engine_t* e = g_engine.load(std::memory_order_acquire);
  return C10_LIKELY(e != nullptr) ? e : start_engine();
}
inline bool engine_started() { return g_engine.load(std::memory_order_acquire) != nullptr; }

// "cpu", "tpu" or "cuda"; throws for other words.
tpu_platform_kind_t platform_kind(const std::string& name);
// The plugin that start_engine loads when the environment names none. RuntimeError once started.
// `chips`: TPUs on this machine's bus.
void set_plugin(std::string path, std::string platform, int chips);
// False when neither the environment nor set_plugin names one.
bool get_plugin(std::string* path, std::string* platform);
// Devices that the plugin will find, as far as can be told without starting it: the machine's TPUs
// for libtpu, else 1; 0 without a plugin.
int visible_chips();

// True in a forked child of a process that had an engine: its threads and device are gone.
bool in_bad_fork();

// The eager mode, also before the engine exists. RuntimeError if the environment names no mode.
tpu_eager_mode_t eager_mode();
void set_eager_mode(tpu_eager_mode_t mode);

// Throws the exception for a failed status and frees it: RESOURCE_EXHAUSTED is OutOfMemoryError,
// ABORTED torch.distributed.DistBackendError, UNIMPLEMENTED NotImplementedError, OUT_OF_RANGE
// torch_tpu.errors.IndexError, others RuntimeError.
[[noreturn]] void throw_status(tpu_status_t status);

// Status -> exception.
#define TPU_THROW_IF_ERROR(expr)                                                               \
  do {                                                                                         \
    tpu_status_t tpu_shim_status_ = (expr);                                                    \
    if (TPU_UNLIKELY(tpu_shim_status_ != nullptr)) ::tpu_shim::throw_status(tpu_shim_status_); \
  } while (0)

}  // namespace tpu_shim

#endif  // TPU_SHIM_RUNTIME_H_
