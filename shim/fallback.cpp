#include "fallback.h"

#include <ATen/Functions.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <mutex>
#include <string_view>

#include "argument_kind.h"
#include "base/log.h"
#include "debug_checks.h"
#include "decompose.h"
#include "host_calls.h"
#include "runtime.h"
#include "stacks.h"
#include "storage.h"
#include "with_tensors.h"

namespace tpu_shim {

namespace {

std::mutex g_mutex;
std::map<std::string, int64_t>& counts() {
  static auto* map = new std::map<std::string, int64_t>();
  return *map;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!run_decomposed(op, stack)) run_on_host(op, stack);
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "'", op.schema().operator_name(),
      "' with sparse tensors is not supported on the tpu device; use .to_dense() "
      "or move the tensor to the CPU");
}

// The key of the host's kernel. Some libraries register theirs for the CPU's autograd only, and it
// calls what is below.
c10::DispatchKey host_key(const c10::OperatorHandle& op) {
  if (op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) return c10::DispatchKey::CPU;
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasKernelForDispatchKey(c10::DispatchKey::AutogradCPU), "'", op.operator_name(),
      "' has no kernel for tpu tensors, and none for the CPU that could run in its place; its "
      "library must register one for PrivateUse1, CPU or CompositeExplicitAutograd");
  return c10::DispatchKey::AutogradCPU;
}

// Nothing that the operation gets is written in place, is a view's base or names a device.
bool only_reads(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    const auto kind = strip_optional(argument.real_type())->kind();
    if (kind == c10::TypeKind::DeviceObjType) return false;
    const bool out = argument.is_out() && kind == c10::TypeKind::TensorType;
    if (argument.alias_info() != nullptr && !out) return false;
  }
  return true;
}

struct OutArgument {
  at::Tensor on_device, on_host;
};

// Runs the host's kernel on the buffers themselves: they are read where they are, not copied.
void run_on_lent(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey key) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  at::Device device(kTpu);
  std::vector<OutArgument> outs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    (*stack)[first + i] = with_tensors((*stack)[first + i], [&](const at::Tensor& tensor) {
      if (!is_tpu(tensor)) return tensor;
      device = tensor.device();
      if (!arguments[i].is_out()) return lend_tensor(tensor);
      outs.push_back({tensor, at::empty_like(tensor, at::Device(at::kCPU))});
      return outs.back().on_host;
    });
  }
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
  for (const OutArgument& out : outs) at::_copy_from_and_resize(out.on_host, out.on_device);
  for (size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = with_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      for (const OutArgument& out : outs) {
        if (tensor.is_same(out.on_host)) return out.on_device;
      }
      return tensor.to(device);
    });
  }
}

}  // namespace

void note_host_run(const std::string& name) {
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    first = counts()[name]++ == 0;
  }
  const char* text = tpu_env_text(TPU_ENV_FALLBACK);
  const std::string_view mode = text != nullptr ? text : "allow";
  TORCH_CHECK_VALUE(mode == "allow" || mode == "warn" || mode == "error", "TORCH_TPU_FALLBACK: '",
                    mode, "' is no way to treat operations without a tpu kernel ('", name,
                    "' is one): use allow, warn or error");
  TORCH_CHECK_NOT_IMPLEMENTED(
      mode != "error", "'", name,
      "' has no tpu kernel and TORCH_TPU_FALLBACK=error forbids running it on "
      "the host; set TORCH_TPU_FALLBACK=allow, or move its inputs to the CPU");
  if (mode == "warn" && first) {
    TORCH_WARN("'", name,
               "' has no tpu kernel and runs on the host (TORCH_TPU_FALLBACK=warn reports each "
               "op once)");
  }
  if (first) tpu_log(TPU_LOG_FALLBACK, "%s runs on the host", name.c_str());
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = c10::toString(op.operator_name());
  note_host_run(name);
  const c10::DispatchKey key = host_key(op);
  HostCallLesson lesson;
  if (!looks_for_nonfinite() && record_host_call(op, key, stack, &lesson)) return;
  const bool check = looks_for_nonfinite() && all_finite(*stack, op.schema().arguments().size());
  if (only_reads(op.schema())) {
    run_on_lent(op, stack, key);
  } else {
    // A view made on the host would not share memory with its base: cpu_fallback refuses those.
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true, key);
  }
  lesson.learn(*stack);
  TORCH_CHECK(!check || all_finite(*stack, op.schema().returns().size()), "'", name,
              "' made NaN or infinity from finite inputs (TORCH_TPU_CHECK_NONFINITE=1)",
              recorded_here());
}

std::map<std::string, int64_t> fallback_counts() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return counts();
}

void reset_fallback_counts() {
  std::lock_guard<std::mutex> lock(g_mutex);
  counts().clear();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

// Core registers this for its own devices and leaves the private one to us: custom ops without an
// autograd formula then behave as on any device.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) {
  m.fallback(torch::autograd::basicAutogradNotImplementedFallback());
}

}  // namespace tpu_shim
