#include "number_checks.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

#include "argument_kind.h"

namespace tpu_shim {

namespace {

int argument_index(const c10::FunctionSchema& schema, const std::string& name) {
  return schema.argumentIndexWithName(name).value_or(-1);
}

bool is_number(const c10::Argument& argument) {
  const c10::TypeKind kind = strip_optional(argument.real_type())->kind();
  return kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType ||
         kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType;
}

bool is_integer(const c10::IValue& value) {
  return value.isTensor()
             ? c10::isIntegralType(value.toTensor().scalar_type(), /*includeBool=*/true)
             : value.toScalar().isIntegral(/*includeBool=*/true);
}

template <class T>
bool holds(tpu_relation_t relation, T a, T b) {
  switch (relation) {
    case TPU_RELATION_BELOW: return a < b;
    case TPU_RELATION_AT_MOST: return a <= b;
    case TPU_RELATION_ABOVE: return a > b;
    case TPU_RELATION_AT_LEAST: return a >= b;
    case TPU_RELATION_OTHER_THAN: return a != b;
  }
  return false;
}

bool holds(tpu_relation_t relation, const at::Scalar& a, const at::Scalar& b) {
  if (a.isIntegral(/*includeBool=*/true) && b.isIntegral(/*includeBool=*/true))
    return holds(relation, a.toLong(), b.toLong());
  return holds(relation, a.toDouble(), b.toDouble());
}

std::string number_text(const at::Scalar& value) {
  return value.isIntegral(/*includeBool=*/true) ? c10::str(value.toLong())
                                                : c10::str(value.toDouble());
}

// "size(dim)" -> "dim"; other bounds are none.
std::string sized_dimension(std::string_view bound) {
  constexpr std::string_view kHead = "size(";
  const bool is_size = bound.substr(0, kHead.size()) == kHead;
  return is_size ? std::string(bound.substr(kHead.size(), bound.size() - kHead.size() - 1)) : "";
}

// The rule's text with the values of the arguments that it names; dimensions count from the front.
std::string fill_text(const std::string& text, const c10::FunctionSchema& schema,
                      const c10::IValue* args) {
  std::string filled;
  size_t at = 0;
  for (size_t open; (open = text.find('{', at)) != std::string::npos;) {
    const size_t close = text.find('}', open);
    const int argument = argument_index(schema, text.substr(open + 1, close - open - 1));
    at::Scalar value = args[argument].toScalar();
    if (schema.arguments()[argument].name() == "dim")
      value = at::maybe_wrap_dim(value.toLong(), args[0].toTensor().dim());
    filled += text.substr(at, open - at) + number_text(value);
    at = close + 1;
  }
  return filled + text.substr(at);
}

// The rule for the dtype of a random integer: both ends must be values of it.
void check_in_range(int64_t value, const char* what, const at::Tensor& self) {
  const c10::ScalarType type = self.scalar_type();
  bool inside = true;
  AT_DISPATCH_V2(type, "random_", AT_WRAP([&] {
                   using limits = std::numeric_limits<scalar_t>;
                   if (c10::isFloatingType(type)) {
                     const double number = static_cast<double>(value);
                     inside = number >= static_cast<double>(limits::lowest()) &&
                              number <= static_cast<double>(limits::max());
                   } else if (type == at::kUInt64) {
                     inside = value >= 0;
                   } else {
                     inside = value >= static_cast<int64_t>(limits::lowest()) &&
                              value <= static_cast<int64_t>(limits::max());
                   }
                 }),
                 at::kHalf, at::kBFloat16, at::kBool, AT_EXPAND(AT_ALL_TYPES),
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  TORCH_CHECK(inside, what, " is out of bounds for ", self.dtype());
}

}  // namespace

NumberRules::NumberRules(tpu_op_t row, const c10::FunctionSchema& schema) {
  for (int i = 0; const tpu_number_rule_t* rule = tpu_op_number_rule(row, i); ++i) {
    const int argument = argument_index(schema, rule->argument);
    if (argument < 0 || !is_number(schema.arguments()[argument])) continue;
    const std::string dimension = sized_dimension(rule->bound);
    const bool is_size = !dimension.empty();
    const int bound_argument = argument_index(schema, is_size ? dimension : rule->bound);
    const int64_t bound = bound_argument < 0 ? std::atoll(rule->bound) : 0;
    rules_.push_back({rule, static_cast<size_t>(argument), bound_argument, is_size, bound});
  }
  for (int i = 0; const tpu_range_rule_t* rule = tpu_op_range_rule(row, i); ++i) {
    const int argument = argument_index(schema, rule->argument);
    if (argument >= 0) ranges_.push_back({rule, static_cast<size_t>(argument)});
  }
  const char* order = tpu_op_no_identity(row);
  if (order == nullptr) return;
  order_ = argument_index(schema, order);
  dims_ = argument_index(schema, "dim");
}

c10::IValue NumberRules::bound_of(const Rule& rule, const c10::IValue* args) {
  if (rule.bound_argument < 0) return rule.bound;
  const c10::IValue& argument = args[rule.bound_argument];
  if (!rule.is_size) return argument;
  const at::Tensor& self = args[0].toTensor();
  const int64_t dim = at::maybe_wrap_dim(argument.toInt(), self.dim());
  if (self.dim() == 0) return 1;
  // An empty dimension is refused with a text of its own, by the meta function.
  return self.size(dim) > 0 ? c10::IValue(self.size(dim)) : c10::IValue();
}

// Infinite and negative norms have no value where there is nothing to choose from.
void NumberRules::check_norm(const at::Tensor& self, const c10::IValue& order,
                             const c10::IValue& dims) {
  if (self.numel() > 0 || order.isNone()) return;
  const double p = order.toScalar().toDouble();
  if (p >= 0 && std::isfinite(p)) return;
  const std::vector<int64_t> along = dims.isNone() ? std::vector<int64_t>() : dims.toIntVector();
  TORCH_CHECK(!along.empty(), "linalg.vector_norm cannot compute the ", p,
              " norm on an empty tensor because the operation does not have an identity");
  for (int64_t dim : along) {
    TORCH_CHECK(self.size(dim) != 0, "linalg.vector_norm cannot compute the ", p,
                " norm on the dimension ", dim,
                " because this dimension is empty and the operation does not have an identity");
  }
}

void NumberRules::check(const c10::FunctionSchema& schema, const c10::IValue* args) const {
  for (const Rule& rule : rules_) {
    const c10::IValue& number = args[rule.argument];
    const c10::IValue bound = bound_of(rule, args);
    if (number.isNone() || bound.isNone()) continue;
    if (rule.of->integers_only && !(is_integer(args[0]) && is_integer(number))) continue;
    TORCH_CHECK(holds(rule.of->relation, number.toScalar(), bound.toScalar()),
                fill_text(rule.of->text, schema, args));
  }
  for (const Range& range : ranges_) {
    const c10::IValue& number = args[range.argument];
    if (number.isNone() || args[0].toTensor().is_complex()) continue;
    check_in_range(number.toInt() + range.of->offset, range.of->what, args[0].toTensor());
  }
  if (order_ >= 0) check_norm(args[0].toTensor(), args[order_], args[dims_]);
}

void check_fits(const c10::IValue& number, c10::ScalarType type) {
  if (number.isNone() || number.isTensor()) return;
  const at::Scalar value = number.toScalar();
  if (value.isComplex() && !c10::isComplexType(type)) return;  // another error, and the op's own
  AT_DISPATCH_V2(type, "scalar", AT_WRAP([&] { (void)value.to<scalar_t>(); }), at::kHalf,
                 at::kBFloat16, at::kBool, AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX),
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), AT_EXPAND(AT_FLOAT8_TYPES));
}

}  // namespace tpu_shim
