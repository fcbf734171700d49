// Page-aligned host memory that Tensor.pin_memory() gives and is_pinned() recognises.
#ifndef TPU_SHIM_HOST_ALLOCATOR_H_
#define TPU_SHIM_HOST_ALLOCATOR_H_

#include <ATen/core/CachingHostAllocator.h>

namespace tpu_shim {

at::HostAllocator* host_allocator();
// True for addresses inside a live block of host_allocator().
bool is_pinned(const void* pointer);

}  // namespace tpu_shim

#endif  // TPU_SHIM_HOST_ALLOCATOR_H_
