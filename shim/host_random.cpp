// Forms of random rows: the C kernels of core/host, which programs on the CPU platform call too, so
// that the numbers are the same bits.
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>

#include <cstring>

#include "host/random.h"
#include "host_ops.h"

namespace tpu_shim {

namespace {

using R = const HostRecord&;

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

// Draws in the result's dtype where the kernel writes it, else in the dtype it computes in.
at::Tensor drawn(const tpu_random_draw_t& draw, const tpu_meta_t& result) {
  const tpu_dtype_t dtype =
      tpu_random_takes(draw.kind, draw.math, result.dtype) ? result.dtype : draw.math;
  const at::Tensor out = empty_sized(result, dtype);
  char* data = static_cast<char*>(out.mutable_data_ptr());
  const int64_t chunks = (out.numel() + kGrain - 1) / kGrain;
  at::parallel_for(0, chunks, 4, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kGrain, end = std::min(last * kGrain, out.numel());
    TPU_THROW_IF_ERROR(tpu_random_fill(&draw, dtype, begin, end,
                                       data + begin * static_cast<int64_t>(out.itemsize())));
  });
  return out;
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
    tpu_random_draw_t draw = draw_of(r, kind_, math);
    at::Tensor a, b;
    draw.a = parameter(r, parameter_at(r, parameters_), math, result, &a);
    if (parameters_ > 1) draw.b = parameter(r, parameter_at(r, 1), math, result, &b);
    results->push_back(drawn(draw, result));
  }

 private:
  tpu_random_kind_t kind_;
  int parameters_;
};

// Operands: input, p, seed, offset. A factor and no choice: what is NaN stays NaN.
class Dropout final : public HostForm {
  void run(R r, HostResults* results) const override {
    const at::Tensor x = r.tensor(0);
    const double p = r.scalar(1).toDouble();
    tpu_random_draw_t draw = draw_of(r, TPU_RANDOM_BERNOULLI, TPU_F32);
    draw.a.number = 1.0f - static_cast<float>(p);
    const at::Tensor keep = drawn(draw, r.result(1));
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

}  // namespace

std::unique_ptr<HostForm> make_random_form(const tpu_record_t& record) {
  const char* name = tpu_op_info(record.op)->name;
  for (const RandomRow& entry : kDistributions) {
    if (std::strcmp(name, entry.row) == 0)
      return std::make_unique<Distribution>(entry.kind, entry.parameters);
  }
  const bool drops = std::strcmp(name, "native_dropout") == 0 && tpu_attr_int(record.attrs, 0, 1);
  return drops ? std::make_unique<Dropout>() : nullptr;
}

}  // namespace tpu_shim
