#include <torch/csrc/utils/pybind.h>

#include "dist_group.h"

namespace tpu_shim {

PyObject* make_process_group(PyObject* gloo, int rank, int size, int64_t timeout_ms) {
  auto connection = py::cast<c10::intrusive_ptr<c10d::Backend>>(py::handle(gloo));
  auto group = c10::make_intrusive<ProcessGroupTpu>(std::move(connection), rank, size,
                                                    std::chrono::milliseconds(timeout_ms));
  return py::cast(c10::intrusive_ptr<c10d::Backend>(std::move(group))).release().ptr();
}

}  // namespace tpu_shim
