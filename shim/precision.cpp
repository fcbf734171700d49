#include "precision.h"

#include <ATen/Context.h>

#include <algorithm>

namespace tpu_shim {

std::atomic<bool> g_rounds_products{false};

namespace {

std::atomic<int> g_matmul{-1};
std::atomic<int> g_conv{-1};

tpu_precision_t level_of(at::Float32Backend backend, at::Float32Op op) {
  switch (at::globalContext().float32Precision(backend, op)) {
    case at::Float32Precision::BF16: return TPU_PRECISION_DEFAULT;
    case at::Float32Precision::TF32: return TPU_PRECISION_HIGH;
    default: return TPU_PRECISION_HIGHEST;
  }
}

}  // namespace

tpu_precision_t asked_precision(bool convolution) {
  const int own = (convolution ? g_conv : g_matmul).load(std::memory_order_relaxed);
  if (own >= 0) return static_cast<tpu_precision_t>(own);
  // cuDNN's switch says TF32 where nobody chose, and PyTorch on the CPU does not round there.
  if (convolution) return level_of(at::Float32Backend::MKLDNN, at::Float32Op::CONV);
  return std::max(level_of(at::Float32Backend::CUDA, at::Float32Op::MATMUL),
                  level_of(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL));
}

OwnPrecision own_precision() { return {g_matmul.load(), g_conv.load()}; }

void set_own_precision(OwnPrecision own) {
  g_matmul.store(own.matmul);
  g_conv.store(own.conv);
}

}  // namespace tpu_shim
