#include "storage.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/TensorBase.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "hooks.h"
#include "observer.h"
#include "stacks.h"

namespace tpu_shim {

namespace {

struct DtypeTables {
  std::array<uint8_t, 256> to_tpu{};
  std::array<int8_t, 64> to_torch{};
  DtypeTables() {
    for (int code = 0; code < 128; ++code) {
      to_tpu[code] = static_cast<uint8_t>(tpu_dtype_from_torch(code));
    }
    for (int dtype = 0; dtype < TPU_DTYPE_COUNT; ++dtype) {
      to_torch[dtype] = static_cast<int8_t>(tpu_dtype_torch(static_cast<tpu_dtype_t>(dtype)));
    }
  }
};
const DtypeTables g_tables;

void fill_stat(c10::CachingAllocator::StatArray& stats, int64_t current, int64_t peak,
               int64_t total) {
  auto& stat = stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  stat.current = current;
  stat.peak = peak;
  stat.allocated = total;
  stat.freed = total - current;
}

tpu_memory_stats_t memory_stats() {
  tpu_memory_stats_t stats{};
  if (engine_started()) tpu_device_memory_stats(tpu_engine_device(engine()), &stats);
  return stats;
}

// Allocates storages without content: memory on the device appears when a program makes a value.
struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    tpu_storage_t* storage = nullptr;
    TPU_THROW_IF_ERROR(tpu_storage_create(engine(), static_cast<int64_t>(nbytes), &storage));
    return make_data_ptr(storage);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // addresses are not memory
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    if (count == 0) return;
    tpu_storage_t* from = tpu_storage_find(engine(), src);
    tpu_storage_t* to = tpu_storage_find(engine(), dest);
    std::vector<char> bytes(count);
    tpu_status_t status = nullptr;
    if (from == nullptr || to == nullptr) {
      status =
          tpu_status_make(TPU_INVALID_ARGUMENT, "copy between addresses that are not tpu storages");
    }
    if (status == nullptr) status = copy(from, src, to, dest, bytes);
    tpu_storage_release(from);
    tpu_storage_release(to);
    TPU_THROW_IF_ERROR(status);
  }
  bool initialized() override { return engine_started(); }
  void emptyCache(c10::MempoolId_t) override {
    if (engine_started()) TPU_THROW_IF_ERROR(tpu_engine_flush(engine(), true));
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // one stream: order is enough
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    checked_device_index(index);
    const tpu_memory_stats_t now = memory_stats();
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                        &stats.requested_bytes}) {
      fill_stat(*bytes, now.bytes_in_use, now.bytes_peak, now.bytes_total);
    }
    for (auto* count : {&stats.allocation, &stats.segment, &stats.active}) {
      fill_stat(*count, now.buffers_in_use, now.buffers_peak, now.buffers_total);
    }
    stats.num_device_alloc = now.buffers_total;
    stats.num_device_free = now.buffers_total - now.buffers_in_use;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    checked_device_index(index);  // totals are exact since the start
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    checked_device_index(index);
    if (engine_started()) tpu_device_memory_reset_peak(tpu_engine_device(engine()));
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    checked_device_index(index);
    engine();  // the size of the device is known only once it runs
    const tpu_memory_stats_t now = memory_stats();
    return {static_cast<size_t>(now.bytes_limit - now.bytes_in_use),
            static_cast<size_t>(now.bytes_limit)};
  }

 private:
  static tpu_status_t copy(tpu_storage_t* from, const void* src, tpu_storage_t* to, void* dest,
                           std::vector<char>& bytes) {
    const int64_t size = static_cast<int64_t>(bytes.size());
    const int64_t one = 1;
    tpu_operand_t operand{};
    operand.kind = TPU_OPERAND_TENSOR;
    operand.storage = from;
    operand.offset = static_cast<const char*>(src) - static_cast<char*>(tpu_storage_address(from));
    TPU_RETURN_IF_ERROR(tpu_storage_view(from, TPU_U8, 1, &size, &one, &operand.view));
    TPU_RETURN_IF_ERROR(tpu_engine_read(engine(), &operand, bytes.data(), size));
    tpu_meta_id_t view = 0;
    TPU_RETURN_IF_ERROR(tpu_storage_view(to, TPU_U8, 1, &size, &one, &view));
    const int64_t offset = static_cast<char*>(dest) - static_cast<char*>(tpu_storage_address(to));
    return tpu_engine_write(engine(), to, view, offset, bytes.data(), size);
  }
};

Allocator g_allocator;
REGISTER_ALLOCATOR(kTpu, &g_allocator);

}  // namespace

const uint8_t* const g_dtype_of_scalar_type = g_tables.to_tpu.data();
const int8_t* const g_scalar_type_of_dtype = g_tables.to_torch.data();

tpu_dtype_t checked_dtype(c10::ScalarType type) {
  const tpu_dtype_t dtype = dtype_from(type);
  TORCH_CHECK(dtype != TPU_DTYPE_INVALID, "the tpu device has no dtype ", type,
              "; convert to a supported one first, such as float32");
  return dtype;
}

c10::DeviceAllocator* allocator() { return &g_allocator; }

void release_storage(void* context) {
  // In a forked child the core's locks may be held by threads that no longer exist.
  if (C10_LIKELY(!in_bad_fork())) tpu_storage_release(static_cast<tpu_storage_t*>(context));
}

c10::DataPtr make_data_ptr(tpu_storage_t* storage) {
  return {tpu_storage_address(storage), storage, &release_storage,
          c10::Device(kTpu, bind_device(-1))};
}

at::Tensor wrap_storage(tpu_storage_t* storage, const tpu_meta_t* meta) {
  auto impl = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(tpu_storage_nbytes(storage)),
      make_data_ptr(storage), &g_allocator, /*resizable=*/true);
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(
      std::move(impl), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(scalar_type_from(meta->dtype)));
  const c10::IntArrayRef sizes(meta->sizes, meta->rank);
  c10::TensorImpl* t = tensor.unsafeGetTensorImpl();
  if (meta->row_major) {
    if (sizes.size() != 1 || sizes[0] != 0) t->generic_set_sizes_contiguous(sizes);
  } else {
    t->set_sizes_and_strides(sizes, c10::IntArrayRef(meta->strides, meta->rank));
  }
  return at::Tensor(std::move(tensor));
}

Located locate_foreign(const c10::StorageImpl* impl) {
  TORCH_CHECK(impl != nullptr,
              "this tpu tensor has no storage (a FakeTensor or a wrapper subclass "
              "reached a device kernel)");
  const void* address = const_cast<c10::StorageImpl*>(impl)->_mutable_data_ptr_no_checks().get();
  tpu_storage_t* storage = address != nullptr ? tpu_storage_find(engine(), address) : nullptr;
  TORCH_CHECK(storage != nullptr, "this tpu tensor's storage is not memory of the tpu device");
  const int64_t shift =
      static_cast<const char*>(address) - static_cast<const char*>(tpu_storage_address(storage));
  // Whoever wrapped the address keeps the storage alive for as long as the wrapper lives.
  tpu_storage_release(storage);
  return {storage, shift};
}

bool scalar_operand(const at::Scalar& value, tpu_operand_t* out) {
  if (value.isFloatingPoint()) {
    double_operand(value.toDouble(), out);
  } else if (value.isBoolean()) {
    int_operand(value.toBool() ? 1 : 0, out);
    out->scalar_dtype = TPU_BOOL;
  } else if (value.type() == at::kUInt64) {
    int_operand(static_cast<int64_t>(value.toUInt64()), out);
    out->scalar_dtype = TPU_U64;
  } else if (value.isIntegral(false)) {
    int_operand(value.toLong(), out);
  } else {
    return false;
  }
  return true;
}

bool cpu_scalar_operand(const at::Tensor& tensor, tpu_operand_t* out) {
  const void* data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case at::kDouble: double_operand(*static_cast<const double*>(data), out); break;
    case at::kLong: int_operand(*static_cast<const int64_t*>(data), out); break;
    case at::kFloat: double_operand(*static_cast<const float*>(data), out); break;
    case at::kBool: int_operand(*static_cast<const bool*>(data) ? 1 : 0, out); break;
    default: {
      if (c10::isComplexType(tensor.scalar_type())) return false;
      if (c10::isFloatingType(tensor.scalar_type())) {
        double_operand(tensor.item().toDouble(), out);
      } else if (tensor.scalar_type() == at::kUInt64) {
        int_operand(static_cast<int64_t>(tensor.item().toUInt64()), out);
      } else {
        int_operand(tensor.item().toLong(), out);
      }
    }
  }
  out->scalar_dtype = static_cast<uint8_t>(checked_dtype(tensor.scalar_type()));
  out->wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  return true;
}

void throw_device_mismatch(c10::Device other, c10::Device first) {
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              first, " and ", other, "!");
  throw std::runtime_error("device mismatch");
}

void throw_device_mismatch(c10::Device other) {
  throw_device_mismatch(other, c10::Device(kTpu, current_device()));
}

void resize_storage(c10::StorageImpl* impl, int64_t nbytes) {
  c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  if (data.get_deleter() != &release_storage || data.get_context() == nullptr) {
    TORCH_CHECK(impl->nbytes() == 0,
                "this tpu storage is a wrapper around another one's memory and "
                "cannot be resized; clone it first");
    impl->set_data_ptr_noswap(g_allocator.allocate(static_cast<size_t>(nbytes)));
    impl->set_nbytes(static_cast<size_t>(nbytes));
    return;
  }
  auto* storage = static_cast<tpu_storage_t*>(data.get_context());
  TPU_THROW_IF_ERROR(tpu_storage_resize(storage, nbytes));
  tpu_storage_retain(storage);
  impl->set_data_ptr_noswap(make_data_ptr(storage));
  impl->set_nbytes(static_cast<size_t>(nbytes));
}

void read_tensor(const at::Tensor& tensor, void* dst, int64_t nbytes) {
  tpu_operand_t operand;
  tensor_operand(tensor, &operand);
  note_location();  // reading may record
  note_transfer("to_host", nbytes);
  TPU_THROW_IF_ERROR(tpu_engine_read(engine(), &operand, dst, nbytes));
}

at::Tensor read_tensor(const at::Tensor& tensor) {
  at::Tensor host = at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
  if (host.numel() > 0)
    read_tensor(tensor, host.mutable_data_ptr(), static_cast<int64_t>(host.nbytes()));
  return host;
}

at::Tensor lend_tensor(const at::Tensor& tensor) {
  if (is_lazy(tensor)) return tensor.cpu();
  tpu_operand_t operand;
  tensor_operand(tensor, &operand);
  note_location();
  tpu_loan_t* loan = nullptr;
  void* data = nullptr;
  const int64_t size = tensor.numel() * static_cast<int64_t>(tensor.element_size());
  TPU_THROW_IF_ERROR(tpu_engine_lend(engine(), &operand, size, &loan, &data));
  if (loan == nullptr) return read_tensor(tensor);
  const auto options = at::TensorOptions().dtype(tensor.dtype());
  return at::from_blob(
      data, tensor.sizes(), [loan](void*) { tpu_engine_end_loan(engine(), loan); }, options);
}

}  // namespace tpu_shim
