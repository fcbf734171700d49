#include "number_checks.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>

#include <string_view>

namespace tpu_shim {

namespace {

void check_normal(const c10::IValue* args) {
  const double std = args[2].toDouble();
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
}

void check_log_normal(const c10::IValue* args) {
  const double std = args[2].toDouble();
  TORCH_CHECK(std > 0.0, "log_normal_ expects std > 0.0, but found std=", std);
}

void check_uniform(const c10::IValue* args) {
  const double from = args[1].toDouble(), to = args[2].toDouble();
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from,
              " > to=", to);
}

void check_bernoulli(const c10::IValue* args) {
  const double p = args[1].toDouble();
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

void check_exponential(const c10::IValue* args) {
  const double lambda = args[1].toDouble();
  TORCH_CHECK(lambda > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", lambda);
}

void check_cauchy(const c10::IValue* args) {
  const double sigma = args[2].toDouble();
  TORCH_CHECK(sigma > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
}

void check_geometric(const c10::IValue* args) {
  const double p = args[1].toDouble();
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
}

// "value cannot be converted to type uint8_t without overflow", as for the conversion in a kernel.
void check_fits(const c10::IValue& number, c10::ScalarType type) {
  if (number.isNone() || number.isTensor()) return;
  const at::Scalar value = number.toScalar();
  if (value.isComplex() && !c10::isComplexType(type)) return;  // another error, and the op's own
  AT_DISPATCH_V2(type, "scalar", AT_WRAP([&] { (void)value.to<scalar_t>(); }), at::kHalf,
                 at::kBFloat16, at::kBool, AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX),
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

// The number at this position becomes an element of the first argument.
template <size_t position>
void check_element(const c10::IValue* args) {
  const at::ScalarType type = args[0].toTensor().scalar_type();
  if (!c10::isFloat8Type(type)) check_fits(args[position], type);
}

// clamp and its halves: bounds are converted to the result's dtype.
template <size_t first, size_t last>
void check_bounds(const c10::IValue* args) {
  at::native::ResultTypeState state = at::native::update_result_type_state(args[0].toTensor(), {});
  for (size_t i = first; i <= last; ++i) {
    if (args[i].isScalar()) {
      state = at::native::update_result_type_state(args[i].toScalar(), state);
    }
  }
  const at::ScalarType type = at::native::result_type(state);
  for (size_t i = first; i <= last; ++i) check_fits(args[i], type);
}

void check_power(const c10::IValue* args) {
  const at::Tensor& base = args[0].toTensor();
  const at::Scalar exponent = args[1].toScalar();
  TORCH_CHECK(!c10::isIntegralType(base.scalar_type(), /*includeBool=*/true) ||
                  !exponent.isIntegral(/*includeBool=*/true) || exponent.toLong() >= 0,
              "Integers to negative integer powers are not allowed.");
}

template <size_t from, size_t to>
void check_range(const c10::IValue* args) {
  const int64_t low = from > 0 ? args[from].toInt() : 0;
  if (args[to].isNone()) return;
  const int64_t high = args[to].toInt();
  TORCH_CHECK(low < high, "random_ expects 'from' to be less than 'to', but got from=", low,
              " >= to=", high);
}

struct Row {
  std::string_view name, overload;
  NumberCheck check;
};
constexpr Row kRows[] = {
    {"aten::normal_", "", check_normal},
    {"aten::log_normal_", "", check_log_normal},
    {"aten::uniform_", "", check_uniform},
    {"aten::bernoulli_", "float", check_bernoulli},
    {"aten::exponential_", "", check_exponential},
    {"aten::cauchy_", "", check_cauchy},
    {"aten::geometric_", "", check_geometric},
    {"aten::random_", "from", check_range<1, 2>},
    {"aten::random_", "to", check_range<0, 1>},
    {"aten::fill_", "Scalar", check_element<1>},
    {"aten::fill", "Scalar", check_element<1>},
    {"aten::masked_fill_", "Scalar", check_element<2>},
    {"aten::masked_fill", "Scalar", check_element<2>},
    {"aten::index_fill_", "int_Scalar", check_element<3>},
    {"aten::scatter", "value_out", check_element<3>},
    {"aten::constant_pad_nd", "", check_element<2>},
    {"aten::clamp", "out", check_bounds<1, 2>},
    {"aten::clamp", "", check_bounds<1, 2>},
    {"aten::clamp_", "", check_bounds<1, 2>},
    {"aten::clamp_min", "out", check_bounds<1, 1>},
    {"aten::clamp_min", "", check_bounds<1, 1>},
    {"aten::clamp_max", "out", check_bounds<1, 1>},
    {"aten::clamp_max", "", check_bounds<1, 1>},
    {"aten::pow", "Tensor_Scalar", check_power},
    {"aten::pow", "Tensor_Scalar_out", check_power},
    {"aten::pow_", "Scalar", check_power},
};

}  // namespace

NumberCheck number_check(const c10::OperatorName& name) {
  for (const Row& row : kRows) {
    if (name.name == row.name && name.overload_name == row.overload) return row.check;
  }
  return nullptr;
}

}  // namespace tpu_shim
