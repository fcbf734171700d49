#include "host_calls.h"

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "argument_kind.h"
#include "meta_query.h"
#include "record.h"

namespace tpu_shim {

namespace {

// --- which operations ---

bool is_tensor(const c10::TypePtr& type) {
  return strip_optional(type)->kind() == c10::TypeKind::TensorType;
}

bool returns_are_new_or_written(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType) return false;
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return false;
  }
  return true;
}

bool takes_generator(const c10::FunctionSchema& schema) {
  for (const c10::Argument& arg : schema.arguments()) {
    if (strip_optional(arg.real_type())->kind() == c10::TypeKind::GeneratorType) return true;
  }
  return false;
}

bool may_be_recorded(const c10::OperatorHandle& op) {
  if (op.schema().name().rfind("aten::", 0) != 0) return false;
  for (const at::Tag tag : {at::Tag::data_dependent_output, at::Tag::dynamic_output_shape,
                            at::Tag::nondeterministic_seeded}) {
    if (op.hasTag(tag)) return false;
  }
  for (const c10::Argument& arg : op.schema().arguments()) {
    if (is_written(arg) && !is_tensor(arg.real_type())) return false;
  }
  return returns_are_new_or_written(op.schema()) && !takes_generator(op.schema()) &&
         op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta);
}

// By operation: recorded, or run at once. A meta kernel that isn't one is found out by asking.
std::mutex g_mutex;
std::unordered_map<c10::OperatorHandle, bool>& known_operations() {
  static auto* map = new std::unordered_map<c10::OperatorHandle, bool>();
  return *map;
}

bool is_recorded(const c10::OperatorHandle& op) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto it = known_operations().find(op);
  if (it == known_operations().end())
    it = known_operations().emplace(op, may_be_recorded(op)).first;
  return it->second;
}

void never_record(const c10::OperatorHandle& op) {
  std::lock_guard<std::mutex> lock(g_mutex);
  known_operations()[op] = false;
}

// --- what calls have in common ---

enum class HoleKind : uint8_t { kTensor, kTensors, kOptionalTensors, kScalar, kFloat };

// An argument that differs from call to call.
struct Hole {
  size_t argument;
  HoleKind kind;
  int operand, count;  // operands
};

// Everything of a call but its operands. Lives forever.
struct HostCall {
  c10::OperatorHandle op;
  c10::DispatchKey key;
  torch::jit::Stack constants;  // with a place for each of `holes`
  std::vector<Hole> holes;
  std::vector<size_t> written;  // holes whose tensors become the first results, in order
};

constexpr size_t kMaxCalls = 4096;  // what comes later runs at once

struct Calls {
  std::vector<const HostCall*> all;
  std::unordered_map<std::string, int64_t> ids;
};
Calls& calls() {
  static auto* made = new Calls();
  return *made;
}

// -1: there are too many.
int64_t id_of(const std::string& text, const HostCall& call) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = calls().ids.find(text);
  if (found != calls().ids.end()) return found->second;
  const size_t id = calls().all.size();
  if (id >= kMaxCalls) return -1;
  calls().all.push_back(new HostCall(call));
  calls().ids.emplace(text, static_cast<int64_t>(id));
  return static_cast<int64_t>(id);
}

void append(std::string* text, char tag, const void* data, size_t size) {
  *text += tag;
  text->append(static_cast<const char*>(data), size);
}

// Adds a constant to the text; false for what has no place there.
bool describe(const c10::IValue& value, std::string* text) {
  if (value.isNone()) return append(text, 'n', "", 0), true;
  if (value.isBool()) return append(text, value.toBool() ? 't' : 'f', "", 0), true;
  if (value.isInt()) {
    const int64_t number = value.toInt();
    return append(text, 'i', &number, sizeof(number)), true;
  }
  if (value.isDouble()) {
    const double number = value.toDouble();
    return append(text, 'd', &number, sizeof(number)), true;
  }
  if (value.isString()) {
    const std::string& word = value.toStringRef();
    const size_t size = word.size();
    append(text, 's', &size, sizeof(size));
    return append(text, ':', word.data(), size), true;
  }
  if (!value.isList()) return false;
  const auto list = value.toListRef();
  const size_t size = list.size();
  append(text, 'l', &size, sizeof(size));
  for (const c10::IValue& item : list) {
    if (!describe(item, text)) return false;
  }
  return true;
}

// --- what results look like ---

// By signature; empty: such calls run at once.
std::unordered_map<std::string, std::vector<tpu_meta_id_t>>& known_results() {
  static auto* map = new std::unordered_map<std::string, std::vector<tpu_meta_id_t>>();
  return *map;
}

bool look_up(const std::string& signature, std::vector<tpu_meta_id_t>* metas) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = known_results().find(signature);
  if (found == known_results().end()) return false;
  *metas = found->second;
  return true;
}

void remember(const std::string& signature, std::vector<tpu_meta_id_t> metas) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (known_results().size() >= kMaxCalls) known_results().clear();
  known_results()[signature] = std::move(metas);
}

// Metadata of the results, if they are what PyTorch expects; else nothing.
std::vector<tpu_meta_id_t> metas_if_expected(const torch::jit::Stack& expected,
                                             const c10::IValue* results) {
  std::vector<tpu_meta_id_t> metas;
  for (size_t k = 0; k < expected.size(); ++k) {
    const at::Tensor wanted = expected[k].toTensor(), result = results[k].toTensor();
    if (!wanted.defined() || !result.defined() || !is_tpu(result)) return {};
    if (wanted.sizes() != result.sizes() || wanted.scalar_type() != result.scalar_type()) return {};
    metas.push_back(result_meta_of(result));
  }
  return metas;
}

// --- recording ---

// One call while it is recorded.
class Recording {
 public:
  Recording(const c10::OperatorHandle& op, c10::DispatchKey key, const c10::IValue* args)
      : made_{op, key, {}, {}, {}},
        schema_(op.schema()),
        args_(args),
        call_(op_row("fallback"), TPU_CALL_OUT) {
    text_ = c10::toString(op.operator_name());
    text_ += static_cast<char>(key);
  }

  // Gives the results in the order of the schema. False if nothing was recorded; see the header.
  bool run(std::vector<at::Tensor>* results, HostCallLesson* lesson);

 private:
  bool add(const c10::Argument& argument, const c10::IValue& value);
  void add_hole(HoleKind kind, int count);
  void add_operand(const at::Tensor& tensor);
  bool add_tensors(const c10::IValue& list);
  bool add_number(const c10::Argument& argument, const c10::IValue& value);

  HostCall made_;
  const c10::FunctionSchema& schema_;
  const c10::IValue* args_;
  Call call_;
  std::string text_;       // what `made_` is found by
  std::string signature_;  // with it, what results' metadata are found by
  bool has_tensor_ = false;
  std::vector<at::Tensor> written_;
};

// What a record can read.
bool is_operand(const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided) return false;
  if (!is_tpu(tensor)) return is_cpu_scalar(tensor) && !tensor.is_complex();
  return !is_lazy(tensor) && dtype_from(tensor.scalar_type()) != TPU_DTYPE_INVALID;
}

void describe_tensor(const at::Tensor& tensor, std::string* text) {
  const int64_t type = static_cast<int64_t>(tensor.scalar_type()) * 2 + (is_tpu(tensor) ? 1 : 0);
  append(text, 'T', &type, sizeof(type));
  append(text, '[', tensor.sizes().data(), tensor.sizes().size() * sizeof(int64_t));
  append(text, ']', tensor.strides().data(), tensor.strides().size() * sizeof(int64_t));
}

void Recording::add_operand(const at::Tensor& tensor) {
  describe_tensor(tensor, &signature_);
  has_tensor_ |= is_tpu(tensor);
  call_.tensor(tensor);
}

void Recording::add_hole(HoleKind kind, int count) {
  made_.holes.push_back(
      {made_.constants.size(), kind, static_cast<int>(call_.operand_count()), count});
  made_.constants.emplace_back();
  append(&text_, static_cast<char>(kind), &count, sizeof(count));
}

bool Recording::add_tensors(const c10::IValue& list) {
  const bool optional = list.isOptionalTensorList();
  const auto items = list.toListRef();
  add_hole(optional ? HoleKind::kOptionalTensors : HoleKind::kTensors,
           static_cast<int>(items.size()));
  for (const c10::IValue& item : items) {
    const bool given = item.isTensor() && item.toTensor().defined();
    if (given && !is_operand(item.toTensor())) return false;
    text_ += given ? '+' : '-';
    given ? add_operand(item.toTensor()) : static_cast<void>(call_.none());
  }
  return true;
}

// Numbers that may be others in the next call.
bool Recording::add_number(const c10::Argument& argument, const c10::IValue& value) {
  const c10::TypeKind kind = strip_optional(argument.real_type())->kind();
  const bool is_scalar = kind == c10::TypeKind::NumberType;
  if (!is_scalar && kind != c10::TypeKind::FloatType) return false;
  if (!value.isDouble() && !value.isInt() && !value.isBool()) return false;
  add_hole(is_scalar ? HoleKind::kScalar : HoleKind::kFloat, 1);
  text_ += value.isDouble() ? 'd' : value.isInt() ? 'i' : 'b';
  call_.scalar(value.toScalar());
  return true;
}

bool Recording::add(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isTensorList() || value.isOptionalTensorList()) return add_tensors(value);
  if (add_number(argument, value)) return true;
  if (!value.isTensor() || !value.toTensor().defined()) {
    made_.constants.push_back(value.isTensor() ? c10::IValue(at::Tensor()) : value);
    return describe(value.isTensor() ? c10::IValue() : value, &text_);
  }
  const at::Tensor& tensor = value.toTensor();
  if (!is_operand(tensor)) return false;
  if (is_written(argument)) {
    if (!is_tpu(tensor)) return false;
    made_.written.push_back(made_.holes.size());
    written_.push_back(tensor);
  }
  add_hole(HoleKind::kTensor, 1);
  add_operand(tensor);
  return true;
}

bool Recording::run(std::vector<at::Tensor>* results, HostCallLesson* lesson) {
  for (size_t i = 0; i < schema_.arguments().size(); ++i) {
    if (!add(schema_.arguments()[i], args_[i])) return false;
  }
  std::vector<tpu_meta_id_t> metas;
  if (!has_tensor_ || !look_up(signature_ + text_, &metas)) {
    if (has_tensor_) lesson->ask(made_.op, signature_ + text_, args_);
    return false;
  }
  const int64_t id = metas.empty() ? -1 : id_of(text_, made_);
  if (id < 0) return false;
  call_.attr(id);
  for (const at::Tensor& tensor : written_) call_.written(tensor);
  size_t next_meta = 0, next_written = 0, next_new = written_.size();
  for (const c10::Argument& result : schema_.returns()) {
    const tpu_meta_id_t meta = metas[next_meta++];
    if (result.alias_info() == nullptr) call_.result(meta);
  }
  call_.record();
  for (const c10::Argument& result : schema_.returns()) {
    results->push_back(result.alias_info() != nullptr ? written_[next_written++]
                                                      : call_.take(next_new++));
  }
  return true;
}

// --- running ---

class CallForm final : public HostForm {
 public:
  explicit CallForm(const HostCall* call) : call_(call) {}

  void run(const HostRecord& record, HostResults* results) const override {
    torch::jit::Stack stack = call_->constants;
    for (const Hole& hole : call_->holes) stack[hole.argument] = value_of(record, hole);
    for (size_t k = 0; k < call_->written.size(); ++k) {
      const Hole& hole = call_->holes[call_->written[k]];
      const at::Tensor place = record.writable(hole.operand, record.result_id(static_cast<int>(k)));
      stack[hole.argument] = place;
      results->push_back(place);
    }
    try {
      call_->op.redispatchBoxed(c10::DispatchKeySet(call_->key), &stack);
    } catch (c10::Error& error) {
      error.add_context(c10::toString(call_->op.operator_name()) + " ran on the host");
      throw;
    }
    const auto& returns = call_->op.schema().returns();
    for (size_t j = 0; j < returns.size(); ++j) {
      if (returns[j].alias_info() == nullptr) results->push_back(stack[j].toTensor());
    }
  }

 private:
  static c10::IValue value_of(const HostRecord& record, const Hole& hole) {
    switch (hole.kind) {
      case HoleKind::kTensor: return record.tensor(hole.operand);
      case HoleKind::kScalar: return record.scalar(hole.operand);
      case HoleKind::kFloat: return record.scalar(hole.operand).toDouble();
      case HoleKind::kTensors: {
        std::vector<at::Tensor> list;
        for (int k = 0; k < hole.count; ++k) list.push_back(record.tensor(hole.operand + k));
        return list;
      }
      default: {
        c10::List<std::optional<at::Tensor>> list;
        for (int k = 0; k < hole.count; ++k) list.push_back(record.optional(hole.operand + k));
        return list;
      }
    }
  }

  const HostCall* call_;
};

}  // namespace

void HostCallLesson::ask(const c10::OperatorHandle& op, std::string signature,
                         const c10::IValue* args) {
  op_ = op;
  signature_ = std::move(signature);
  for (size_t i = 0; i < op.schema().arguments().size(); ++i) {
    question_.push_back(to_meta_only(args[i]));
    if (is_written(op.schema().arguments()[i]))
      written_.push_back(args[i].toTensor().sizes().vec());
  }
}

// A record writes to a tensor as it is.
bool HostCallLesson::resized(const c10::IValue* results) const {
  const auto& returns = op_->schema().returns();
  size_t next = 0;
  for (size_t k = 0; k < returns.size(); ++k) {
    const bool is_written = returns[k].alias_info() != nullptr;
    if (is_written && results[k].toTensor().sizes() != written_[next++]) return true;
  }
  return false;
}

void HostCallLesson::learn(const torch::jit::Stack& stack) {
  if (!op_.has_value()) return;
  const auto& returns = op_->schema().returns();
  const c10::IValue* results = stack.data() + stack.size() - returns.size();
  std::vector<tpu_meta_id_t> metas;
  try {
    call_below_modes(*op_, &question_);
    if (!resized(results)) metas = metas_if_expected(question_, results);
  } catch (const c10::NotImplementedError&) {
    return never_record(*op_);
  } catch (const std::exception&) {
    // The meta kernel refuses what the CPU's takes.
  }
  remember(signature_, std::move(metas));
}

bool record_host_call(const c10::OperatorHandle& op, c10::DispatchKey host_key,
                      torch::jit::Stack* stack, HostCallLesson* lesson) {
  if (!is_recorded(op)) return false;
  const size_t count = op.schema().arguments().size();
  std::vector<at::Tensor> results;
  Recording recording(op, host_key, stack->data() + stack->size() - count);
  if (!recording.run(&results, lesson)) return false;
  torch::jit::drop(*stack, count);
  for (at::Tensor& result : results) stack->emplace_back(std::move(result));
  return true;
}

std::unique_ptr<HostForm> make_call_form(const tpu_record_t& record) {
  if ((tpu_op_info(record.op)->flags & TPU_OP_HOST) == 0) return nullptr;
  std::lock_guard<std::mutex> lock(g_mutex);
  return std::make_unique<CallForm>(
      calls().all.at(static_cast<size_t>(tpu_attr_int(record.attrs, 0, -1))));
}

}  // namespace tpu_shim
