// Forms of random rows: the C kernels of core/host, which programs on the CPU platform call too, so
// that the numbers are the same bits.
#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>

#include <cfloat>
#include <cstring>
#include <limits>

#include "host/random.h"
#include "host_forms.h"

namespace tpu_shim {

namespace {

// Numbers that one thread draws at least; a multiple of the 4 that a counter gives.
constexpr int64_t kGrain = 4096;

// The operands of a random row end with the generator's state.
int parameter_at(R r, int back) { return r.operand_count() - 2 - back; }

tpu_random_draw_t draw_of(R r, tpu_random_kind_t kind, tpu_dtype_t math) {
  tpu_random_draw_t draw{};
  draw.kind = kind;
  draw.math = math;
  draw.seed = static_cast<uint64_t>(r.number(r.operand_count() - 2).toLong());
  draw.offset = static_cast<uint64_t>(r.number(r.operand_count() - 1).toLong());
  return draw;
}

// Operand k as a parameter; `kept` holds its elements.
tpu_random_parameter_t parameter(R r, int k, tpu_dtype_t math, const tpu_meta_t& result,
                                 at::Tensor* kept) {
  const c10::ScalarType type = scalar_type_from(math);
  const at::Tensor x = r.tensor(k).to(type);
  if (x.dim() == 0) return {x.item().toDouble(), nullptr};
  *kept = x.expand(sizes_of(result)).contiguous();
  return {0, kept->const_data_ptr()};
}

at::Tensor drawn(const tpu_random_draw_t& draw, c10::IntArrayRef sizes, tpu_dtype_t dtype) {
  const at::Tensor out(at::detail::empty_cpu(sizes, scalar_type_from(dtype)));
  char* data = static_cast<char*>(out.mutable_data_ptr());
  const int64_t chunks = (out.numel() + kGrain - 1) / kGrain;
  at::parallel_for(0, chunks, 4, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kGrain, end = std::min(last * kGrain, out.numel());
    TPU_THROW_IF_ERROR(tpu_random_fill(&draw, dtype, begin, end,
                                       data + begin * static_cast<int64_t>(out.itemsize())));
  });
  return out;
}

// Draws in the result's dtype where the kernel writes it, else in `otherwise`.
at::Tensor drawn_for(const tpu_random_draw_t& draw, const tpu_meta_t& result,
                     tpu_dtype_t otherwise) {
  const bool takes = tpu_random_takes(draw.kind, draw.math, result.dtype);
  return drawn(draw, sizes_of(result), takes ? result.dtype : otherwise);
}

// What programs check of their data: lower/random.c has the same bounds and words.
void check_within(const at::Tensor& x, double low, double high, const char* text) {
  const at::Tensor inside = x.ge(low).logical_and_(x.le(high));
  TORCH_CHECK(inside.all().item().toBool(), text);
}

class Distribution final : public HostForm {
 public:
  Distribution(tpu_random_kind_t kind, int parameters) : kind_(kind), parameters_(parameters) {}
  void run(R r, HostResults* results) const override {
    const tpu_meta_t& result = r.result(0);
    tpu_dtype_t math = result.dtype == TPU_F64 ? TPU_F64 : TPU_F32;
    if (kind_ == TPU_RANDOM_BERNOULLI) {
      const at::Tensor p = r.tensor(parameter_at(r, 1));
      math = p.scalar_type() == at::kDouble && p.dim() > 0 ? TPU_F64 : TPU_F32;
    }
    check(r);
    tpu_random_draw_t draw = draw_of(r, kind_, math);
    at::Tensor a, b;
    draw.a = parameter(r, parameter_at(r, parameters_), math, result, &a);
    if (parameters_ > 1) draw.b = parameter(r, parameter_at(r, 1), math, result, &b);
    results->push_back(drawn_for(draw, result, math));
  }

 private:
  // Numbers were checked when the call was recorded.
  void check(R r) const {
    const int last = parameter_at(r, 1);
    if (r.is_number(last)) return;
    if (kind_ == TPU_RANDOM_BERNOULLI) {
      check_within(r.tensor(last), 0, 1,
                   "Expected p_in >= 0 && p_in <= 1 to be true, but got false");
    } else if (kind_ == TPU_RANDOM_NORMAL) {
      check_within(r.tensor(last), 0, std::numeric_limits<double>::infinity(),
                   "normal expects all elements of std >= 0.0");
    }
  }

  tpu_random_kind_t kind_;
  int parameters_;
};

// Operands: from and to, to, or none; `to` may be missing.
class Integers final : public HostForm {
 public:
  Integers(bool has_from, bool has_to) : has_from_(has_from), has_to_(has_to) {}
  void run(R r, HostResults* results) const override {
    const tpu_meta_t& result = r.result(0);
    tpu_random_draw_t draw = draw_of(r, TPU_RANDOM_INTEGERS, TPU_F32);
    if (has_from_) draw.from = r.number(parameter_at(r, 2)).toLong();
    const bool bounded = has_to_ && r.has(parameter_at(r, 1));
    const int64_t last = bounded ? r.number(parameter_at(r, 1)).toLong() - 1
                                 : tpu_random_greatest_integer(result.dtype);
    draw.range = static_cast<uint64_t>(last) - static_cast<uint64_t>(draw.from) + 1;
    results->push_back(drawn_for(draw, result, TPU_I64));
  }

 private:
  bool has_from_, has_to_;
};

// Attribute: how many.
class Permutation final : public HostForm {
  void run(R r, HostResults* results) const override {
    const tpu_dtype_t dtype = r.result(0).dtype == TPU_I32 ? TPU_I32 : TPU_I64;
    const tpu_random_draw_t draw = draw_of(r, TPU_RANDOM_INTEGERS, TPU_F32);
    const at::Tensor out = empty_sized(r.result(0), dtype);
    TPU_THROW_IF_ERROR(
        tpu_random_permutation(draw.seed, draw.offset, dtype, out.numel(), out.mutable_data_ptr()));
    results->push_back(out);
  }
};

// Operands: weights; attributes: samples, replacement.
class Classes final : public HostForm {
  void run(R r, HostResults* results) const override {
    const at::Tensor given = r.tensor(0);
    const bool wide = given.scalar_type() == at::kDouble;
    const at::Tensor weights =
        given.to(wide ? at::kDouble : at::kFloat).reshape({-1, given.size(-1)}).contiguous();
    check_within(weights, 0, wide ? DBL_MAX : static_cast<double>(FLT_MAX),
                 "probability tensor contains either `inf`, `nan` or element < 0");
    TORCH_CHECK(weights.gt(0).any(1).all().item().toBool(),
                "invalid multinomial distribution (sum of probabilities <= 0)");
    const at::Tensor out = r.empty_result(0);
    const tpu_random_draw_t draw = draw_of(r, TPU_RANDOM_UNIFORM, TPU_F32);
    const int64_t samples = r.attr_int(0, 1);
    const tpu_random_classes_t task{draw.seed,
                                    draw.offset,
                                    wide ? TPU_F64 : TPU_F32,
                                    weights.size(1),
                                    samples,
                                    r.attr_int(1) != 0 && samples > 1,
                                    weights.const_data_ptr(),
                                    out.mutable_data_ptr<int64_t>()};
    at::parallel_for(0, weights.size(0), 1, [&](int64_t first, int64_t last) {
      TPU_THROW_IF_ERROR(tpu_random_draw_classes(&task, first, last));
    });
    results->push_back(out);
  }
};

// Operands: input, p, seed, offset; attribute: whether anything is dropped. A factor and no choice:
// what is NaN stays NaN.
class Dropout final : public HostForm {
  void run(R r, HostResults* results) const override {
    const at::Tensor x = r.tensor(0);
    if (r.attr_int(0, 1) == 0) {
      results->append({x, r.empty_result(1).fill_(true)});
      return;
    }
    const double p = r.scalar(1).toDouble();
    const at::Tensor keep = drawn_mask(r, 2, p, /*wide=*/false, x.sizes());
    const c10::ScalarType type = at::toOpMathType(x.scalar_type());
    const at::Tensor factor = keep.to(type) * (p < 1 ? 1 / (1 - p) : 0.0);
    results->append({x.to(type) * factor, keep});
  }
};

struct RandomRow {
  const char* row;
  tpu_random_kind_t kind;
  int parameters;
};

constexpr RandomRow kDistributions[] = {
    {"normal", TPU_RANDOM_NORMAL, 2},
    {"normal_tensors", TPU_RANDOM_NORMAL, 2},
    {"log_normal", TPU_RANDOM_LOG_NORMAL, 2},
    {"uniform", TPU_RANDOM_UNIFORM, 2},
    {"exponential", TPU_RANDOM_EXPONENTIAL, 1},
    {"cauchy", TPU_RANDOM_CAUCHY, 2},
    {"geometric", TPU_RANDOM_GEOMETRIC, 1},
    {"bernoulli", TPU_RANDOM_BERNOULLI, 1},
    {"bernoulli_fill", TPU_RANDOM_BERNOULLI, 1},
};

bool is_row(const tpu_record_t& record, const char* name) {
  return std::strcmp(tpu_op_info(record.op)->name, name) == 0;
}

}  // namespace

at::Tensor drawn_mask(R r, int state_at, double p, bool wide, c10::IntArrayRef sizes) {
  tpu_random_draw_t draw{};
  draw.kind = TPU_RANDOM_BERNOULLI;
  draw.math = TPU_F32;
  draw.seed = static_cast<uint64_t>(r.number(state_at).toLong());
  draw.offset = static_cast<uint64_t>(r.number(state_at + 1).toLong());
  draw.wide = wide;
  draw.a.number = 1.0f - static_cast<float>(p);
  return drawn(draw, sizes, TPU_BOOL);
}

std::unique_ptr<HostForm> make_random_form(const tpu_record_t& record) {
  for (const RandomRow& entry : kDistributions) {
    if (is_row(record, entry.row))
      return std::make_unique<Distribution>(entry.kind, entry.parameters);
  }
  if (is_row(record, "random_full")) return std::make_unique<Integers>(false, false);
  if (is_row(record, "random_to")) return std::make_unique<Integers>(false, true);
  if (is_row(record, "random_from")) return std::make_unique<Integers>(true, true);
  // Longer ones are sorted by programs, in an order of their own.
  if (is_row(record, "randperm") && tpu_attr_int(record.attrs, 0, 0) <= INT32_MAX)
    return std::make_unique<Permutation>();
  if (is_row(record, "multinomial")) return std::make_unique<Classes>();
  return is_row(record, "native_dropout") ? std::make_unique<Dropout>() : nullptr;
}

}  // namespace tpu_shim
