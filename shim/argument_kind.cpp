#include "argument_kind.h"

#include "ops/rules.h"

namespace tpu_shim {

c10::TypePtr strip_optional(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) return optional->getElementType();
  return type;
}

namespace {

ArgumentKind list_kind(const c10::ListType& list) {
  switch (strip_optional(list.getElementType())->kind()) {
    case c10::TypeKind::TensorType: return ArgumentKind::kTensorList;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::BoolType: return ArgumentKind::kInts;
    default: return ArgumentKind::kUnsupported;
  }
}

ArgumentKind kind_of_type(const c10::Argument& arg) {
  if (arg.is_out()) return ArgumentKind::kOut;
  if (arg.name() == "layout" || arg.name() == "device" || arg.name() == "pin_memory")
    return ArgumentKind::kSkip;
  const c10::TypePtr type = strip_optional(arg.real_type());
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return ArgumentKind::kTensor;
    case c10::TypeKind::NumberType: return ArgumentKind::kScalar;
    case c10::TypeKind::FloatType: return ArgumentKind::kFloat;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::MemoryFormatType: return ArgumentKind::kInt;
    case c10::TypeKind::ScalarTypeType: return ArgumentKind::kDtype;
    case c10::TypeKind::StringType: return ArgumentKind::kText;
    case c10::TypeKind::GeneratorType: return ArgumentKind::kGenerator;
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::DeviceObjType: return ArgumentKind::kSkip;
    case c10::TypeKind::ListType: return list_kind(type->expectRef<c10::ListType>());
    default: return ArgumentKind::kUnsupported;
  }
}

}  // namespace

ArgumentKind argument_kind(tpu_op_t row, const c10::Argument& arg) {
  const ArgumentKind kind = kind_of_type(arg);
  if (!tpu_op_is_data(row, arg.name().c_str())) return kind;
  return kind == ArgumentKind::kInts ? ArgumentKind::kDataList : ArgumentKind::kData;
}

bool is_written(const c10::Argument& arg) {
  return arg.alias_info() != nullptr && arg.alias_info()->isWrite();
}

}  // namespace tpu_shim
