// Copies between host and device and on the device, and reads of single values.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/all.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/item.h>
#include <ATen/ops/neg.h>
#include <torch/library.h>

#include "hooks.h"
#include "observer.h"
#include "record.h"
#include "stacks.h"

namespace tpu_shim {

namespace {

// The same memory without lazy conjugation or negation.
at::Tensor physical(const at::Tensor& tensor) {
  if (!is_lazy(tensor)) return tensor;
  at::Tensor raw = at::alias(tensor);
  raw._set_conj(false);
  raw._set_neg(false);
  return raw;
}

void device_to_device(const at::Tensor& source, const at::Tensor& destination) {
  at::Tensor raw = physical(destination);
  copy_on_device(physical(source), raw);
  if (source.is_conj() != destination.is_conj()) raw.copy_(at::conj_physical(raw));
  if (source.is_neg() != destination.is_neg()) raw.copy_(at::neg(raw));
}

void host_to_device(const at::Tensor& source, const at::Tensor& destination) {
  const bool plain = !is_lazy(source) && !is_lazy(destination);
  // A number travels as a program argument: no buffer, and no new program when it changes.
  if (plain && source.numel() == 1 && !c10::isComplexType(source.scalar_type()) &&
      dtype_from(source.scalar_type()) != TPU_DTYPE_INVALID) {
    const at::Tensor number = source.reshape({});
    static const tpu_op_t row = op_row("convert");
    Call call(row, TPU_CALL_OUT);
    call.tensor(number).written(destination).record();
    return;
  }
  at::Tensor host = source.to(destination.scalar_type()).resolve_conj().resolve_neg();
  if (destination.is_conj()) host = at::conj_physical(host);
  if (destination.is_neg()) host = at::neg(host);
  host = host.expand(destination.sizes()).contiguous();
  const Located at = locate(destination);
  int64_t offset = 0;
  const tpu_meta_id_t view = view_of(destination, at, &offset);
  note_location();
  note_transfer("to_device", static_cast<int64_t>(host.nbytes()));
  TPU_THROW_IF_ERROR(tpu_engine_write(engine(), at.storage, view, offset, host.const_data_ptr(),
                                      static_cast<int64_t>(host.nbytes())));
}

void device_to_host(const at::Tensor& source, const at::Tensor& destination) {
  const bool direct =
      destination.is_contiguous() && destination.scalar_type() == source.scalar_type() &&
      source.is_conj() == destination.is_conj() && source.is_neg() == destination.is_neg();
  if (direct) {
    return read_tensor(source, destination.mutable_data_ptr(),
                       static_cast<int64_t>(destination.nbytes()));
  }
  const at::Tensor host = read_tensor(source);
  host._set_conj(source.is_conj());
  host._set_neg(source.is_neg());
  destination.copy_(host);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool /*non_blocking*/) {
  if (self.is_same(destination)) return destination;
  if (destination.is_meta()) return destination;
  const auto source = at::expand_inplace(destination, self, "copy_");
  if (destination.numel() == 0) return destination;
  at::assert_no_internal_overlap(destination);
  if (is_tpu(self) && is_tpu(destination)) at::assert_no_partial_overlap(destination, *source);
  const bool from_host = self.device().type() == c10::kCPU;
  const bool to_host = destination.device().type() == c10::kCPU;
  if (is_tpu(self) && is_tpu(destination)) {
    device_to_device(*source, destination);
  } else if (from_host && is_tpu(destination)) {
    host_to_device(self, destination);
  } else if (is_tpu(self) && to_host) {
    device_to_host(*source, destination);
  } else {
    TORCH_CHECK(false, "cannot copy from ", self.device(), " to ", destination.device(),
                "; go through the CPU");
  }
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  if (destination.sizes() != self.sizes()) destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  copy_from(source, self, non_blocking);
  return self;
}

// Metadata of a copy in a memory format, as empty_like decides; 0 where PyTorch must.
tpu_meta_id_t copy_meta(const at::Tensor& self, c10::ScalarType type,
                        std::optional<at::MemoryFormat> memory_format) {
  const at::MemoryFormat format = memory_format.value_or(at::MemoryFormat::Preserve);
  if (format == at::MemoryFormat::Contiguous) return contiguous_meta(self.sizes(), type);
  if (format != at::MemoryFormat::Preserve || !self.is_non_overlapping_and_dense()) return 0;
  tpu_meta_id_t id = 0;
  TPU_THROW_IF_ERROR(tpu_meta_intern(checked_dtype(type), static_cast<int>(self.dim()),
                                     self.sizes().data(), self.strides().data(), &id));
  return id;
}

// A copy on the device is one record: no allocation first, no write through a view.
at::Tensor converted(const at::Tensor& self, tpu_meta_id_t meta) {
  static const tpu_op_t row = op_row("convert");
  Call call(row);
  call.tensor(self).result(meta).record();
  return call.take(0);
}

at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> memory_format) {
  const tpu_meta_id_t meta = is_lazy(self) ? 0 : copy_meta(self, self.scalar_type(), memory_format);
  return meta != 0 ? converted(self, meta) : at::native::clone(self, memory_format);
}

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> memory_format) {
  const bool stays = is_tpu(self) && (!device.has_value() || device->type() == kTpu) &&
                     layout.value_or(c10::kStrided) == c10::kStrided && !pin_memory.value_or(false);
  if (stays && device.has_value()) bind_device(device->index());
  if (stays && !is_lazy(self)) {
    const tpu_meta_id_t meta = copy_meta(self, dtype.value_or(self.scalar_type()), memory_format);
    if (meta != 0) return converted(self, meta);
  }
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(),
              " elements cannot be converted to Scalar");
  return read_tensor(self).item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.device() != other.device()) throw_device_mismatch(other.device(), self.device());
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "Expected object of data type ",
              self.dtype(), " but got data type ", other.dtype(), " for argument 'other'");
  if (self.sizes() != other.sizes()) return false;
  if (self.numel() == 0) return true;
  return at::all(at::eq(self, other)).item<bool>();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("clone", TORCH_FN(clone));
  m.impl("_to_copy", TORCH_FN(to_copy));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("equal", TORCH_FN(equal));
}

// The kernels above honour the bits themselves; core's fallback for them would copy again,
// endlessly.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace tpu_shim
