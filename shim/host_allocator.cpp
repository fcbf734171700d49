#include "host_allocator.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime.h"

namespace tpu_shim {

namespace {

constexpr size_t kAlignment = 4096;

struct Blocks {
  std::mutex mutex;
  std::map<const char*, size_t> sizes;  // by address, to find the block around a pointer
  c10::CachingAllocator::Stat allocations;
  c10::CachingAllocator::Stat bytes;
};
Blocks& blocks() {
  static Blocks* instance = new Blocks();  // outlives tensors freed at exit
  return *instance;
}

void free_block(void* pointer) {
  if (pointer == nullptr) return;
  Blocks& all = blocks();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    auto it = all.sizes.find(static_cast<const char*>(pointer));
    if (it != all.sizes.end()) {
      all.allocations.decrease(1);
      all.bytes.decrease(it->second);
      all.sizes.erase(it);
    }
  }
  std::free(pointer);
}

struct HostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &free_block, c10::Device(c10::kCPU)};
    const size_t rounded = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
    void* pointer = rounded >= nbytes ? std::aligned_alloc(kAlignment, rounded) : nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, pointer != nullptr, "out of host memory: cannot pin ",
                     nbytes, " bytes");
    Blocks& all = blocks();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.sizes.emplace(static_cast<const char*>(pointer), nbytes);
    all.allocations.increase(1);
    all.bytes.increase(nbytes);
    return {pointer, pointer, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }
  // Writes to the device copy their source before they return, so no event can be pending.
  bool record_event(void* pointer, void*, c10::Stream) override { return is_pinned(pointer); }
  void empty_cache() override {}  // nothing is cached
  at::HostStats get_stats() override {
    Blocks& all = blocks();
    std::lock_guard<std::mutex> lock(all.mutex);
    at::HostStats stats;
    stats.allocations = all.allocations;
    stats.allocated_bytes = all.bytes;
    return stats;
  }
  void reset_accumulated_stats() override {
    Blocks& all = blocks();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.allocations.reset_accumulated();
    all.bytes.reset_accumulated();
  }
  void reset_peak_stats() override {
    Blocks& all = blocks();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.allocations.reset_peak();
    all.bytes.reset_peak();
  }
};

HostAllocator g_host_allocator;
REGISTER_HOST_ALLOCATOR(kTpu, &g_host_allocator);

}  // namespace

at::HostAllocator* host_allocator() { return &g_host_allocator; }

bool is_pinned(const void* pointer) {
  Blocks& all = blocks();
  const char* address = static_cast<const char*>(pointer);
  std::lock_guard<std::mutex> lock(all.mutex);
  auto it = all.sizes.upper_bound(address);
  if (it == all.sizes.begin()) return false;
  --it;
  return address < it->first + it->second;
}

}  // namespace tpu_shim
