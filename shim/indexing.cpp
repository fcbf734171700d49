// Operations whose result size depends on data, and boolean masks as indices. Sizes must be known
// on the host, so the mask is read there; the work on the values stays on the device.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/nonzero.h>
#include <torch/library.h>

#include "adapter.h"
#include "hot.h"
#include "storage.h"

namespace tpu_shim {

namespace {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

at::Tensor nonzero_on_host(const at::Tensor& self) {
  return at::nonzero(read_tensor(self)).to(self.device());
}

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

void check_mask(const at::Tensor& self, const at::Tensor& mask, int64_t first_dim,
                size_t position) {
  for (int64_t j = 0; j < mask.dim(); ++j) {
    TORCH_CHECK_INDEX(first_dim + j < self.dim() && mask.size(j) == self.size(first_dim + j),
                      "The shape of the mask ", mask.sizes(), " at index ", j,
                      " does not match the shape of the indexed tensor ", self.sizes(),
                      " at index ", first_dim + j);
  }
}

// Integer indices on the device: masks become the coordinates of their true elements.
OptionalTensors device_indices(const at::Tensor& self, const OptionalTensors& given) {
  OptionalTensors result;
  int64_t dim = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::optional<at::Tensor> item = given.get(i);
    if (!item.has_value() || !item->defined()) {
      result.push_back(std::nullopt);
      ++dim;
      continue;
    }
    const at::Tensor& index = *item;
    if (is_mask(index)) {
      check_mask(self, index, dim, i);
      const at::Tensor places =
          is_tpu(index) ? nonzero_on_host(index) : at::nonzero(index).to(self.device());
      for (int64_t j = 0; j < index.dim(); ++j) result.push_back(places.select(1, j));
      dim += index.dim();
      continue;
    }
    TORCH_CHECK_INDEX(c10::isIntegralType(index.scalar_type(), false),
                      "tensors used as indices must be long, int, byte or bool tensors");
    result.push_back(index.to(self.device(), at::kLong));
    ++dim;
  }
  TORCH_CHECK_INDEX(dim <= self.dim(), "too many indices for tensor of dimension ", self.dim(),
                    " (got ", dim, ")");
  return result;
}

struct NameIndex {
  static constexpr const char* text = "index.Tensor";
};
struct NameIndexOut {
  static constexpr const char* text = "index.Tensor_out";
};
struct NameIndexPut {
  static constexpr const char* text = "_index_put_impl_";
};

at::Tensor index_by(const at::Tensor& self, const OptionalTensors& given) {
  const OptionalTensors indices = device_indices(self, given);
  return run_unboxed(HotInfo<NameIndex>::plan(), self, indices);
}

at::Tensor& index_out(const at::Tensor& self, const OptionalTensors& given, at::Tensor& out) {
  run_unboxed(HotInfo<NameIndexOut>::plan(), self, device_indices(self, given), out);
  return out;
}

// x[mask] = number is a select, which needs no look at the mask.
bool put_by_mask(const at::Tensor& self, const OptionalTensors& given, const at::Tensor& values,
                 bool accumulate) {
  if (accumulate || values.numel() != 1 || given.size() != 1) return false;
  const std::optional<at::Tensor> item = given.get(0);
  if (!item.has_value() || !item->defined() || item->scalar_type() != at::kBool || !is_tpu(*item))
    return false;
  check_mask(self, *item, 0, 0);
  at::Tensor mask = *item;
  while (mask.dim() < self.dim()) mask = mask.unsqueeze(-1);
  at::Tensor target = self;
  target.masked_fill_(mask, values.reshape({}));
  return true;
}

at::Tensor& index_put(at::Tensor& self, const OptionalTensors& given, const at::Tensor& values,
                      bool accumulate, bool unsafe) {
  TORCH_CHECK(values.scalar_type() == self.scalar_type(),
              "Index put requires the source and destination "
              "dtypes match, got ",
              self.scalar_type(), " for the destination and ", values.scalar_type(),
              " for the source.");
  if (put_by_mask(self, given, values, accumulate)) return self;
  const OptionalTensors indices = device_indices(self, given);
  const at::Tensor source = is_cpu_scalar(values) ? values.to(self.device()) : values;
  run_unboxed(HotInfo<NameIndexPut>::plan(), self, indices, source, accumulate, unsafe);
  return self;
}

at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  const auto both = at::expand_outplace(mask, self, "masked_select");
  OptionalTensors indices;
  indices.push_back(*std::get<0>(both));
  const at::Tensor& source = *std::get<1>(both);
  if (source.dim() == 0) return index_by(source.reshape({1}), OptionalTensors({mask.reshape({1})}));
  return index_by(source, indices);
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == self.scalar_type(),
              "masked_select(): self and result must have the same scalar type, but got ",
              self.scalar_type(), " and ", out.scalar_type());
  const at::Tensor result = masked_select(self, mask);
  prepare_out(result, out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  write_prepared(result, out);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", TORCH_FN(nonzero_on_host));
  m.impl("masked_select", TORCH_FN(masked_select));
  m.impl("masked_select.out", TORCH_FN(masked_select_out));
  m.impl(NameIndex::text, TORCH_FN(index_by));
  m.impl(NameIndexOut::text, TORCH_FN(index_out));
  m.impl(NameIndexPut::text, TORCH_FN(index_put));
}

}  // namespace tpu_shim
