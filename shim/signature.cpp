#include "signature.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <cstring>

#include "precision.h"
#include "storage.h"

namespace tpu_shim {

namespace {

constexpr size_t kManyInputs = 32;  // from here on a map beats looking at all of them

int64_t first_byte(const tpu_operand_t& input) {
  return input.offset * static_cast<int64_t>(tpu_dtype_bytes(tpu_meta_get(input.view)->dtype));
}

}  // namespace

Signature::Signature() {
  words.push_back(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 1 |
                  static_cast<uint64_t>(at::globalContext().deterministicAlgorithms()));
  if (g_rounds_products.load(std::memory_order_relaxed))
    words.push_back(static_cast<uint64_t>(asked_precision(true)) << 2 | asked_precision(false));
}

uint64_t Signature::hash() const {
  uint64_t h = words.size();
  for (uint64_t word : words) h = (h ^ word) * 0x9e3779b97f4a7c15ull, h ^= h >> 29;
  return h;
}

// Of the word that was added last.
void Signature::note_number(const tpu_operand_t& number) {
  tpu_number_t& noted = numbers.emplace_back();
  noted.is_float = tpu_dtype_is_float(static_cast<tpu_dtype_t>(number.scalar_dtype));
  noted.as_int = number.number_int;
  if (noted.is_float) noted.as_double = number.number_double;
  number_words.push_back(words.size() - 1);
}

void Signature::add_int(int64_t value) {
  tag('i', 0);
  words.push_back(static_cast<uint64_t>(value));
  tpu_operand_t number{};
  number.scalar_dtype = TPU_I64;
  number.number_int = value;
  note_number(number);
}

void Signature::add_double(double value) {
  tag('d', 0);
  add_bytes(&value, sizeof(value));
  tpu_operand_t number{};
  number.scalar_dtype = TPU_F64;
  number.number_double = value;
  note_number(number);
}

void Signature::add_bytes(const void* data, size_t size) {
  tag('b', size);
  const size_t first = words.size();
  words.resize(first + (size + 7) / 8, 0);
  if (size > 0) std::memcpy(words.data() + first, data, size);
}

// The first input in this storage, or inputs.size().
size_t Signature::find_storage(const tpu_storage_t* storage) const {
  if (inputs.size() >= kManyInputs) {
    const auto found = places_.find(storage);
    if (found != places_.end()) return found->second;
  }
  const size_t searched = std::min(inputs.size(), kManyInputs);
  for (size_t k = 0; k < searched; ++k) {
    if (inputs[k].storage == storage) return k;
  }
  return inputs.size();
}

// Offsets are left out, since a template follows its inputs; but two inputs in one storage must lie
// towards each other as they did.
void Signature::add_device_tensor(const at::Tensor& tensor) {
  tpu_operand_t input;
  tensor_operand(tensor, &input);
  tag('t', input.view | static_cast<uint64_t>(input.wrapped) << 32);
  const size_t same = find_storage(input.storage);
  if (same < inputs.size()) {
    tag('s', same);
    words.push_back(static_cast<uint64_t>(first_byte(input) - first_byte(inputs[same])));
  } else if (same >= kManyInputs) {
    places_.emplace(input.storage, same);
  }
  inputs.push_back(input);
}

bool Signature::add_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return add_none(), true;
  if (tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg()) return false;
  if (is_tpu(tensor)) {
    if (dtype_from(tensor.scalar_type()) == TPU_DTYPE_INVALID) return false;
    return add_device_tensor(tensor), true;
  }
  // A number: the code may look at it.
  if (!is_cpu_scalar(tensor)) return false;
  tag('c', static_cast<uint64_t>(tensor.scalar_type()) << 1 |
               static_cast<uint64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()));
  add_bytes(tensor.const_data_ptr(), tensor.itemsize());
  tpu_operand_t number{};
  if (cpu_scalar_operand(tensor, &number)) note_number(number);
  return true;
}

bool Signature::add(const c10::IValue& value) {
  if (value.isTensor()) return add_tensor(value.toTensor());
  if (value.isNone()) return add_none(), true;
  if (value.isBool()) return add_bool(value.toBool()), true;
  if (value.isInt()) return add_int(value.toInt()), true;
  if (value.isDouble()) return add_double(value.toDouble()), true;
  if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    return tag('x', 0), add_bytes(&number, sizeof(number)), true;
  }
  if (value.isSymInt()) {
    const auto number = value.toSymInt().maybe_as_int();
    return number.has_value() && add(c10::IValue(*number));
  }
  if (value.isString()) {
    const auto text = value.toStringView();
    return add_bytes(text.data(), text.size()), true;
  }
  if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    return tag('v',
               static_cast<uint64_t>(device.type()) << 8 | static_cast<uint8_t>(device.index())),
           true;
  }
  if (!value.isList()) return false;  // generators among others
  const auto list = value.toListRef();
  tag('l', list.size());
  for (const c10::IValue& item : list) {
    if (!add(item)) return false;
  }
  return true;
}

}  // namespace tpu_shim
