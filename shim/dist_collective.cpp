#include "dist_collective.h"

#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <cstring>
#include <limits>

namespace tpu_shim {

namespace {

using Op = c10d::ReduceOp;

bool is_bitwise(Op::RedOpType op) { return op == Op::BAND || op == Op::BOR || op == Op::BXOR; }

// SUM is what AVG and PREMUL_SUM do between two ranks.
Op::RedOpType between(Op::RedOpType op) {
  return op == Op::AVG || op == Op::PREMUL_SUM ? Op::SUM : op;
}

// Truth values as bytes of 0 and 1.
Op::RedOpType between_truths(Op::RedOpType op) {
  switch (between(op)) {
    case Op::SUM:
    case Op::BOR: return Op::MAX;
    case Op::PRODUCT:
    case Op::BAND: return Op::MIN;
    default: return between(op);
  }
}

// Gloo has no numbers of this kind: a wider kind that has all of them.
c10::ScalarType wider(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kShort:
    case at::kUInt16: return at::kInt;
    case at::kUInt32: return at::kLong;
    default: return c10::isFloat8Type(dtype) ? at::kFloat : dtype;
  }
}

// The order of unsigned 64-bit numbers as that of signed ones.
at::Tensor flip_sign(const at::Tensor& numbers) {
  return at::bitwise_xor(numbers, std::numeric_limits<int64_t>::min());
}
bool needs_order(const Op::RedOpType op) { return op == Op::MIN || op == Op::MAX; }

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, Op::RedOpType op) {
  switch (op) {
    case Op::SUM: return a.add(b);
    case Op::PRODUCT: return a.mul(b);
    case Op::MIN: return at::minimum(a, b);
    case Op::MAX: return at::maximum(a, b);
    case Op::BAND: return a.bitwise_and(b);
    case Op::BOR: return a.bitwise_or(b);
    case Op::BXOR: return a.bitwise_xor(b);
    default: TORCH_CHECK(false, "internal: reduction ", static_cast<int>(op));
  }
}

}  // namespace

const char* reduction_name(Op::RedOpType op) {
  static constexpr const char* names[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                          "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return op < Op::UNUSED ? names[op] : "UNUSED";
}

std::string describe_tensor(const at::Tensor& tensor) {
  std::string text = c10::toString(tensor.scalar_type());
  text += '[';
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(tensor.size(i));
  }
  return text + ']';
}

void check_reduction(const Op& op, c10::ScalarType dtype) {
  const bool floats = c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  TORCH_CHECK(op.op_ < Op::UNUSED, "ReduceOp.UNUSED is no reduction");
  TORCH_CHECK(!(is_bitwise(op.op_) && floats), "Cannot use ReduceOp.", reduction_name(op.op_),
              " with non-integral dtype ", dtype);
  TORCH_CHECK(!c10::isComplexType(dtype) || between(op.op_) == Op::SUM, "all_reduce does not ",
              "support ReduceOp.", reduction_name(op.op_), " on complex tensors");
  TORCH_CHECK(dtype != at::kBool || (op.op_ != Op::AVG && op.op_ != Op::PREMUL_SUM),
              "Cannot use ReduceOp.", reduction_name(op.op_), " with Bool inputs");
}

Wire to_wire(at::Tensor tensor, const Collective& call) {
  const Op::RedOpType op = call.op.op_;
  if (op == Op::PREMUL_SUM) {
    tensor = tensor.mul(at::Scalar(call.factor)).to(tensor.scalar_type()).contiguous();
  }
  if (tensor.scalar_type() == at::kBool) return {tensor.view(at::kByte), between_truths(op)};
  if (tensor.is_complex()) return {at::view_as_real(tensor), Op::SUM};
  if (tensor.scalar_type() == at::kUInt64) {
    at::Tensor bits = tensor.view(at::kLong);
    return {needs_order(op) ? flip_sign(bits) : bits, between(op)};
  }
  return {tensor.to(wider(tensor.scalar_type())), between(op)};
}

at::Tensor from_wire(at::Tensor numbers, const Collective& call, int size, c10::ScalarType dtype,
                     c10::IntArrayRef sizes) {
  const Op::RedOpType op = call.op.op_;
  if (dtype == at::kUInt64 && needs_order(op)) numbers = flip_sign(numbers);
  if (op == Op::AVG) {
    const bool whole = c10::isIntegralType(numbers.scalar_type(), false);
    numbers = whole ? at::div(numbers, size, "trunc") : numbers.div_(size);
  }
  if (c10::isComplexType(dtype)) {
    numbers = at::view_as_complex(numbers);
  } else if (dtype == at::kBool || dtype == at::kUInt64) {
    numbers = numbers.contiguous().view(dtype);
  }
  return numbers.to(dtype).view(sizes);
}

at::Tensor reduce_here(const std::vector<at::Tensor>& tensors, const Collective& call) {
  Wire all = to_wire(tensors[0].clone(), call);
  for (size_t r = 1; r < tensors.size(); ++r) {
    all.numbers = combine(all.numbers, to_wire(tensors[r], call).numbers, all.op);
  }
  return from_wire(all.numbers, call, static_cast<int>(tensors.size()), tensors[0].scalar_type(),
                   tensors[0].sizes());
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  // A pointer also where there is nothing.
  if (dense.numel() == 0) return at::empty({1}, at::kByte).narrow(0, 0, 0);
  return dense.view({-1}).view(at::kByte);
}

at::Tensor from_bytes(const at::Tensor& bytes, c10::ScalarType dtype, c10::IntArrayRef sizes) {
  if (bytes.numel() == 0) return at::empty(sizes, dtype);
  // A dtype's view wants its alignment.
  const bool aligned = bytes.storage_offset() % 16 == 0 && bytes.is_contiguous();
  const at::Tensor dense = aligned ? bytes : bytes.clone(at::MemoryFormat::Contiguous);
  return dense.view(dtype).view(sizes);
}

}  // namespace tpu_shim
