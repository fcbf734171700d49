#include "runtime.h"

#include <pthread.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <stdexcept>

#include "hooks.h"
#include "host_ops.h"
#include "observer.h"
#include "precision.h"
#include "python_values.h"

namespace tpu_shim {

std::atomic<tpu_engine_t*> g_engine{nullptr};

namespace {

std::mutex g_mutex;
std::string g_plugin_path;
std::string g_plugin_platform = "cpu";
std::atomic<int> g_chips{0};  // TPUs on this machine's bus
std::atomic<bool> g_bad_fork{false};
// Mode asked for before the engine exists; -1: the environment decides.
std::atomic<int> g_early_mode{-1};

// The pool of the CPU plugin should be as large as PyTorch's own, so that comparisons are fair.
int thread_count() {
  int64_t threads = tpu_env_int(TPU_ENV_CPU_THREADS);
  if (threads <= 0) {
    const char* omp = std::getenv("OMP_NUM_THREADS");
    threads = omp != nullptr ? std::atoi(omp) : 0;
  }
  return threads > 0 && threads < 4096 ? static_cast<int>(threads) : 0;
}

// Autograd's worker threads run the backward passes that other threads asked for and wait for.
int64_t backward_number() { return int64_t{torch::autograd::get_current_graph_task_id()} + 1; }

// A forked child has the parent's memory but none of its threads: whatever the plugin would do
// there can wait forever. The next use comes to start_engine, which refuses.
void after_fork_in_child() {
  if (g_engine.exchange(nullptr) != nullptr) g_bad_fork.store(true);
}

}  // namespace

tpu_platform_kind_t platform_kind(const std::string& name) {
  if (name == "tpu") return TPU_PLATFORM_TPU;
  if (name == "cuda") return TPU_PLATFORM_CUDA;
  TORCH_CHECK(name == "cpu", "unknown platform '", name,
              "' (TORCH_TPU_PLATFORM): use tpu, cpu or cuda");
  return TPU_PLATFORM_CPU;
}

void set_plugin(std::string path, std::string platform, int chips) {
  std::lock_guard<std::mutex> lock(g_mutex);
  TORCH_CHECK(g_engine.load() == nullptr, "the tpu device is already running with plugin '",
              g_plugin_path, "'; choose the plugin before the first use of the device");
  platform_kind(platform);
  g_plugin_path = std::move(path);
  g_plugin_platform = std::move(platform);
  g_chips = chips;
}

bool get_plugin(std::string* path, std::string* platform) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const char* from_env = tpu_env_text(TPU_ENV_PJRT_PLUGIN);
  const char* pinned = tpu_env_text(TPU_ENV_PLATFORM);
  const bool env = from_env != nullptr && *from_env != '\0';
  *path = env ? std::string(from_env) : g_plugin_path;
  *platform = pinned != nullptr && *pinned != '\0' ? std::string(pinned) : g_plugin_platform;
  return !path->empty();
}

int visible_chips() {
  std::string path, platform;
  if (!get_plugin(&path, &platform)) return 0;
  // Other plugins for the platform may find their device elsewhere.
  const bool is_libtpu = path.substr(path.rfind('/') + 1) == "libtpu.so";
  const int chips = platform == "tpu" ? g_chips.load() : 0;
  return is_libtpu && platform == "tpu" ? chips : std::max(chips, 1);
}

tpu_engine_t* start_engine() {
  TORCH_CHECK(!g_bad_fork.load(),
              "the tpu device cannot be used in a forked child of a process that has used it; "
              "start processes with the 'spawn' method (torch.multiprocessing.set_start_method)");
  std::string path, platform;
  const bool known = get_plugin(&path, &platform);
  std::lock_guard<std::mutex> lock(g_mutex);
  if (tpu_engine_t* e = g_engine.load(std::memory_order_acquire)) return e;
  TORCH_CHECK(known,
              "no PJRT plugin was found for the tpu device. To run on the CPU: "
              "pip install --no-deps lammps-jax-pjrt-cpu==0.11.2. On a TPU: pip install libtpu. "
              "Or set TORCH_TPU_PJRT_PLUGIN to the path of a plugin.");
  tpu_device_options_t options{};
  options.plugin_path = path.c_str();
  options.platform = platform_kind(platform);
  options.threads = thread_count();
  options.memory_limit = tpu_env_int(TPU_ENV_MEMORY_LIMIT);
  options.no_chip = options.platform == TPU_PLATFORM_TPU && g_chips.load() == 0;
  options.index = current_device();
  tpu_engine_t* made = nullptr;
  TPU_THROW_IF_ERROR(tpu_engine_create(&options, &made));
  tpu_engine_set_stop(made, python_interrupts);
  tpu_engine_set_told(made, note_reason);
  tpu_engine_set_task(made, backward_number);
  const int early = g_early_mode.load();
  tpu_status_t status = tpu_engine_set_host_ops(made, host_ops());
  if (status == nullptr && early >= 0)
    status = tpu_engine_set_mode(made, static_cast<tpu_eager_mode_t>(early));
  if (status != nullptr) {
    tpu_engine_destroy(made);
    throw_status(status);
  }
  g_rounds_products.store(tpu_device_platform(tpu_engine_device(made))->low_default_precision);
  static std::once_flag fork_handler;
  std::call_once(fork_handler, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
  g_engine.store(made, std::memory_order_release);
  return made;
}

bool in_bad_fork() { return g_bad_fork.load(std::memory_order_relaxed); }

tpu_eager_mode_t eager_mode() {
  if (tpu_engine_t* e = g_engine.load(std::memory_order_acquire)) return tpu_engine_mode(e);
  const int early = g_early_mode.load();
  if (early >= 0) return static_cast<tpu_eager_mode_t>(early);
  tpu_eager_mode_t mode;
  TPU_THROW_IF_ERROR(tpu_eager_mode_default(&mode));
  return mode;
}

void set_eager_mode(tpu_eager_mode_t mode) {
  if (tpu_engine_t* e = g_engine.load(std::memory_order_acquire)) {
    TPU_THROW_IF_ERROR(tpu_engine_set_mode(e, mode));
  } else {
    g_early_mode.store(static_cast<int>(mode));
  }
}

void throw_status(tpu_status_t status) {
  const tpu_status_code_t code = tpu_status_code(status);
  const std::string text = tpu_status_message(status);
  tpu_status_free(status);
  switch (code) {
    case TPU_RESOURCE_EXHAUSTED: TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    case TPU_UNIMPLEMENTED: TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case TPU_ABORTED: TORCH_CHECK_WITH(DistBackendError, false, text);
    case TPU_CANCELLED: throw_interrupt(text);
    case TPU_OUT_OF_RANGE: throw_index_error(text);
    default: TORCH_CHECK(false, text);
  }
  // Unreachable: each branch throws, but the macros do not tell the compiler.
  throw std::runtime_error(text);
}

}  // namespace tpu_shim
