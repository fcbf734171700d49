#include "signature_checks.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>

namespace tpu_shim {

namespace {

const c10::IValue& argument(const c10::FunctionSchema& schema, const c10::IValue* args,
                            const char* name) {
  return args[schema.argumentIndexWithName(name).value()];
}

void check_convolution(const c10::FunctionSchema& schema, const c10::IValue* args) {
  if (!argument(schema, args, "transposed").toBool()) return;
  const std::vector<int64_t> padding = argument(schema, args, "output_padding").toIntVector();
  const std::vector<int64_t> stride = argument(schema, args, "stride").toIntVector();
  const std::vector<int64_t> dilation = argument(schema, args, "dilation").toIntVector();
  for (size_t i = 0; i < std::min({padding.size(), stride.size(), dilation.size()}); ++i) {
    TORCH_CHECK(padding[i] < std::max(stride[i], dilation[i]),
                "output padding must be smaller than either stride or dilation, but got "
                "output_padding: ",
                padding, " stride: ", stride, " dilation: ", dilation);
  }
}

void check_multinomial(const c10::FunctionSchema& schema, const c10::IValue* args) {
  constexpr int64_t kMostCategories = int64_t{1} << 24;
  const at::Tensor self = args[0].toTensor();
  TORCH_CHECK(
      self.is_floating_point(),
      "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(self.dim() == 0 || self.size(-1) <= kMostCategories,
              "number of categories cannot exceed 2^24");
  TORCH_CHECK(self.dim() == 0 || argument(schema, args, "replacement").toBool() ||
                  argument(schema, args, "num_samples").toInt() <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  if (const auto out = schema.argumentIndexWithName("out")) {
    const c10::ScalarType type = args[*out].toTensor().scalar_type();
    TORCH_CHECK(type == at::kLong, "multinomial expects Long tensor out, got: ", type);
  }
}

// Another operation answers for shifts, and refuses these only where the CPU is asked.
void check_shift(const c10::FunctionSchema& schema, const c10::IValue* args) {
  for (size_t i = 0; i < 2; ++i) {
    const c10::ScalarType type =
        args[i].isTensor() ? args[i].toTensor().scalar_type() : args[i].toScalar().type();
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::isFloatingType(type), "\"", schema.name(),
                                "\" not implemented for '", type, "'");
  }
}

struct Check {
  const char* row;
  void (*run)(const c10::FunctionSchema& schema, const c10::IValue* args);
};
constexpr Check kChecks[] = {
    {"convolution", check_convolution},
    {"multinomial", check_multinomial},
    {"shift_left", check_shift},
    {"shift_right", check_shift},
};

}  // namespace

void check_signature(tpu_op_t row, const c10::FunctionSchema& schema, const c10::IValue* args) {
  for (const Check& check : kChecks) {
    if (std::strcmp(check.row, tpu_op_info(row)->name) == 0) check.run(schema, args);
  }
}

}  // namespace tpu_shim
