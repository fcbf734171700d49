// How precise products of float32 are, on platforms that round their operands unless told otherwise
// (tpu_platform_t.low_default_precision).
#ifndef TPU_SHIM_PRECISION_H_
#define TPU_SHIM_PRECISION_H_

#include <atomic>

#include "tpu_core.h"

namespace tpu_shim {

// Whether anything below matters: the device is of such a platform.
extern std::atomic<bool> g_rounds_products;

// What is asked of products now: of this device's own switches, where those say nothing of
// PyTorch's: for matrices of CUDA's and MKLDNN's the faster one, for convolutions MKLDNN's.
tpu_precision_t asked_precision(bool convolution);

// The same for the products of an operation; HIGHEST for one that has none.
inline tpu_precision_t precision_of(tpu_op_t op) {
  if (!g_rounds_products.load(std::memory_order_relaxed)) return TPU_PRECISION_HIGHEST;
  const tpu_op_info_t* info = tpu_op_info(op);
  if ((info->flags & TPU_OP_PRODUCTS) == 0) return TPU_PRECISION_HIGHEST;
  return asked_precision(info->family == TPU_FAMILY_CONV);
}

// The device's own switches: a tpu_precision_t, or -1 for what PyTorch's say.
struct OwnPrecision {
  int matmul = -1;
  int conv = -1;
};
OwnPrecision own_precision();
void set_own_precision(OwnPrecision own);

}  // namespace tpu_shim

#endif  // TPU_SHIM_PRECISION_H_
