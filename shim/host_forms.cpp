// The rule of the op table, read backwards: a record's operands and attributes become the arguments
// of the overload that it came from.
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstring>
#include <vector>

#include "adapter.h"
#include "argument_kind.h"
#include "host_ops.h"

namespace tpu_shim {

namespace {

// An argument that differs from call to call.
struct Filled {
  size_t argument;
  ArgumentKind kind;
  int operand;       // the first one
  int count;         // operands; kOut: which result
  bool may_be_none;  // Tensor? and Tensor?[]
};

class OverloadForm final : public HostForm {
 public:
  explicit OverloadForm(c10::OperatorHandle op) : op_(std::move(op)) {}

  // False if the record cannot have come from this overload. `exact` is for rows that have several
  // which differ in little; else int[1] stands for any list, Scalar for a complex number, which is
  // a tensor's content, and an out= form for the functional one that its row doesn't have.
  bool fit(const tpu_record_t& record, bool exact);

  void run(const HostRecord& record, HostResults* results) const override {
    torch::jit::Stack stack = arguments_;
    for (const Filled& f : filled_) stack[f.argument] = argument(f, record);
    if (record.record().variant == TPU_CALL_THROUGH) return run_through(record, &stack, results);
    op_.callBoxed(&stack);
    for (size_t k = 0; k < stack.size(); ++k) results->push_back(std::move(stack[k]).toTensor());
  }

 private:
  // Works inside a copy of the content behind operand 0, which becomes the result.
  void run_through(const HostRecord& record, torch::jit::Stack* stack, HostResults* results) const {
    const at::Tensor content = record.value(0).clone();
    stack->front() = record.read(content, 0);
    op_.callBoxed(stack);
    results->push_back(content);
  }
  bool add(const c10::Argument& arg, const tpu_record_t& record);
  bool add_attribute(const c10::Argument& arg, ArgumentKind kind, tpu_attrs_id_t attrs);
  c10::IValue argument(const Filled& f, const HostRecord& record) const;
  void fill(ArgumentKind kind, int operand, int count, bool may_be_none = false) {
    filled_.push_back({arguments_.size(), kind, operand, count, may_be_none});
    arguments_.emplace_back();
  }

  c10::OperatorHandle op_;
  bool exact_ = false;
  torch::jit::Stack arguments_;  // with a hole for each of filled_
  std::vector<Filled> filled_;
  int operand_ = 0, attribute_ = 0, out_ = 0;  // while fitting
};

bool is_bool(const c10::TypePtr& type) {
  return strip_optional(type)->kind() == c10::TypeKind::BoolType;
}

c10::IValue list_value(const c10::Argument& arg, c10::IntArrayRef values) {
  const c10::TypePtr type = strip_optional(arg.real_type());
  if (!is_bool(type->expectRef<c10::ListType>().getElementType())) {
    return c10::IValue(values.vec());
  }
  c10::List<bool> flags;
  for (const int64_t value : values) flags.push_back(value != 0);
  return flags;
}

bool OverloadForm::add_attribute(const c10::Argument& arg, ArgumentKind kind,
                                 tpu_attrs_id_t attrs) {
  const int place = attribute_++;
  const tpu_attr_kind_t given = tpu_attr_kind(attrs, place);
  const int64_t* ints = nullptr;
  if (place >= tpu_attrs_argument_count(attrs)) return false;
  if (given == TPU_ATTR_NONE) {
    arguments_.emplace_back();
    return arg.type()->kind() == c10::TypeKind::OptionalType;
  }
  switch (kind) {
    case ArgumentKind::kInt: {
      if (given != TPU_ATTR_INT) return false;
      const int64_t value = tpu_attr_int(attrs, place, 0);
      arguments_.push_back(is_bool(arg.type()) ? c10::IValue(value != 0) : c10::IValue(value));
      return true;
    }
    case ArgumentKind::kDtype:
      if (given != TPU_ATTR_DTYPE) return false;
      arguments_.emplace_back(scalar_type_from(tpu_attr_dtype(attrs, place, TPU_F32)));
      return true;
    case ArgumentKind::kInts: {
      if (given != TPU_ATTR_INTS) return false;
      const int count = tpu_attr_ints(attrs, place, &ints);
      const int wanted = arg.N().value_or(0);
      if (wanted > (exact_ ? 0 : 1) && count > 1 && count != wanted) return false;
      arguments_.push_back(list_value(arg, {ints, static_cast<size_t>(count)}));
      return true;
    }
    case ArgumentKind::kText:
      if (given != TPU_ATTR_TEXT) return false;
      arguments_.emplace_back(std::string(tpu_attr_text(attrs, place)));
      return true;
    default: return false;
  }
}

bool OverloadForm::add(const c10::Argument& arg, const tpu_record_t& record) {
  const ArgumentKind kind = argument_kind(record.op, arg);
  switch (kind) {
    case ArgumentKind::kTensor:
      if (operand_ >= record.operand_count) return false;
      fill(kind, operand_++, 1, arg.type()->kind() == c10::TypeKind::OptionalType);
      return true;
    case ArgumentKind::kScalar:
    case ArgumentKind::kFloat:
    case ArgumentKind::kData: {
      if (operand_ >= record.operand_count) return false;
      const tpu_ref_kind_t given = tpu_ref_kind(tpu_record_ref(&record, operand_));
      // A complex number is the content of a tensor.
      const bool plain = given == TPU_REF_SCALAR || given == TPU_REF_NONE;
      if (!plain && (exact_ || kind != ArgumentKind::kScalar)) return false;
      fill(kind, operand_++, 1);
      return true;
    }
    case ArgumentKind::kTensorList:
    case ArgumentKind::kDataList: {
      if (tpu_attr_kind(record.attrs, attribute_) != TPU_ATTR_INT) return false;
      const int count = static_cast<int>(tpu_attr_int(record.attrs, attribute_++, 0));
      if (count > record.operand_count - operand_) return false;
      const auto& list = strip_optional(arg.real_type())->expectRef<c10::ListType>();
      fill(kind, operand_, count, list.getElementType()->kind() == c10::TypeKind::OptionalType);
      operand_ += count;
      return true;
    }
    case ArgumentKind::kOut:
      if (out_ >= record.result_count) return false;
      fill(kind, 0, out_++);
      return true;
    case ArgumentKind::kGenerator:
    case ArgumentKind::kSkip: arguments_.emplace_back(); return true;
    case ArgumentKind::kUnsupported: return false;
    default: return add_attribute(arg, kind, record.attrs);
  }
}

bool OverloadForm::fit(const tpu_record_t& record, bool exact) {
  exact_ = exact;
  const c10::FunctionSchema& schema = op_.schema();
  const bool in_place = is_written(schema.arguments()[0]) && !schema.arguments()[0].is_out();
  const bool has_out = schema.arguments().back().is_out();
  if (schema.returns().size() != static_cast<size_t>(record.result_count)) return false;
  const bool through = record.variant == TPU_CALL_THROUGH;
  if (in_place != (through || record.variant == TPU_CALL_IN_PLACE)) return false;
  if (has_out && exact && record.variant != TPU_CALL_OUT) return false;
  const bool overwrite = (tpu_op_info(record.op)->flags & TPU_OP_OVERWRITE) != 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (i == 0 && in_place) {
      // The place of the result: operand 0 unless its content does not matter.
      fill(ArgumentKind::kOut, overwrite ? -1 : operand_++, -1);
      continue;
    }
    if (!add(schema.arguments()[i], record)) return false;
  }
  // Without a functional form, the dtypes of the results come last.
  for (int k = 0; has_out && attribute_ < tpu_attrs_argument_count(record.attrs) && k < out_; ++k) {
    if (tpu_attr_kind(record.attrs, attribute_++) != TPU_ATTR_DTYPE) return false;
  }
  return operand_ == record.operand_count && attribute_ == tpu_attrs_argument_count(record.attrs);
}

// Operations that make floats of integers make Python's, which may be others now.
at::Tensor as_recorded(const HostRecord& record, const at::Tensor& x) {
  const tpu_record_t& r = record.record();
  const bool to_floats = (tpu_op_info(r.op)->flags & TPU_OP_INT_TO_FLOAT) != 0;
  if (!to_floats || !c10::isIntegralType(x.scalar_type(), /*includeBool=*/true)) return x;
  const tpu_dtype_t dtype = tpu_attrs_default_dtype(r.attrs);
  return dtype == TPU_F32 ? x : x.to(scalar_type_from(dtype));
}

c10::IValue OverloadForm::argument(const Filled& f, const HostRecord& record) const {
  switch (f.kind) {
    case ArgumentKind::kTensor:
      if (f.may_be_none && !record.has(f.operand)) return {};
      return as_recorded(record, record.tensor(f.operand));
    case ArgumentKind::kScalar:
      return record.has(f.operand) ? c10::IValue(record.number(f.operand)) : c10::IValue();
    case ArgumentKind::kFloat:
      return record.has(f.operand) ? c10::IValue(record.scalar(f.operand).toDouble())
                                   : c10::IValue();
    case ArgumentKind::kData:
      return record.has(f.operand) ? c10::IValue(record.scalar(f.operand).toLong()) : c10::IValue();
    case ArgumentKind::kDataList: {
      std::vector<int64_t> numbers;
      for (int k = 0; k < f.count; ++k) numbers.push_back(record.scalar(f.operand + k).toLong());
      return numbers;
    }
    case ArgumentKind::kTensorList: {
      if (!f.may_be_none) {
        std::vector<at::Tensor> list;
        for (int k = 0; k < f.count; ++k) list.push_back(record.tensor(f.operand + k));
        return list;
      }
      c10::List<std::optional<at::Tensor>> list;
      for (int k = 0; k < f.count; ++k) list.push_back(record.optional(f.operand + k));
      return list;
    }
    default:
      if (f.count >= 0) return record.empty_result(f.count);
      return f.operand < 0 ? record.empty_result(0)
                           : record.writable(f.operand, record.result_id(0));
  }
}

}  // namespace

std::unique_ptr<HostForm> make_overload_form(const tpu_record_t& record) {
  const tpu_op_info_t* info = tpu_op_info(record.op);
  if (!has_rule_form(record)) return nullptr;
  // The name that devices of their own register convolutions under has no CPU kernel. (Who answers
  // for a row's metadata, tpu_op_question, may compute something else.)
  const bool convolution = std::strcmp(info->name, "convolution") == 0;
  for (const bool exact : {true, false}) {
    for (const std::string& name : names_of(record.op)) {
      const auto op = c10::Dispatcher::singleton().findSchema(
          operator_name(convolution ? "convolution" : name));
      if (!op.has_value()) continue;
      auto form = std::make_unique<OverloadForm>(*op);
      if (form->fit(record, exact)) return form;
    }
  }
  return nullptr;
}

}  // namespace tpu_shim
