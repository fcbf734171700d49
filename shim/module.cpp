// torch_tpu._C, whose functions stand in bindings.def. Loading it registers kernels, hooks and
// allocator with PyTorch; it starts no device and loads no plugin.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "adapter.h"
#include "base/alloc.h"
#include "base/events.h"
#include "compile/topology.h"
#include "debug_checks.h"
#include "decompose.h"
#include "dist_group.h"
#include "engine/ahead.h"
#include "fallback.h"
#include "generator.h"
#include "graph.h"
#include "graph_call.h"
#include "hooks.h"
#include "host_allocator.h"
#include "observer.h"
#include "precision.h"
#include "python_values.h"
#include "runtime.h"
#include "storage.h"

namespace tpu_shim {

namespace {

PyObject* text_or_none(const char* text) {
  if (text == nullptr) Py_RETURN_NONE;
  return PyUnicode_FromString(text);
}

void set_item(PyObject* dict, const char* key, PyObject* value) {
  PyRef owned(value);
  if (PyDict_SetItemString(dict, key, owned.get()) != 0) throw_python_error();
}
void set_int(PyObject* dict, const char* key, int64_t value) {
  set_item(dict, key, PyLong_FromLongLong(value));
}

void parse(PyObject* args, const char* format, ...) {
  va_list list;
  va_start(list, format);
  const int ok = PyArg_VaParse(args, format, list);
  va_end(list);
  if (!ok) throw_python_error();
}

// --- device ---

PyObject* py_set_plugin(PyObject* args) {
  const char* path = nullptr;
  const char* platform = "cpu";
  int chips = 0;
  parse(args, "s|si", &path, &platform, &chips);
  set_plugin(path, platform, chips);
  Py_RETURN_NONE;
}
PyObject* py_plugin(PyObject*) {
  std::string path, platform;
  if (!get_plugin(&path, &platform)) Py_RETURN_NONE;
  return Py_BuildValue("(ss)", path.c_str(), platform.c_str());
}
void py_init() { engine(); }
PyObject* py_is_initialized(PyObject*) { return PyBool_FromLong(engine_started()); }
PyObject* py_device_count(PyObject*) { return PyLong_FromLong(device_count()); }
PyObject* py_current_device(PyObject*) { return PyLong_FromLong(current_device()); }
c10::DeviceIndex index_argument(PyObject* args) {
  int index = -1;
  parse(args, "|i", &index);
  TORCH_CHECK_VALUE(index >= -1 && index <= std::numeric_limits<c10::DeviceIndex>::max(),
                    "invalid tpu device index ", index);
  return static_cast<c10::DeviceIndex>(index);
}
PyObject* py_checked_device(PyObject* args) {
  return PyLong_FromLong(checked_device_index(index_argument(args)));
}
PyObject* py_bind_device(PyObject* args) {
  return PyLong_FromLong(bind_device(index_argument(args)));
}
tpu_device_t* device() { return tpu_engine_device(engine()); }
PyObject* py_device_name(PyObject*) { return text_or_none(tpu_device_name(device())); }
PyObject* py_platform_name(PyObject*) { return text_or_none(tpu_device_platform(device())->name); }
PyObject* py_plugin_version(PyObject*) { return text_or_none(tpu_device_plugin_version(device())); }

// --- work ---

void py_flush() {
  if (engine_started()) TPU_THROW_IF_ERROR(tpu_engine_flush(engine(), false));
}
void py_synchronize() {
  if (engine_started()) TPU_THROW_IF_ERROR(tpu_engine_flush(engine(), true));
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
  without_gil([&] { set_eager_mode(mode); });
  Py_RETURN_NONE;
}

PyObject* py_program_folder(PyObject*) {
  return text_or_none(tpu_compiler_folder(tpu_engine_compiler(engine())));
}
PyObject* py_program_files(PyObject*) {
  tpu_strbuf_t lines{};
  if (engine_started()) {
    const tpu_status_t status = tpu_compiler_files(tpu_engine_compiler(engine()), &lines);
    if (status != nullptr) tpu_strbuf_free(&lines);
    TPU_THROW_IF_ERROR(status);
  }
  PyRef text(
      PyUnicode_FromStringAndSize(tpu_strbuf_text(&lines), static_cast<Py_ssize_t>(lines.size)));
  tpu_strbuf_free(&lines);
  return PyUnicode_Splitlines(text.get(), 0);
}

PyObject* py_compile_for(PyObject* args) {
  const char *plugin = nullptr, *platform = nullptr, *target = nullptr, *text = nullptr;
  int optimized = 0;
  parse(args, "ssss|p", &plugin, &platform, &target, &text, &optimized);
  tpu_compiled_t made{};
  const std::unique_ptr<tpu_compiled_t, void (*)(tpu_compiled_t*)> owner(&made, tpu_compiled_free);
  without_gil([&] {
    TPU_THROW_IF_ERROR(tpu_topology_compile(plugin, platform_kind(platform), target, text,
                                            std::strlen(text), optimized != 0, &made));
  });
  PyRef dict(PyDict_New());
  set_item(dict.get(), "flops", PyFloat_FromDouble(made.cost.flops));
  set_item(dict.get(), "traffic", PyFloat_FromDouble(made.cost.bytes));
  set_item(dict.get(), "transcendentals", PyFloat_FromDouble(made.cost.transcendentals));
  if (optimized != 0) {
    set_item(dict.get(), "optimized",
             PyBytes_FromStringAndSize(tpu_strbuf_text(&made.optimized),
                                       static_cast<Py_ssize_t>(made.optimized.size)));
  }
#define TPU_BYTES(name) set_int(dict.get(), #name, made.bytes.name)
  TPU_BYTES(code);
  TPU_BYTES(arguments);
  TPU_BYTES(outputs);
  TPU_BYTES(aliased);
  TPU_BYTES(temporaries);
  TPU_BYTES(peak);
  return dict.release();
}

// --- ahead of time ---

PyObject* py_ahead_begin(PyObject* args) {
  const char* platform = nullptr;
  parse(args, "s", &platform);
  const tpu_platform_t* target = tpu_platform_get(platform_kind(platform));
  without_gil([&] { TPU_THROW_IF_ERROR(tpu_engine_ahead_begin(engine())); });
  g_rounds_products.store(target->low_default_precision);
  Py_RETURN_NONE;
}

PyObject* py_ahead_declare(PyObject* args) {
  PyObject* list = nullptr;
  parse(args, "O!", &PyList_Type, &list);
  std::vector<tpu_operand_t> operands;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* object = PyList_GET_ITEM(list, i);
    TORCH_CHECK_TYPE(THPVariable_Check(object), "a list of tensors is needed");
    const at::Tensor& tensor = THPVariable_Unpack(object);
    TORCH_CHECK_VALUE(is_tpu(tensor), "a tensor on ", tensor.device(), " is not the device's");
    tensor_operand(tensor, &operands.emplace_back());
  }
  without_gil([&] {
    TPU_THROW_IF_ERROR(
        tpu_engine_ahead_declare(engine(), static_cast<int>(operands.size()), operands.data()));
  });
  Py_RETURN_NONE;
}

void end_of_ahead() {
  g_rounds_products.store(tpu_device_platform(device())->low_default_precision);
}

void py_ahead_cancel() {
  tpu_engine_ahead_cancel(engine());
  end_of_ahead();
}

// (number, external, given, dtype as NumPy's names would have it, sizes, bytes)
PyObject* ahead_value(const tpu_ahead_value_t& value) {
  const tpu_meta_t* meta = tpu_meta_get(value.meta);
  PyRef sizes(PyTuple_New(meta->rank));
  for (int i = 0; i < meta->rank; ++i) {
    PyTuple_SET_ITEM(sizes.get(), i, PyLong_FromLongLong(meta->sizes[i]));
  }
  return Py_BuildValue("(IOOsOL)", value.number, value.external ? Py_True : Py_False,
                       value.given ? Py_True : Py_False, tpu_dtype_hlo(meta->dtype), sizes.get(),
                       static_cast<long long>(tpu_meta_bytes(meta)));
}

PyObject* ahead_values(const tpu_ahead_value_t* values, uint32_t count) {
  PyRef list(PyList_New(count));
  for (uint32_t k = 0; k < count; ++k) {
    PyObject* item = ahead_value(values[k]);
    if (item == nullptr) throw_python_error();
    PyList_SET_ITEM(list.get(), k, item);
  }
  return list.release();
}

PyObject* py_ahead_end(PyObject* args) {
  const char* platform = nullptr;
  parse(args, "s", &platform);
  const tpu_platform_kind_t kind = platform_kind(platform);
  tpu_ahead_t* made = nullptr;
  tpu_status_t status = nullptr;
  without_gil([&] { status = tpu_engine_ahead_end(engine(), kind, &made); });
  end_of_ahead();
  TPU_THROW_IF_ERROR(status);
  const std::unique_ptr<tpu_ahead_t, void (*)(tpu_ahead_t*)> owner(made, tpu_ahead_free);
  PyRef list(PyList_New(made->launch_count));
  for (uint32_t i = 0; i < made->launch_count; ++i) {
    const tpu_ahead_launch_t& launch = made->launches[i];
    PyRef inputs(ahead_values(launch.inputs, launch.input_count));
    PyRef outputs(ahead_values(launch.outputs, launch.output_count));
    PyObject* item = Py_BuildValue("(sOO)", launch.text, inputs.get(), outputs.get());
    if (item == nullptr) throw_python_error();
    PyList_SET_ITEM(list.get(), i, item);
  }
  return list.release();
}

// --- graphs ---

constexpr const char* kGraph = "torch_tpu.graph";

Graph* graph_in(PyObject* capsule) {
  void* graph = PyCapsule_GetPointer(capsule, kGraph);
  if (graph == nullptr) throw_python_error();
  return static_cast<Graph*>(graph);
}
PyObject* py_graph_new(PyObject*) {
  return PyCapsule_New(new Graph(), kGraph, [](PyObject* capsule) { delete graph_in(capsule); });
}
// The graph and the list that most of these functions take.
Graph* parse_graph(PyObject* args, PyObject** list) {
  PyObject* capsule = nullptr;
  parse(args, "OO", &capsule, list);
  return graph_in(capsule);
}
Graph* parse_graph_and_list(PyObject* args, PyObject** list) {
  Graph* graph = parse_graph(args, list);
  TORCH_CHECK_TYPE(PyList_CheckExact(*list), "a graph takes its arguments in a list");
  return graph;
}
PyObject* py_graph_run(PyObject* args) {
  PyObject* list = nullptr;
  Graph* graph = parse_graph_and_list(args, &list);
  const auto count = static_cast<size_t>(PyList_GET_SIZE(list));
  PyObject* results = graph->run(PySequence_Fast_ITEMS(list), count, list);
  if (results == nullptr) Py_RETURN_NONE;
  return results;
}
PyObject* py_graph_call(PyObject* args) {
  PyObject *capsule = nullptr, *constants = nullptr, *written = nullptr, *slow = nullptr;
  parse(args, "OO!O!O", &capsule, &PyTuple_Type, &constants, &PyTuple_Type, &written, &slow);
  std::vector<size_t> places;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(written); ++k) {
    places.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(written, k)));
  }
  if (PyErr_Occurred() != nullptr) throw_python_error();
  return make_graph_call(capsule, graph_in(capsule), constants, std::move(places), slow);
}
PyObject* py_graph_begin(PyObject* args) {
  PyObject* list = nullptr;
  Graph* graph = parse_graph_and_list(args, &list);
  return PyBool_FromLong(graph->begin(list));
}
PyObject* py_graph_end(PyObject* args) {
  PyObject* results = nullptr;
  Graph* graph = parse_graph(args, &results);
  return PyUnicode_FromString(graph->end(results).c_str());
}
PyObject* py_graph_cancel(PyObject* args) {
  PyObject* capsule = nullptr;
  parse(args, "O", &capsule);
  graph_in(capsule)->cancel();
  Py_RETURN_NONE;
}
PyObject* py_graph_templates(PyObject* args) {
  PyObject* capsule = nullptr;
  parse(args, "O", &capsule);
  return PyLong_FromSize_t(graph_in(capsule)->template_count());
}

PyObject* py_graph_replays(PyObject* args) {
  PyObject* capsule = nullptr;
  parse(args, "O", &capsule);
  return PyLong_FromUnsignedLongLong(graph_in(capsule)->replay_count());
}

PyObject* py_set_observer(PyObject* args) {
  PyObject* observer = nullptr;
  parse(args, "O", &observer);
  set_observer(observer);
  Py_RETURN_NONE;
}

// --- torch.distributed ---

PyObject* py_make_process_group(PyObject* args) {
  PyObject* gloo = nullptr;
  int rank = 0, size = 0;
  long long timeout_ms = 0;
  parse(args, "OiiL", &gloo, &rank, &size, &timeout_ms);
  return make_process_group(gloo, rank, size, timeout_ms);
}

// --- numbers ---

PyObject* py_memory_stats(PyObject*) {
  tpu_memory_stats_t stats{};
  if (engine_started()) tpu_device_memory_stats(device(), &stats);
  PyRef dict(PyDict_New());
#define TPU_STAT(name) set_int(dict.get(), #name, stats.name)
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
PyObject* py_set_memory_share(PyObject* args) {
  double share = 0;
  parse(args, "d", &share);
  TPU_THROW_IF_ERROR(tpu_device_set_memory_share(tpu_engine_device(engine()), share));
  Py_RETURN_NONE;
}
PyObject* py_host_memory_stats(PyObject*) {
  const at::HostStats stats = host_allocator()->get_stats();
  PyRef dict(PyDict_New());
  const auto add = [&](const std::string& name, const c10::CachingAllocator::Stat& stat) {
    set_int(dict.get(), (name + "current").c_str(), stat.current);
    set_int(dict.get(), (name + "peak").c_str(), stat.peak);
    set_int(dict.get(), (name + "allocated").c_str(), stat.allocated);
    set_int(dict.get(), (name + "freed").c_str(), stat.freed);
  };
  add("allocations_", stats.allocations);
  add("bytes_", stats.allocated_bytes);
  return dict.release();
}
PyObject* py_host_memory_reset(PyObject* args) {
  const char* what = nullptr;
  parse(args, "s", &what);
  const std::string_view which(what);
  TORCH_CHECK_VALUE(which == "peak" || which == "accumulated", "host_memory_reset: '", what, "'");
  if (which == "peak") host_allocator()->reset_peak_stats();
  if (which == "accumulated") host_allocator()->reset_accumulated_stats();
  Py_RETURN_NONE;
}
void py_await_builds() {
  if (engine_started()) TPU_THROW_IF_ERROR(tpu_engine_await_builds(engine()));
}
void py_stop_builds() {
  if (engine_started()) tpu_engine_stop_builds(engine());
}
void py_empty_cache() { allocator()->emptyCache(); }
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
  PyRef dict(PyDict_New());
  TPU_STAT(records);
  TPU_STAT(predicted);
  TPU_STAT(flushes);
  TPU_STAT(window_hits);
  TPU_STAT(window_plans);
  TPU_STAT(interpretations);
  TPU_STAT(launches);
  return dict.release();
}
PyObject* py_compile_stats(PyObject*) {
  tpu_compile_stats_t stats{};
  if (engine_started()) tpu_engine_compile_stats(engine(), &stats);
  PyRef dict(PyDict_New());
  TPU_STAT(requests);
  TPU_STAT(memory_hits);
  TPU_STAT(disk_hits);
  TPU_STAT(compiles);
  TPU_STAT(disk_writes);
  TPU_STAT(memory_drops);
  TPU_STAT(disk_rejects);
#undef TPU_STAT
  tpu_engine_stats_t launched{};
  if (engine_started()) tpu_engine_stats(engine(), &launched);
  set_int(dict.get(), "interpreted_windows", launched.interpretations);
  set_int(dict.get(), "compiled_windows", launched.flushes - launched.interpretations);
  set_item(dict.get(), "compile_seconds", PyFloat_FromDouble(stats.compile_seconds));
  set_item(dict.get(), "disk_load_seconds", PyFloat_FromDouble(stats.disk_load_seconds));
  return dict.release();
}
PyObject* py_reasons(PyObject* args) {
  unsigned long long since = 0;
  parse(args, "|K", &since);
  tpu_strbuf_t lines{};
  uint64_t next = since;
  if (engine_started()) {
    const tpu_status_t status = tpu_engine_reasons(engine(), since, &lines, &next);
    if (status != nullptr) tpu_strbuf_free(&lines);
    TPU_THROW_IF_ERROR(status);
  }
  PyRef text(
      PyUnicode_FromStringAndSize(tpu_strbuf_text(&lines), static_cast<Py_ssize_t>(lines.size)));
  tpu_strbuf_free(&lines);
  PyRef list(PyUnicode_Splitlines(text.get(), 0));
  return Py_BuildValue("(KO)", static_cast<unsigned long long>(next), list.get());
}

PyObject* py_tell_reasons(PyObject* args) {
  PyObject* function = nullptr;
  parse(args, "O", &function);
  set_reason_reader(function);
  Py_RETURN_NONE;
}

PyObject* py_events_start(PyObject*) {
  tpu_events_start();
  Py_RETURN_NONE;
}
PyObject* py_events_stop(PyObject*) {
  tpu_event_t* events = nullptr;
  size_t count = 0, dropped = 0;
  TPU_THROW_IF_ERROR(tpu_events_stop(&events, &count, &dropped));
  const std::unique_ptr<tpu_event_t, decltype(&tpu_free)> owner(events, &tpu_free);
  PyRef list(PyList_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < count; ++i) {
    const tpu_event_t& e = events[i];
    PyRef item(Py_BuildValue("(ssiLLL)", tpu_event_kind_name(e.kind), e.name, e.thread,
                             static_cast<long long>(e.begin_ns), static_cast<long long>(e.end_ns),
                             static_cast<long long>(e.size)));
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item.release());
  }
  return list.release();
}

PyObject* py_window_stats(PyObject*) {
  tpu_window_info_t* windows = nullptr;
  size_t count = 0;
  if (engine_started()) TPU_THROW_IF_ERROR(tpu_engine_windows(engine(), &windows, &count));
  const std::unique_ptr<tpu_window_info_t, decltype(&tpu_free)> owner(windows, &tpu_free);
  std::sort(windows, windows + count, [](const tpu_window_info_t& a, const tpu_window_info_t& b) {
    return a.last_use > b.last_use;
  });
  PyRef list(PyList_New(0));
  for (size_t i = 0; i < count; ++i) {
    const tpu_window_info_t& w = windows[i];
    PyRef item(Py_BuildValue(
        "{sIsssssIsIsKsIsIsN}", "records", w.record_count, "first", tpu_op_info(w.first_op)->name,
        "last", tpu_op_info(w.last_op)->name, "interpreted", w.interpreted, "interpretations",
        w.most_interpretations, "compiled", static_cast<unsigned long long>(w.compiled), "programs",
        w.program_count, "sets", w.set_count, "building", PyBool_FromLong(w.is_building)));
    if (PyList_Append(list.get(), item.get()) != 0) throw_python_error();
  }
  return list.release();
}
PyObject* py_reset_stats(PyObject*) {
  if (engine_started()) tpu_engine_reset_stats(engine());
  Py_RETURN_NONE;
}
PyObject* py_fallback_stats(PyObject*) {
  PyRef dict(PyDict_New());
  for (const auto& [name, count] : fallback_counts()) set_int(dict.get(), name.c_str(), count);
  return dict.release();
}
PyObject* py_reset_fallback_stats(PyObject*) {
  reset_fallback_counts();
  Py_RETURN_NONE;
}
PyObject* py_decomposition_stats(PyObject*) {
  PyRef dict(PyDict_New());
  for (const auto& [name, counts] : decomposition_counts()) {
    PyRef item(PyDict_New());
    set_int(item.get(), "traced", counts.traced);
    set_int(item.get(), "replayed", counts.replayed);
    set_item(dict.get(), name.c_str(), item.release());
  }
  return dict.release();
}
PyObject* py_reset_decomposition_stats(PyObject*) {
  reset_decomposition_counts();
  Py_RETURN_NONE;
}
void py_clear_cache() {
  if (engine_started()) tpu_engine_clear_cache(engine());
}

// --- tables ---

PyObject* py_default_generator(PyObject* args) {
  checked_device_index(index_argument(args));
  return THPGenerator_Wrap(default_generator());
}
PyObject* env_value(tpu_env_t id) {
  const char* text = tpu_env_text(id);
  return text_or_none(text);
}
PyObject* py_env_table(PyObject*) {
  PyRef list(PyList_New(0));
  for (int id = 0; id < TPU_ENV_COUNT; ++id) {
    const auto row = static_cast<tpu_env_t>(id);
    PyRef item(Py_BuildValue("(sNs)", tpu_env_name(row), env_value(row), tpu_env_source(row)));
    if (PyList_Append(list.get(), item.get()) != 0) throw_python_error();
  }
  return list.release();
}
tpu_env_t find_env(const char* name) {
  const tpu_env_t id = tpu_env_find(name);
  if (id == TPU_ENV_COUNT) {
    PyErr_Format(PyExc_KeyError, "'%s' is not in the environment table", name);
    throw_python_error();
  }
  return id;
}
PyObject* py_own_precision(PyObject*) {
  const OwnPrecision own = own_precision();
  return Py_BuildValue("(ii)", own.matmul, own.conv);
}
PyObject* py_set_own_precision(PyObject* args) {
  OwnPrecision own;
  parse(args, "ii", &own.matmul, &own.conv);
  for (int level : {own.matmul, own.conv}) {
    TORCH_CHECK_VALUE(level >= -1 && level <= TPU_PRECISION_DEFAULT, "no precision is ", level);
  }
  set_own_precision(own);
  Py_RETURN_NONE;
}
PyObject* py_env_value(PyObject* args) {
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
PyObject* py_expect_nonfinite(PyObject* args) {
  int expected = 0;
  parse(args, "p", &expected);
  if (!engine_started()) Py_RETURN_FALSE;
  tpu_engine_expect_nonfinite(engine(), false);
  const bool looks = looks_for_nonfinite();
  tpu_engine_expect_nonfinite(engine(), expected != 0);
  return PyBool_FromLong(looks);
}
PyObject* py_op_table(PyObject*) {
  PyRef list(PyList_New(0));
  for (tpu_op_t row = 1; row < tpu_op_count(); ++row) {
    const tpu_op_info_t* info = tpu_op_info(row);
    PyRef item(Py_BuildValue("(sssss)", info->name, info->aten, info->family_text, info->flags_text,
                             info->opinfo));
    if (PyList_Append(list.get(), item.get()) != 0) throw_python_error();
  }
  return list.release();
}
PyObject* py_unregistered_ops(PyObject*) {
  PyRef list(PyList_New(0));
  for (const std::string& name : unregistered_ops()) {
    PyRef item(PyUnicode_FromString(name.c_str()));
    if (PyList_Append(list.get(), item.get()) != 0) throw_python_error();
  }
  return list.release();
}

// --- the module ---

// Bindings may throw C++ exceptions; these turn them into Python's.
template <PyObject* (*function)(PyObject*)>
PyObject* call_KEEPS_GIL(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  return function(args);
  END_HANDLE_TH_ERRORS
}
template <void (*function)()>
PyObject* call_DROPS_GIL(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  without_gil(function);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

constexpr int calling_convention(std::string_view signature) {
  return signature.substr(0, 2) == "()" ? METH_NOARGS : METH_VARARGS;
}

#define TPU_BINDING(name, gil, signature, doc) \
  {#name, call_##gil<py_##name>, calling_convention(signature), #name signature "\n\n" doc},
PyMethodDef g_methods[] = {
#include "bindings.def"
    {nullptr, nullptr, 0, nullptr}};
#undef TPU_BINDING

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
