// Registration: which overloads the adapter serves.
#include "adapter.h"

#include <torch/library.h>

#include <atomic>
#include <iterator>
#include <memory>
#include <sstream>

#include "fallback.h"
#include "hot.h"
#include "overload.h"

namespace tpu_shim {

c10::OperatorName operator_name(const std::string& text) {
  const size_t dot = text.find('.');
  return {"aten::" + text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1)};
}

std::vector<std::string> names_of(tpu_op_t row) {
  std::istringstream text(tpu_op_info(row)->aten);
  return {std::istream_iterator<std::string>(text), {}};
}

namespace {

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

bool has_flag(tpu_op_t row, uint32_t flag) { return (tpu_op_info(row)->flags & flag) != 0; }

// Its autograd is that of the operations it is made of, which a kernel would hide.
bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::Autograd);
}

// Registered once per overload, except what other files of the shim register themselves.
void register_row(torch::Library& m, tpu_op_t row) {
  if (has_flag(row, TPU_OP_MANUAL | TPU_OP_INTERNAL)) return;
  for (const std::string& name : names_of(row)) {
    const auto op = c10::Dispatcher::singleton().findSchema(operator_name(name));
    if (has_hot_kernel(name) || !op.has_value() || is_composite(*op)) continue;
    m.impl(name.c_str(),
           torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(row)));
  }
}

// Why the device does not serve this overload of a row, or "".
std::string obstacle_of(tpu_op_t row, const std::string& name) {
  const auto op = c10::Dispatcher::singleton().findSchema(operator_name(name));
  if (!op.has_value()) return "no such ATen overload";
  if (is_composite(*op)) return "composite: a kernel would hide the autograd of its parts";
  if (!op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return "no kernel";
  return has_flag(row, TPU_OP_MANUAL) ? "" : Overload(row, *op).obstacle();
}

}  // namespace

Overload* overload(tpu_op_t row, const char* name) {
  return new Overload(row, c10::Dispatcher::singleton().findSchema(operator_name(name)).value());
}

void run_boxed(Overload* o, torch::jit::Stack* stack) { o->run(stack); }

std::vector<std::string> unregistered_ops() {
  std::vector<std::string> found;
  for (tpu_op_t row = 1; row < tpu_op_count(); ++row) {
    for (const std::string& name : names_of(row)) {
      const std::string obstacle = obstacle_of(row, name);
      if (!obstacle.empty()) found.push_back(name + ": " + obstacle);
    }
  }
  return found;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (tpu_op_t row = 1; row < tpu_op_count(); ++row) register_row(m, row);
}

}  // namespace tpu_shim
