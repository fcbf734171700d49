// What the records of a composite call depend on besides its code: the key of its template.
#ifndef TPU_SHIM_SIGNATURE_H_
#define TPU_SHIM_SIGNATURE_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <unordered_map>

#include "runtime.h"

namespace tpu_shim {

// What a capture made, and replays.
using Template = std::shared_ptr<tpu_template_t>;

// Words that are equal for calls that record the same, and the tensors that they compute with.
struct Signature {
  Signature();  // begins with what PyTorch's code asks of the process: hidden arguments

  c10::SmallVector<uint64_t, 48> words;
  c10::SmallVector<tpu_operand_t, 8> inputs;
  // Numbers of the call, also 0-dim tensors on the CPU, and which word each one is.
  c10::SmallVector<tpu_number_t, 4> numbers;
  c10::SmallVector<size_t, 4> number_words;

  // False for an argument that has no place in a signature: the call cannot be a template.
  bool add(const c10::IValue& value);
  bool add_tensor(const at::Tensor& tensor);
  void add_none() { tag('n', 0); }
  void add_bool(bool value) { tag('z', value); }
  void add_int(int64_t value);
  void add_double(double value);
  uint64_t hash() const;

 private:
  void tag(char kind, uint64_t detail) {
    words.push_back(static_cast<uint64_t>(kind) << 56 | detail);
  }
  void add_bytes(const void* data, size_t size);
  void note_number(const tpu_operand_t& number);
  void add_device_tensor(const at::Tensor& tensor);
  size_t find_storage(const tpu_storage_t* storage) const;

  // Where storages stand in `inputs`, of calls with many.
  std::unordered_map<const tpu_storage_t*, size_t> places_;
};

}  // namespace tpu_shim

#endif  // TPU_SHIM_SIGNATURE_H_
