// The plan: what the schema says, once per overload.
#include "overload.h"

#include <unordered_map>

#include "debug_checks.h"

namespace tpu_shim {

namespace {

// Numbers that scale a result rather than take part in it do not promote: add(bool, bool, alpha=1)
// is bool.
bool promotes(const c10::Argument& arg) {
  return arg.name() != "alpha" && arg.name() != "beta" && arg.name() != "value" &&
         arg.name() != "weight";
}

// All overloads of an ATen name, from one walk over the dispatcher.
const std::vector<c10::OperatorName>& overloads_of(const std::string& base) {
  static auto* map = [] {
    auto* made = new std::unordered_map<std::string, std::vector<c10::OperatorName>>();
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      (*made)[name.name].push_back(name);
    }
    return made;
  }();
  static const std::vector<c10::OperatorName> none;
  auto it = map->find(base);
  return it == map->end() ? none : it->second;
}

// Kernels behind these names have no meta kernel; the operations in front of them do.
c10::OperatorHandle question_for(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (name.name == "aten::convolution_overrideable") {
    return c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  }
  if (name.name == "aten::_logcumsumexp") {
    return c10::Dispatcher::singleton().findSchemaOrThrow("aten::logcumsumexp",
                                                          name.overload_name.c_str());
  }
  return op;
}

}  // namespace

Overload::Overload(tpu_op_t row, const c10::OperatorHandle& op)
    : op_(op),
      question_(question_for(op)),
      row_(row),
      flags_(tpu_op_info(row)->flags),
      check_numbers_(number_check(op.operator_name())) {
  const c10::FunctionSchema& schema = op.schema();
  size_t written = 0;
  for (const c10::Argument& arg : schema.arguments()) {
    const ArgumentKind kind = argument_kind(arg);
    kinds_.push_back(kind);
    promotes_.push_back(promotes(arg));
    if (kind == ArgumentKind::kOut) ++out_count_;
    if (kind == ArgumentKind::kUnsupported)
      obstacle_ = "argument '" + arg.name() + "' has an unsupported type";
    if (kind != ArgumentKind::kOut && is_written(arg)) ++written;
  }
  return_count_ = schema.returns().size();
  for (const c10::Argument& result : schema.returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType)
      obstacle_ = "returns something else than tensors";
    if (written == 0 && out_count_ == 0 && result.alias_info() != nullptr)
      obstacle_ = "returns a view";
  }
  if (out_count_ > 0) {
    variant_ = TPU_CALL_OUT;
    if (written > 0) obstacle_ = "writes to inputs besides out=";
    find_functional();
  } else if (written > 0) {
    variant_ = TPU_CALL_IN_PLACE;
    if (written > 1 || return_count_ != 1 || kinds_[0] != ArgumentKind::kTensor ||
        !is_written(schema.arguments()[0])) {
      obstacle_ = "writes to other arguments than the first";
    }
  }
}

// The overload without out=, so that its results' own dtypes can be asked.
void Overload::find_functional() {
  const auto& mine = op_.schema().arguments();
  const size_t count = mine.size() - out_count_;
  for (const c10::OperatorName& name : overloads_of(op_.operator_name().name)) {
    auto other = c10::Dispatcher::singleton().findSchema(name);
    if (!other.has_value()) continue;
    const auto& theirs = other->schema().arguments();
    bool same = theirs.size() == count && other->schema().returns().size() == return_count_;
    for (size_t i = 0; same && i < count; ++i) {
      same = theirs[i].name() == mine[i].name() && !is_written(theirs[i]) &&
             *theirs[i].real_type() == *mine[i].real_type();
    }
    if (same) functional_ = other;
  }
}

void Overload::run(torch::jit::Stack* stack) {
  if (check_numbers_ != nullptr) check_numbers_(arguments(*stack));
  if (C10_UNLIKELY(debug_mode())) check_index_arguments(op_.schema(), arguments(*stack));
  switch (variant_) {
    case TPU_CALL_FUNCTIONAL:
      if (has(TPU_OP_OVERWRITE) && kinds_[0] == ArgumentKind::kTensor) {
        run_overwrite_functional(stack);
      } else {
        run_functional(stack);
      }
      break;
    case TPU_CALL_IN_PLACE: run_in_place(stack); break;
    case TPU_CALL_OUT: run_out(stack); break;
  }
}

}  // namespace tpu_shim
