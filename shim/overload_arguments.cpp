// Arguments become operands and attributes.
#include "overload.h"

namespace tpu_shim {

namespace {

c10::SmallVector<int64_t, 8> int_list(const c10::IValue& value) {
  c10::SmallVector<int64_t, 8> ints;
  const auto add = [&](const c10::IValue& item) {
    ints.push_back(item.isBool() ? item.toBool() : item.toSymInt().guard_int(__FILE__, __LINE__));
  };
  if (!value.isList()) return add(value), ints;
  for (const c10::IValue& item : value.toListRef()) add(item);
  return ints;
}

}  // namespace

bool Overload::add_argument(Call* call, size_t i, const c10::IValue& value,
                            std::optional<at::Generator>* generator) const {
  switch (kinds_[i]) {
    case ArgumentKind::kTensor:
      if (value.isNone()) return call->none(), true;
      return call->tensor(value.toTensor()), true;
    case ArgumentKind::kTensorList: {
      if (value.isNone()) return call->attr_none(), true;
      const auto list = value.toListRef();
      for (const c10::IValue& item : list) {
        item.isNone() ? call->none() : call->tensor(item.toTensor());
      }
      call->attr(static_cast<int64_t>(list.size()));
      return true;
    }
    case ArgumentKind::kScalar:
    case ArgumentKind::kFloat:
      if (value.isNone()) return call->none(), true;
      return call->scalar(value.toScalar()), true;
    case ArgumentKind::kData:
      if (value.isNone()) return call->none(), true;
      call->scalar(value.toSymInt().guard_int(__FILE__, __LINE__));
      return true;
    case ArgumentKind::kDataList: {
      const c10::SmallVector<int64_t, 8> ints = int_list(value);
      for (const int64_t number : ints) call->scalar(number);
      call->attr(static_cast<int64_t>(ints.size()));
      return true;
    }
    case ArgumentKind::kInt:
      if (value.isNone()) return call->attr_none(), true;
      call->attr(value.isBool() ? value.toBool() : value.toSymInt().guard_int(__FILE__, __LINE__));
      return true;
    case ArgumentKind::kDtype:
      if (value.isNone()) return call->attr_none(), true;
      call->attr_dtype(value.toScalarType());
      return true;
    case ArgumentKind::kInts:
      if (value.isNone()) return call->attr_none(), true;
      call->attr_ints(int_list(value));
      return true;
    case ArgumentKind::kText:
      if (value.isNone()) return call->attr_none(), true;
      call->attr_text(value.toStringView());
      return true;
    case ArgumentKind::kGenerator:
      if (!value.isNone()) *generator = value.toGenerator();
      return true;
    case ArgumentKind::kOut:
    case ArgumentKind::kSkip: return true;
    case ArgumentKind::kUnsupported: return false;
  }
  return false;
}

// False when an argument has no place in a call (a complex number): the host must run it.
bool Overload::add_arguments(Call* call, const c10::IValue* args, bool skip_self,
                             std::optional<at::Generator>* generator) const {
  for (size_t i = skip_self ? 1 : 0; i < kinds_.size(); ++i) {
    if (!add_argument(call, i, args[i], generator)) return false;
  }
  return true;
}

}  // namespace tpu_shim
