// Registration: which overloads the adapter serves.
#include "adapter.h"

#include <torch/library.h>

#include <atomic>
#include <memory>
#include <sstream>

#include "fallback.h"
#include "hot.h"
#include "overload.h"

namespace tpu_shim {

namespace {

std::vector<std::string>& unregistered() {
  static auto* names = new std::vector<std::string>();
  return *names;
}

c10::OperatorName operator_name(const std::string& text) {
  const size_t dot = text.find('.');
  return {"aten::" + text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1)};
}

// Plans are made at an overload's first call: import stays cheap.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(tpu_op_t row) : row_(row) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Overload* plan = plan_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(plan == nullptr)) plan = make(op);
    if (C10_UNLIKELY(!plan->obstacle().empty())) return run_on_host(op, stack);
    plan->run(stack);
  }

 private:
  Overload* make(const c10::OperatorHandle& op) {
    Overload* made = new Overload(row_, op);
    Overload* expected = nullptr;
    if (plan_.compare_exchange_strong(expected, made)) return made;
    delete made;
    return expected;
  }
  tpu_op_t row_;
  std::atomic<Overload*> plan_{nullptr};
};

// Overloads whose rows are not MANUAL, and that a file of the shim registers all the same.
bool has_own_kernel(const std::string& name) {
  for (const char* own : {"index.Tensor", "_index_put_impl_", "nonzero", "masked_select",
                          "convolution_backward_overrideable"}) {
    if (name == own) return true;
  }
  return has_hot_kernel(name);
}

// Registered once per overload, except what other files of the shim register themselves.
void register_row(torch::Library& m, tpu_op_t row) {
  const tpu_op_info_t* info = tpu_op_info(row);
  if ((info->flags & (TPU_OP_MANUAL | TPU_OP_INTERNAL)) != 0) return;
  std::istringstream names(info->aten);
  for (std::string name; names >> name;) {
    if (has_own_kernel(name)) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(operator_name(name));
    if (!op.has_value()) {
      unregistered().push_back(name + ": no such ATen overload");
    } else if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
               !op->hasKernelForDispatchKey(c10::DispatchKey::Autograd)) {
      unregistered().push_back(name +
                               ": composite with autograd of its parts; a kernel would lose it");
    } else {
      m.impl(name.c_str(),
             torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(row)));
    }
  }
}

}  // namespace

Overload* overload(tpu_op_t row, const char* name) {
  return new Overload(row, c10::Dispatcher::singleton().findSchema(operator_name(name)).value());
}

void run_boxed(Overload* o, torch::jit::Stack* stack) { o->run(stack); }

const std::vector<std::string>& unregistered_ops() { return unregistered(); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (tpu_op_t row = 1; row < tpu_op_count(); ++row) register_row(m, row);
}

}  // namespace tpu_shim
