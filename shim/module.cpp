// torch_tpu._C: what Python needs from the shim. Loading it registers kernels, hooks and allocator
// with PyTorch; it starts no device and loads no plugin.
//
// clang-format off
//   set_plugin(path: str, platform: str = "cpu") -> None    plugin that the first use loads, unless
//                                     TORCH_TPU_PJRT_PLUGIN names one; platform "cpu", "tpu" or "cuda"
//   plugin() -> (path, platform) | None     what will be or was loaded
//   init() -> None                    starts the device now; RuntimeError with the reason if it cannot
//   is_initialized() -> bool
//   device_count() -> int             1 when a plugin is known, else 0; starts nothing
//   current_device() -> int           always 0
//   set_device(index: int) -> None    RuntimeError for an index that does not exist
//   device_name() -> str              starts the device
//   platform_name() -> str            "cpu", "tpu", "cuda"; starts the device
//   plugin_version() -> str           starts the device
//   flush() -> None                   launches what is recorded
//   synchronize() -> None             flush, then wait; raises the error of earlier work
//   get_eager_mode() -> str           a name of torch.tpu.EagerMode; starts nothing
//   set_eager_mode(mode: str) -> None    such a name, "debug", "strict" or "fused"
//   memory_stats() -> dict[str, int]  bytes_in_use, bytes_peak, bytes_limit, bytes_total,
//                                     buffers_in_use, buffers_peak, buffers_total; zeros before init
//   memory_reset_peak() -> None
//   empty_cache() -> None             flushes, so that dead values are dropped
//   content_state(tensor) -> str      "recorded", "launched", "ready" or "failed"
//   engine_stats() -> dict[str, int]  records, predicted, flushes, window_hits, window_plans, launches
//   compile_stats() -> dict           requests, memory_hits, disk_hits, compiles, disk_writes,
//                                     disk_rejects (int), compile_seconds, disk_load_seconds (float)
//   reset_stats() -> None             engine and compile numbers to zero
//   fallback_stats() -> dict[str, int]   host runs per op name since start or reset
//   reset_fallback_stats() -> None
//   decomposition_stats() -> dict[str, dict[str, int]]   per op name: traced, replayed
//   reset_decomposition_stats() -> None
//   clear_cache() -> None             forgets plans and compiled programs in memory, not on disk
//   default_generator(index: int = 0) -> torch.Generator
//   env_table() -> list[(name, value: str | None, source: str)]   every row of env_table.def
//   env_get(name: str) -> str | None  effective value; KeyError for a name not in the table
//   env_override(name: str, value: str | None) -> None    None goes back to the environment
//   op_table() -> list[(name, aten: str, family: int, flags: int, opinfo: str)]
//   after_fork() -> None              call in a forked child: later use raises RuntimeError
//   unregistered_ops() -> list[str]   names in the op table without a kernel, each with the reason
//   __version__: str                  of the core; torch_tpu/_version.py says it
// clang-format on
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>

#include <functional>
#include <string>

#include "adapter.h"
#include "decompose.h"
#include "fallback.h"
#include "generator.h"
#include "hooks.h"
#include "runtime.h"
#include "storage.h"

namespace tpu_shim {

namespace {

// Lets other Python threads run while the engine compiles, launches or waits.
struct WithoutGil {
  WithoutGil() : state(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state); }
  PyThreadState* state;
};

// Owns a new reference while a container is being filled.
struct Ref {
  explicit Ref(PyObject* made) : object(made) {
    if (object == nullptr) throw python_error();
  }
  ~Ref() { Py_XDECREF(object); }
  PyObject* release() {
    PyObject* result = object;
    object = nullptr;
    return result;
  }
  PyObject* object;
};

PyObject* text_or_none(const char* text) {
  if (text == nullptr) Py_RETURN_NONE;
  return PyUnicode_FromString(text);
}

void set_item(PyObject* dict, const char* key, PyObject* value) {
  Ref owned(value);
  if (PyDict_SetItemString(dict, key, owned.object) != 0) throw python_error();
}
void set_int(PyObject* dict, const char* key, int64_t value) {
  set_item(dict, key, PyLong_FromLongLong(value));
}

// Every binding is a plain function that may throw C++ exceptions; this turns them into Python's.
template <PyObject* (*function)(PyObject*)>
PyObject* binding(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  return function(args);
  END_HANDLE_TH_ERRORS
}

void parse(PyObject* args, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int ok = PyArg_VaParse(args, format, list);
  va_end(list);
  if (!ok) throw python_error();
}

// --- device ---

PyObject* py_set_plugin(PyObject* args) {
  const char* path = nullptr;
  const char* platform = "cpu";
  parse(args, "s|s", &path, &platform);
  set_plugin(path, platform);
  Py_RETURN_NONE;
}
PyObject* py_plugin(PyObject*) {
  std::string path, platform;
  if (!get_plugin(&path, &platform)) Py_RETURN_NONE;
  return Py_BuildValue("(ss)", path.c_str(), platform.c_str());
}
PyObject* py_init(PyObject*) {
  WithoutGil release;
  engine();
  return nullptr;
}
PyObject* py_is_initialized(PyObject*) { return PyBool_FromLong(engine_started()); }
PyObject* py_device_count(PyObject*) { return PyLong_FromLong(device_count()); }
PyObject* py_current_device(PyObject*) { return PyLong_FromLong(current_device()); }
PyObject* py_set_device(PyObject* args) {
  int index = 0;
  parse(args, "i", &index);
  TORCH_CHECK(index >= -1 && index < 128, "invalid tpu device index ", index);
  set_current_device(static_cast<c10::DeviceIndex>(index));
  Py_RETURN_NONE;
}
tpu_device_t* device() { return tpu_engine_device(engine()); }
PyObject* py_device_name(PyObject*) { return text_or_none(tpu_device_name(device())); }
PyObject* py_platform_name(PyObject*) { return text_or_none(tpu_device_platform(device())->name); }
PyObject* py_plugin_version(PyObject*) { return text_or_none(tpu_device_plugin_version(device())); }
PyObject* py_after_fork(PyObject*) {
  mark_bad_fork();
  Py_RETURN_NONE;
}

// --- work ---

PyObject* py_flush(PyObject*) {
  if (engine_started()) {
    WithoutGil release;
    TPU_THROW_IF_ERROR(tpu_engine_flush(engine(), false));
  }
  Py_RETURN_NONE;
}
PyObject* py_synchronize(PyObject*) {
  if (engine_started()) {
    WithoutGil release;
    TPU_THROW_IF_ERROR(tpu_engine_flush(engine(), true));
  }
  Py_RETURN_NONE;
}
PyObject* py_get_eager_mode(PyObject*) {
  return PyUnicode_FromString(tpu_eager_mode_name(eager_mode()));
}
PyObject* py_set_eager_mode(PyObject* args) {
  const char* name = nullptr;
  parse(args, "s", &name);
  tpu_eager_mode_t mode;
  const tpu_status_t status = tpu_eager_mode_parse(name, &mode);
  const std::string problem = tpu_status_message(status);
  tpu_status_free(status);
  TORCH_CHECK_VALUE(problem.empty(), problem);
  WithoutGil release;
  set_eager_mode(mode);
  return nullptr;
}

// --- numbers ---

PyObject* py_memory_stats(PyObject*) {
  tpu_memory_stats_t stats{};
  if (engine_started()) tpu_device_memory_stats(device(), &stats);
  Ref dict(PyDict_New());
#define TPU_STAT(name) set_int(dict.object, #name, stats.name)
  TPU_STAT(bytes_in_use);
  TPU_STAT(bytes_peak);
  TPU_STAT(bytes_limit);
  TPU_STAT(bytes_total);
  TPU_STAT(buffers_in_use);
  TPU_STAT(buffers_peak);
  TPU_STAT(buffers_total);
  return dict.release();
}
PyObject* py_memory_reset_peak(PyObject*) {
  if (engine_started()) tpu_device_memory_reset_peak(device());
  Py_RETURN_NONE;
}
PyObject* py_empty_cache(PyObject*) {
  WithoutGil release;
  allocator()->emptyCache();
  return nullptr;
}
PyObject* py_content_state(PyObject* args) {
  static const char* const names[] = {"recorded", "launched", "ready", "failed"};
  PyObject* object = nullptr;
  parse(args, "O", &object);
  TORCH_CHECK_TYPE(THPVariable_Check(object), "content_state: needs a tensor");
  const at::Tensor& tensor = THPVariable_Unpack(object);
  TORCH_CHECK_VALUE(is_tpu(tensor), "content_state: needs a tensor on the tpu device, not on ",
                    tensor.device());
  if (tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes() == 0) {
    return PyUnicode_FromString("ready");
  }
  return PyUnicode_FromString(names[tpu_storage_state(locate(tensor).storage)]);
}
PyObject* py_engine_stats(PyObject*) {
  tpu_engine_stats_t stats{};
  if (engine_started()) tpu_engine_stats(engine(), &stats);
  Ref dict(PyDict_New());
  TPU_STAT(records);
  TPU_STAT(predicted);
  TPU_STAT(flushes);
  TPU_STAT(window_hits);
  TPU_STAT(window_plans);
  TPU_STAT(launches);
  return dict.release();
}
PyObject* py_compile_stats(PyObject*) {
  tpu_compile_stats_t stats{};
  if (engine_started()) tpu_engine_compile_stats(engine(), &stats);
  Ref dict(PyDict_New());
  TPU_STAT(requests);
  TPU_STAT(memory_hits);
  TPU_STAT(disk_hits);
  TPU_STAT(compiles);
  TPU_STAT(disk_writes);
  TPU_STAT(disk_rejects);
#undef TPU_STAT
  set_item(dict.object, "compile_seconds", PyFloat_FromDouble(stats.compile_seconds));
  set_item(dict.object, "disk_load_seconds", PyFloat_FromDouble(stats.disk_load_seconds));
  return dict.release();
}
PyObject* py_reset_stats(PyObject*) {
  if (engine_started()) tpu_engine_reset_stats(engine());
  Py_RETURN_NONE;
}
PyObject* py_fallback_stats(PyObject*) {
  Ref dict(PyDict_New());
  for (const auto& [name, count] : fallback_counts()) set_int(dict.object, name.c_str(), count);
  return dict.release();
}
PyObject* py_reset_fallback_stats(PyObject*) {
  reset_fallback_counts();
  Py_RETURN_NONE;
}
PyObject* py_decomposition_stats(PyObject*) {
  Ref dict(PyDict_New());
  for (const auto& [name, counts] : decomposition_counts()) {
    Ref item(PyDict_New());
    set_int(item.object, "traced", counts.traced);
    set_int(item.object, "replayed", counts.replayed);
    set_item(dict.object, name.c_str(), item.release());
  }
  return dict.release();
}
PyObject* py_reset_decomposition_stats(PyObject*) {
  reset_decomposition_counts();
  Py_RETURN_NONE;
}
PyObject* py_clear_cache(PyObject*) {
  if (engine_started()) {
    WithoutGil release;
    tpu_engine_clear_cache(engine());
  }
  Py_RETURN_NONE;
}

// --- tables ---

PyObject* py_default_generator(PyObject* args) {
  int index = 0;
  parse(args, "|i", &index);
  TORCH_CHECK(index <= 0, "invalid tpu device index ", index);
  return THPGenerator_Wrap(default_generator());
}
PyObject* env_value(tpu_env_t id) {
  const char* text = tpu_env_text(id);
  return text_or_none(text);
}
PyObject* py_env_table(PyObject*) {
  Ref list(PyList_New(0));
  for (int id = 0; id < TPU_ENV_COUNT; ++id) {
    const auto row = static_cast<tpu_env_t>(id);
    Ref item(Py_BuildValue("(sNs)", tpu_env_name(row), env_value(row), tpu_env_source(row)));
    if (PyList_Append(list.object, item.object) != 0) throw python_error();
  }
  return list.release();
}
tpu_env_t find_env(const char* name) {
  const tpu_env_t id = tpu_env_find(name);
  if (id == TPU_ENV_COUNT) {
    PyErr_Format(PyExc_KeyError, "'%s' is not in the environment table", name);
    throw python_error();
  }
  return id;
}
PyObject* py_env_get(PyObject* args) {
  const char* name = nullptr;
  parse(args, "s", &name);
  return env_value(find_env(name));
}
PyObject* py_env_override(PyObject* args) {
  const char* name = nullptr;
  const char* value = nullptr;
  parse(args, "sz", &name, &value);
  TPU_THROW_IF_ERROR(tpu_env_override(find_env(name), value));
  Py_RETURN_NONE;
}
PyObject* py_op_table(PyObject*) {
  Ref list(PyList_New(0));
  for (int row = 1; row < TPU_OP_COUNT; ++row) {
    const tpu_op_info_t* info = tpu_op_info(static_cast<tpu_op_t>(row));
    Ref item(Py_BuildValue("(ssiis)", info->name, info->aten, static_cast<int>(info->family),
                           static_cast<int>(info->flags), info->opinfo));
    if (PyList_Append(list.object, item.object) != 0) throw python_error();
  }
  return list.release();
}
PyObject* py_unregistered_ops(PyObject*) {
  Ref list(PyList_New(0));
  for (const std::string& name : unregistered_ops()) {
    Ref item(PyUnicode_FromString(name.c_str()));
    if (PyList_Append(list.object, item.object) != 0) throw python_error();
  }
  return list.release();
}

// A function that gives up the GIL cannot make None itself: nullptr without an error means None.
template <PyObject* (*function)(PyObject*)>
PyObject* none_binding(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  function(args);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

#define TPU_METHOD(name) {#name, binding<py_##name>, METH_VARARGS, nullptr}
#define TPU_NONE_METHOD(name) {#name, none_binding<py_##name>, METH_VARARGS, nullptr}
PyMethodDef g_methods[] = {TPU_METHOD(set_plugin),
                           TPU_METHOD(plugin),
                           TPU_NONE_METHOD(init),
                           TPU_METHOD(is_initialized),
                           TPU_METHOD(device_count),
                           TPU_METHOD(current_device),
                           TPU_METHOD(set_device),
                           TPU_METHOD(device_name),
                           TPU_METHOD(platform_name),
                           TPU_METHOD(plugin_version),
                           TPU_METHOD(after_fork),
                           TPU_METHOD(flush),
                           TPU_METHOD(synchronize),
                           TPU_METHOD(get_eager_mode),
                           TPU_NONE_METHOD(set_eager_mode),
                           TPU_METHOD(memory_stats),
                           TPU_METHOD(memory_reset_peak),
                           TPU_NONE_METHOD(empty_cache),
                           TPU_METHOD(content_state),
                           TPU_METHOD(engine_stats),
                           TPU_METHOD(compile_stats),
                           TPU_METHOD(reset_stats),
                           TPU_METHOD(fallback_stats),
                           TPU_METHOD(decomposition_stats),
                           TPU_METHOD(reset_decomposition_stats),
                           TPU_METHOD(reset_fallback_stats),
                           TPU_METHOD(clear_cache),
                           TPU_METHOD(default_generator),
                           TPU_METHOD(env_table),
                           TPU_METHOD(env_get),
                           TPU_METHOD(env_override),
                           TPU_METHOD(op_table),
                           TPU_METHOD(unregistered_ops),
                           {nullptr, nullptr, 0, nullptr}};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT,
                        "torch_tpu._C",
                        "The PyTorch side of the tpu device.",
                        -1,
                        g_methods,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr};

}  // namespace

}  // namespace tpu_shim

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__C() {
  PyObject* module = PyModule_Create(&tpu_shim::g_module);
  if (module == nullptr) return nullptr;
  if (PyModule_AddStringConstant(module, "__version__", tpu_version()) == 0) return module;
  Py_DECREF(module);
  return nullptr;
}
