// Tensors <-> storages of the core: finding, wrapping, operands.
//
// A tpu tensor is a plain TensorImpl over a plain StorageImpl. Its DataPtr holds a fake address
// and, as context, one reference to a tpu_storage_t.
#ifndef TPU_SHIM_STORAGE_H_
#define TPU_SHIM_STORAGE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "runtime.h"

namespace tpu_shim {

// c10::ScalarType <-> tpu_dtype_t; INVALID for what the device has no type for.
extern const uint8_t* const g_dtype_of_scalar_type;  // indexed by c10::ScalarType
extern const int8_t* const g_scalar_type_of_dtype;   // indexed by tpu_dtype_t

inline tpu_dtype_t dtype_from(c10::ScalarType type) {
  return static_cast<tpu_dtype_t>(g_dtype_of_scalar_type[static_cast<int>(type)]);
}
inline c10::ScalarType scalar_type_from(tpu_dtype_t dtype) {
  return static_cast<c10::ScalarType>(g_scalar_type_of_dtype[dtype]);
}
// Throws a RuntimeError that names the dtype.
tpu_dtype_t checked_dtype(c10::ScalarType type);

c10::DeviceAllocator* allocator();

// DataPtr deleter: drops the storage reference. Runs on any thread, never takes the GIL.
void release_storage(void* context);

// DataPtr that owns one reference to `storage` (takes it).
c10::DataPtr make_data_ptr(tpu_storage_t* storage);

// New tensor over a storage (takes the reference) whose content has exactly this metadata.
at::Tensor wrap_storage(tpu_storage_t* storage, const tpu_meta_t* meta);

struct Located {
  tpu_storage_t* storage;  // borrowed
  int64_t shift;           // bytes from the storage's start to the StorageImpl's start
};
// For StorageImpls whose DataPtr is not ours (pickling wraps the bare address).
Located locate_foreign(const c10::StorageImpl* impl);

inline Located locate(const at::TensorBase& tensor) {
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (C10_LIKELY(impl != nullptr)) {
    c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
    if (C10_LIKELY(data.get_deleter() == &release_storage && data.get_context() != nullptr)) {
      return {static_cast<tpu_storage_t*>(data.get_context()), 0};
    }
  }
  return locate_foreign(impl);
}

// Metadata id and offset (elements) of a tpu tensor.
inline tpu_meta_id_t view_of(const at::TensorBase& tensor, const Located& at, int64_t* out_offset) {
  const tpu_dtype_t dtype = dtype_from(tensor.scalar_type());
  if (C10_UNLIKELY(dtype == TPU_DTYPE_INVALID)) checked_dtype(tensor.scalar_type());
  const auto sizes = tensor.sizes();
  *out_offset = tensor.storage_offset();
  if (C10_UNLIKELY(at.shift != 0))
    *out_offset += at.shift / static_cast<int64_t>(tensor.itemsize());
  tpu_meta_id_t view = 0;
  TPU_THROW_IF_ERROR(tpu_storage_view(at.storage, dtype, static_cast<int>(sizes.size()),
                                      sizes.data(), tensor.strides().data(), &view));
  return view;
}

inline bool is_tpu(const at::TensorBase& tensor) { return tensor.device().type() == kTpu; }

// True for views that conjugate or negate when read. Core resolves them before most kernels, but
// not before products and other linear algebra.
inline bool is_lazy(const at::TensorBase& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has_any(
      c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}));
}

// A tpu tensor that is not lazy.
inline void tensor_operand(const at::TensorBase& tensor, tpu_operand_t* out) {
  const Located at = locate(tensor);
  out->kind = TPU_OPERAND_TENSOR;
  out->wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  out->scalar_dtype = 0;
  out->view = view_of(tensor, at, &out->offset);
  out->storage = at.storage;
}

inline void none_operand(tpu_operand_t* out) {
  *out = tpu_operand_t{};
  out->kind = TPU_OPERAND_NONE;
}
inline void double_operand(double value, tpu_operand_t* out) {
  *out = tpu_operand_t{};
  out->kind = TPU_OPERAND_SCALAR;
  out->wrapped = 1;
  out->scalar_dtype = TPU_F64;
  out->number_double = value;
}
inline void int_operand(int64_t value, tpu_operand_t* out) {
  *out = tpu_operand_t{};
  out->kind = TPU_OPERAND_SCALAR;
  out->wrapped = 1;
  out->scalar_dtype = TPU_I64;
  out->number_int = value;
}
// A Python number. False for complex numbers, which are no host scalars.
bool scalar_operand(const at::Scalar& value, tpu_operand_t* out);
// A 0-dim CPU tensor as a number (weak in promotion only if PyTorch wrapped it). False for complex.
bool cpu_scalar_operand(const at::Tensor& tensor, tpu_operand_t* out);
// True for a tensor that operations accept next to tpu tensors.
inline bool is_cpu_scalar(const at::Tensor& tensor) {
  return tensor.device().type() == c10::DeviceType::CPU && tensor.dim() == 0;
}
[[noreturn]] void throw_device_mismatch(c10::Device other, c10::Device first);
[[noreturn]] void throw_device_mismatch(c10::Device other);  // than this process's

// Grows or shrinks the bytes behind a StorageImpl; its address may change.
void resize_storage(c10::StorageImpl* impl, int64_t nbytes);

// Reads a tpu tensor to dense row-major host memory of its dtype.
void read_tensor(const at::Tensor& tensor, void* dst, int64_t nbytes);
// The same to a new CPU tensor. Conjugate and negative bits are not looked at.
at::Tensor read_tensor(const at::Tensor& tensor);
// A CPU tensor with the same elements, dense and only to be read: the content itself where buffers
// are host memory, else a copy. The bits count.
at::Tensor lend_tensor(const at::Tensor& tensor);

}  // namespace tpu_shim

#endif  // TPU_SHIM_STORAGE_H_
