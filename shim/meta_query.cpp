#include "meta_query.h"

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PythonDispatcherTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <vector>

#include "storage.h"
#include "with_tensors.h"

namespace tpu_shim {

namespace {

// What must not see the question: it is not the user's call.
const c10::DispatchKeySet& hidden_keys() {
  static const c10::DispatchKeySet keys =
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Functionalize,
                           c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                           c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchVmapMode,
                           c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                           c10::DispatchKey::FuncTorchGradWrapper,
                           c10::DispatchKey::PythonDispatcher, c10::DispatchKey::PreDispatch,
                           c10::DispatchKey::Tracer});
  return keys;
}

// Takes the thread's dispatch modes, torch-function modes and Python dispatcher away for a while.
class NoModes {
 public:
  NoModes()
      : exclude_(hidden_keys()),
        function_state_(at::impl::PythonTorchFunctionTLS::get_disabled_state()),
        modes_(c10::impl::TorchDispatchModeTLS::get_state()),
        python_dispatcher_(c10::impl::PythonDispatcherTLS::get_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(
        at::impl::TorchFunctionDisabledState::ALL_DISABLED);
    c10::impl::TorchDispatchModeTLS::set_state({});
    c10::impl::PythonDispatcherTLS::set_state(nullptr);
  }
  ~NoModes() {
    c10::impl::PythonDispatcherTLS::set_state(python_dispatcher_);
    c10::impl::TorchDispatchModeTLS::set_state(std::move(modes_));
    at::impl::PythonTorchFunctionTLS::set_disabled_state(function_state_);
  }
  NoModes(const NoModes&) = delete;
  NoModes& operator=(const NoModes&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard exclude_;
  at::impl::TorchFunctionDisabledState function_state_;
  c10::impl::TorchDispatchModeTLS modes_;
  c10::impl::PyInterpreter* python_dispatcher_;
};

}  // namespace

namespace {

using Convert = at::Tensor (*)(const at::Tensor&);

// The value with every tensor inside converted, and the tpu device replaced.
c10::IValue convert(const c10::IValue& value, Convert tensor, c10::DeviceType device) {
  if (value.isDevice() && value.toDevice().type() == kTpu) return c10::Device(device);
  if (value.isGenerator()) return {};
  return with_tensors(value, tensor);
}

constexpr int64_t kMaxTwinBytes = int64_t{256} << 20;

// `twin`, a tensor on the CPU, filled, and a number in promotions if `tensor` is one.
at::Tensor fill_twin(const at::Tensor& tensor, const at::Tensor& twin, double value) {
  twin.fill_(value);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    twin.unsafeGetTensorImpl()->set_wrapped_number(true);
  return twin;
}

at::Tensor fill_like(const at::Tensor& tensor, double value) {
  if (!tensor.defined()) return tensor;
  const at::TensorBase twin =
      at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  return fill_twin(tensor, at::Tensor(twin), value);
}

// Tensors on the CPU with the metadata of this one, which may be on the CPU itself.
at::Tensor to_cpu_zeros(const at::Tensor& tensor) { return fill_like(tensor, 0); }
at::Tensor to_cpu_ones(const at::Tensor& tensor) { return fill_like(tensor, 1); }

// Defined tensors among the arguments and in their lists.
std::vector<at::Tensor> tensors_of(const c10::IValue* args, size_t count) {
  std::vector<at::Tensor> found;
  const auto add = [&found](const at::Tensor& tensor) {
    if (tensor.defined()) found.push_back(tensor);
  };
  for (size_t i = 0; i < count; ++i) {
    if (args[i].isTensor()) add(args[i].toTensor());
    if (!args[i].isTensorList()) continue;
    for (const at::Tensor& tensor : args[i].toTensorVector()) add(tensor);
  }
  return found;
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// Makes the call on the CPU, with twins in the place of tpu tensors; its errors are the answer.
void call_on_cpu(const c10::OperatorHandle& op, const c10::IValue* args, size_t count,
                 Convert twin) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < count; ++i) stack.push_back(convert(args[i], twin, c10::kCPU));
  call_below_modes(op, &stack);
}

}  // namespace

at::Tensor to_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_tpu(tensor)) return tensor;
  at::Tensor meta =
      at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

c10::IValue to_meta(const c10::IValue& value) { return convert(value, &to_meta, c10::kMeta); }

namespace {

at::Tensor number_to_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_cpu_scalar(tensor)) return to_meta(tensor);
  at::Tensor meta = at::detail::empty_meta({}, tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

}  // namespace

c10::IValue to_meta_only(const c10::IValue& value) {
  return convert(value, &number_to_meta, c10::kMeta);
}

void throw_as_on_cpu(const c10::OperatorHandle& op, const c10::IValue* args, size_t count) {
  if (bytes_of(tensors_of(args, count)) > kMaxTwinBytes) return;
  try {
    call_on_cpu(op, args, count, &to_cpu_zeros);
  } catch (const c10::NotImplementedError&) {
    // The CPU has no such kernel: the error at hand is the best there is.
  }
}

namespace {

constexpr int64_t kMaxProbeBytes = int64_t{1} << 20;
constexpr int64_t kProbeSize = 4;

// Ones with dimensions of at most kProbeSize: sizes that were equal still are.
at::Tensor to_few_cpu_ones(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  for (int64_t& size : sizes) size = std::min(size, kProbeSize);
  return fill_twin(tensor, at::Tensor(at::detail::empty_cpu(sizes, tensor.scalar_type())), 1);
}

bool is_floating(const at::Tensor& tensor) { return at::isFloatingType(tensor.scalar_type()); }

// An argument that meta kernels let pass and others may not: no element, or True as a number.
bool is_doubtful(const c10::Argument& argument, const c10::IValue& value) {
  if (argument.is_out()) return false;
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().numel() == 0;
  return value.isBool() && argument.real_type()->kind() == c10::TypeKind::NumberType;
}

}  // namespace

void refuse_as_on_cpu(const c10::OperatorHandle& op, const c10::IValue* args, size_t count,
                      bool elementwise, bool always) {
  const std::vector<at::Tensor> tensors = tensors_of(args, count);
  const bool floating = std::all_of(tensors.begin(), tensors.end(), is_floating);
  bool doubtful = always;
  for (size_t i = 0; i < count; ++i) doubtful |= is_doubtful(op.schema().arguments()[i], args[i]);
  if (floating && !doubtful) return;
  const bool small = bytes_of(tensors) <= kMaxProbeBytes;
  if (!small && !elementwise) return;
  try {
    const Convert few = small ? &to_cpu_ones : &to_few_cpu_ones;
    call_on_cpu(op, args, count, elementwise ? few : &to_cpu_zeros);
  } catch (const c10::NotImplementedError&) {
    if (!floating) throw;
  }
}

void call_below_modes(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  NoModes guard;
  op.callBoxed(stack);
}

void run_below_modes(const std::function<void()>& body) {
  NoModes guard;
  body();
}

}  // namespace tpu_shim
