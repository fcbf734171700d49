#include "distributions.h"

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

struct Row {
  std::string_view name, overload;
  DistributionCheck check;
};
constexpr Row kRows[] = {
    {"aten::normal_", "", check_normal},           {"aten::log_normal_", "", check_log_normal},
    {"aten::uniform_", "", check_uniform},         {"aten::bernoulli_", "float", check_bernoulli},
    {"aten::exponential_", "", check_exponential}, {"aten::cauchy_", "", check_cauchy},
    {"aten::geometric_", "", check_geometric},
};

}  // namespace

DistributionCheck distribution_check(const c10::OperatorName& name) {
  for (const Row& row : kRows) {
    if (name.name == row.name && name.overload_name == row.overload) return row.check;
  }
  return nullptr;
}

}  // namespace tpu_shim
