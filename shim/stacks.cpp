#include "stacks.h"

#include <array>
#include <string>
#include <string_view>

#include "python_values.h"

namespace tpu_shim {

namespace {

// "/.../site-packages/torch/", whose frames are no user's.
std::string package_folder(const char* name) {
  PyRef module(PyImport_ImportModule(name));
  PyRef file(PyObject_GetAttrString(module.get(), "__file__"));
  const char* path = PyUnicode_AsUTF8(file.get());
  if (path == nullptr) throw_python_error();
  const std::string_view text(path);
  return std::string(text.substr(0, text.rfind('/') + 1));
}

bool is_users(std::string_view file) {
  static const auto* folders =
      new std::array<std::string, 2>{package_folder("torch"), package_folder("torch_tpu")};
  for (const std::string& folder : *folders) {
    if (file.substr(0, folder.size()) == folder) return false;
  }
  return true;
}

PyFrameObject* innermost_frame() {
  if (PyFrameObject* mine = PyThreadState_GetFrame(PyThreadState_Get())) return mine;
  // The newest thread comes first, so that the main one is the last.
  PyFrameObject* frame = nullptr;
  PyThreadState* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  for (; thread != nullptr; thread = PyThreadState_Next(thread)) {
    PyFrameObject* other = PyThreadState_GetFrame(thread);
    if (other == nullptr) continue;
    Py_XDECREF(reinterpret_cast<PyObject*>(frame));
    frame = other;
  }
  return frame;
}

std::string place_of(PyFrameObject* frame, bool* out_users) {
  PyRef code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.get())->co_filename);
  if (file == nullptr) throw_python_error();
  *out_users = is_users(file);
  return std::string(file) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
}

// "" when no thread runs Python.
std::string python_line() {
  Gil gil;
  std::string innermost;
  PyFrameObject* frame = innermost_frame();
  while (frame != nullptr) {
    PyRef owned(reinterpret_cast<PyObject*>(frame));
    bool users = false;
    std::string place = place_of(frame, &users);
    if (users) return place;
    if (innermost.empty()) innermost = std::move(place);
    frame = PyFrame_GetBack(frame);
  }
  return innermost;
}

}  // namespace

void note_python_line() {
  const std::string line = python_line();
  tpu_location_t location = 0;
  if (!line.empty()) TPU_THROW_IF_ERROR(tpu_location_intern(line.c_str(), &location));
  tpu_location_set(location);
}

std::string recorded_here() {
  if (!tpu_engine_traces(engine())) return "";
  const std::string line = python_line();
  return line.empty() ? line : " (recorded at " + line + ")";
}

}  // namespace tpu_shim
