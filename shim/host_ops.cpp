#include "host_ops.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>

#include "host_calls.h"
#include "meta_query.h"
#include "record.h"

namespace tpu_shim {

namespace {

alignas(64) char g_nothing[64];  // where content of no bytes is

at::Tensor empty_like_meta(const tpu_meta_t& meta) { return empty_sized(meta, meta.dtype); }

void release_tensor(void* owner) {
  c10::intrusive_ptr<c10::TensorImpl>::reclaim(static_cast<c10::TensorImpl*>(owner));
}

// --- results ---

bool shares_memory(const at::Tensor& result, const tpu_host_op_t& op) {
  const char* begin = static_cast<const char*>(result.storage().data());
  const char* end = begin + result.storage().nbytes();
  for (int k = 0; k < op.record->operand_count; ++k) {
    if (op.operands[k] == nullptr || op.operands[k]->given) continue;
    const char* data = static_cast<const char*>(op.operands[k]->data);
    if (data >= begin && data < end) return true;
    const int64_t bytes = tpu_meta_bytes(tpu_meta_get(op.value_metas[k]));
    if (begin >= data && begin < data + bytes) return true;
  }
  return false;
}

// The result as content: its metadata's dtype, dense row-major, in memory of its own.
at::Tensor as_content(at::Tensor result, const tpu_meta_t& meta, const tpu_host_op_t& op) {
  TORCH_CHECK(result.defined() && result.numel() == meta.numel,
              "internal: the CPU kernel gives a result of ", result.defined() ? result.numel() : -1,
              " elements, ", meta.numel, " were expected");
  const c10::ScalarType type = scalar_type_from(meta.dtype);
  result = result.resolve_conj().resolve_neg();
  if (result.scalar_type() != type) result = result.to(type);
  result = result.contiguous();
  if (result.sizes() != sizes_of(meta)) result = result.view(sizes_of(meta));
  const bool whole = result.storage_offset() == 0 && result.storage().nbytes() == result.nbytes();
  return whole && !shares_memory(result, op) ? result : at::clone(result);
}

tpu_host_block_t block_of(at::Tensor content) {
  void* data = content.numel() > 0 ? content.mutable_data_ptr() : g_nothing;
  return {data, content.unsafeReleaseIntrusivePtr().release(), &release_tensor};
}

void run_form(const HostForm& form, const tpu_host_op_t& op, tpu_host_block_t* out_blocks) {
  HostResults results;
  const HostRecord record(op);
  form.run(record, &results);
  const size_t count = static_cast<size_t>(op.record->result_count);
  TORCH_CHECK(results.size() == count, "internal: ", results.size(), " results, not ", count);
  for (size_t k = 0; k < count; ++k) {
    const int i = static_cast<int>(k);
    results[k] = record.is_absent(i) ? empty_like_meta(record.result(i))
                                     : as_content(std::move(results[k]), record.result(i), op);
  }
  for (size_t k = 1; k < count; ++k) {
    // Content belongs to one value: a later program may be given it.
    for (size_t j = 0; j < k; ++j) {
      if (results[j].storage().is_alias_of(results[k].storage()))
        results[k] = at::clone(results[k]);
    }
  }
  for (size_t k = 0; k < count; ++k) out_blocks[k] = block_of(std::move(results[k]));
}

// --- forms, one for each kind of record ---

// What a form may depend on: everything but shapes and numbers.
std::string kind_key(const tpu_record_t& r) {
  std::string key;
  const auto add = [&key](uint64_t word) {
    key.append(reinterpret_cast<const char*>(&word), sizeof(word));
  };
  add(static_cast<uint64_t>(r.op) | static_cast<uint64_t>(r.variant) << 32);
  add(r.attrs | static_cast<uint64_t>(r.operand_count) << 32);
  add(static_cast<uint64_t>(r.result_count));
  for (int k = 0; k < r.operand_count; ++k) {
    const uint32_t ref = tpu_record_ref(&r, k);
    switch (tpu_ref_kind(ref)) {
      case TPU_REF_SCALAR: key += static_cast<char>(2 + tpu_ref_scalar_dtype(ref)); break;
      case TPU_REF_NONE: key += '\0'; break;
      default: key += '\1';
    }
  }
  return key;
}

std::unique_ptr<HostForm> make_form(const tpu_record_t& record) {
  if (auto collective = make_collective_form(record)) return collective;
  if (auto call = make_call_form(record)) return call;
  if (auto manual = make_manual_form(record)) return manual;
  if (auto random = make_random_form(record)) return random;
  return make_overload_form(record);
}

void* prepare(const tpu_record_t* record) {
  static std::mutex mutex;
  static auto* forms = new std::unordered_map<std::string, std::unique_ptr<HostForm>>();
  std::string key = kind_key(*record);
  std::lock_guard<std::mutex> lock(mutex);
  auto it = forms->find(key);
  if (it == forms->end()) it = forms->emplace(std::move(key), make_form(*record)).first;
  return it->second.get();
}

// Programs may round otherwise than the CPU's kernels, so that a loop's numbers would change once.
bool allowed() { return !at::globalContext().deterministicAlgorithms(); }

tpu_status_code_t code_of(const c10::Error& error) {
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return TPU_ABORTED;
  if (dynamic_cast<const c10::IndexError*>(&error) != nullptr) return TPU_OUT_OF_RANGE;
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return TPU_UNIMPLEMENTED;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return TPU_RESOURCE_EXHAUSTED;
  return TPU_INVALID_ARGUMENT;
}

tpu_status_t run(void* prepared, const tpu_host_op_t* op, tpu_host_block_t* out_blocks) {
  try {
    run_below_modes([&] { run_form(*static_cast<HostForm*>(prepared), *op, out_blocks); });
    return nullptr;
  } catch (const c10::Error& error) {
    return tpu_status_make(code_of(error), "%s", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  } catch (const std::exception& error) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "%s", error.what());
  }
}

}  // namespace

at::Tensor empty_sized(const tpu_meta_t& meta, tpu_dtype_t dtype) {
  return at::Tensor(at::detail::empty_cpu(sizes_of(meta), scalar_type_from(dtype)));
}

const tpu_host_ops_t* host_ops() {
  static constexpr tpu_host_ops_t ops = {&prepare, &allowed, &run};
  return &ops;
}

// --- operands ---

at::Tensor in_storage_order(const at::Tensor& content, const tpu_meta_t& meta) {
  if (meta.contiguous || meta.numel <= 1) return content.view({meta.numel});
  // The widest stride comes first; that of a dimension with one element says nothing.
  c10::SmallVector<int64_t, 8> order, single;
  for (int i = 0; i < meta.rank; ++i) (meta.sizes[i] == 1 ? single : order).push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&meta](int64_t a, int64_t b) { return meta.strides[a] > meta.strides[b]; });
  order.append(single.begin(), single.end());
  return content.permute(order).contiguous().view({meta.numel});
}

at::Tensor from_storage_order(const at::Tensor& flat, const tpu_meta_t& meta) {
  return at::as_strided(flat, sizes_of(meta), strides_of(meta), 0).contiguous();
}

at::Tensor HostRecord::value(int k) const {
  const tpu_host_input_t& input = *op_.operands[k];
  if (input.owner != nullptr) {
    return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(
        static_cast<c10::TensorImpl*>(input.owner)));
  }
  const tpu_meta_t& meta = value_meta(k);
  return at::from_blob(input.data, sizes_of(meta), scalar_type_from(meta.dtype));
}

int64_t HostRecord::offset(int k) const {
  return (tpu_record_ref(op_.record, k) & TPU_REF_VIEW_BIT) != 0 ? slot(k).as_int : 0;
}

at::Tensor HostRecord::tensor(int k) const {
  if (!has(k)) return {};
  if (is_number(k)) {
    const uint32_t ref = tpu_record_ref(op_.record, k);
    at::Tensor number = at::scalar_tensor(
        scalar(k), at::TensorOptions(scalar_type_from(tpu_ref_scalar_dtype(ref))));
    number.unsafeGetTensorImpl()->set_wrapped_number(tpu_ref_scalar_is_weak(ref));
    return number;
  }
  return read(value(k), k);
}

at::Tensor HostRecord::read(const at::Tensor& content, int k) const {
  if ((tpu_record_ref(op_.record, k) & TPU_REF_VIEW_BIT) == 0) return content;
  const tpu_meta_t &meta = value_meta(k), &view = *tpu_meta_get(tpu_record_view(op_.record, k));
  if (view.numel == 0) return empty_like_meta(view);
  at::Tensor flat = in_storage_order(content, meta);
  if (view.dtype != meta.dtype) flat = flat.view(scalar_type_from(view.dtype));
  return at::as_strided(flat, sizes_of(view), strides_of(view), offset(k));
}

std::optional<at::Tensor> HostRecord::optional(int k) const {
  return has(k) ? std::optional<at::Tensor>(tensor(k)) : std::nullopt;
}

at::Scalar HostRecord::scalar(int k) const {
  const tpu_dtype_t dtype = tpu_ref_scalar_dtype(tpu_record_ref(op_.record, k));
  const tpu_slot_t number = slot(k);
  if (dtype == TPU_BOOL) return at::Scalar(number.as_int != 0);
  return tpu_dtype_is_float(dtype) ? at::Scalar(number.as_double) : at::Scalar(number.as_int);
}

at::Tensor HostRecord::writable(int k, tpu_meta_id_t meta) const {
  const tpu_meta_t& wanted = *tpu_meta_get(meta);
  const bool whole = op_.operands[k] != nullptr &&
                     (tpu_record_ref(op_.record, k) & TPU_REF_VIEW_BIT) == 0 &&
                     value_meta(k).dtype == wanted.dtype;
  // An operation with indices may fail half-way: what it was to write must be there then.
  const bool may_stop = (tpu_op_info(op_.record->op)->flags & TPU_OP_CHECK_INDEX) != 0;
  if (whole && op_.operands[k]->given && !may_stop) {
    at::Tensor own = value(k);
    if (own.use_count() == 2 && own.storage().use_count() == 1) return own;
  }
  return tensor(k).to(scalar_type_from(wanted.dtype)).clone(at::MemoryFormat::Contiguous);
}

bool HostRecord::is_absent(int k) const { return result_id(k) == absent_meta(); }

at::Tensor HostRecord::empty_result(int k) const { return empty_like_meta(result(k)); }

}  // namespace tpu_shim
