// The plan: what the schema says, once per overload.
#include "overload.h"

#include <cstring>
#include <unordered_map>

namespace tpu_shim {

namespace {

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

// What answers for the results of this overload.
c10::OperatorHandle question_for(tpu_op_t row, const c10::OperatorHandle& op) {
  const char* other = tpu_op_question(row);
  if (other == nullptr) return op;
  std::string name = std::string("aten::") + other;
  const c10::Argument* first = op.schema().arguments().data();
  if (is_written(*first) && !first->is_out()) name += '_';  // __lshift__ writes nothing
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(),
                                                        op.operator_name().overload_name.c_str());
}

}  // namespace

Overload::Overload(tpu_op_t row, const c10::OperatorHandle& op)
    : op_(op),
      question_(question_for(row, op)),
      row_(row),
      flags_(tpu_op_info(row)->flags),
      number_rules_(row, op.schema()),
      overlap_(tpu_op_overlap(row)) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string aten = schema.name().substr(std::strlen("aten::"));
  size_t written = 0;
  for (const c10::Argument& arg : schema.arguments()) {
    const ArgumentKind kind = argument_kind(row, arg);
    if (tpu_op_is_image(aten.c_str(), arg.name().c_str())) images_.push_back(kinds_.size());
    kinds_.push_back(kind);
    if (kind <= ArgumentKind::kFloat) last_operand_ = kinds_.size() - 1;
    if (kind == ArgumentKind::kScalar) fits_ = has(TPU_OP_FIT);
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
    writes_self_ = !overloads_of(op.operator_name().name + '_').empty();
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
  for (const c10::OperatorName& name : overloads_of(question_.operator_name().name)) {
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

// PyTorch's own checks of numbers see only the first call of a signature.
void Overload::check_numbers(const c10::IValue* args) const {
  number_rules_.check(op_.schema(), args);
  if (!fits_) return;
  const c10::ScalarType type =
      has(TPU_OP_PROMOTE) ? promoted_type(args) : args[0].toTensor().scalar_type();
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i] == ArgumentKind::kScalar) check_fits(args[i], type);
  }
}

void Overload::run(torch::jit::Stack* stack) {
  check_numbers(arguments(*stack));
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
