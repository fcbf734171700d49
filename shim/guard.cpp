// Device guard: current device, streams and events.
//
// The engine runs everything in program order, so there is one stream per device and waiting for an
// event means waiting for everything recorded before it. New streams share that order: they are
// names, not queues. An event is a point in the recording order: recording it launches what its
// thread recorded, waiting for it launches and waits for everything.
#include <c10/core/DeviceCapability.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>

#include "hooks.h"
#include "runtime.h"
#include "storage.h"

namespace tpu_shim {

namespace {

thread_local c10::StreamId t_stream = 0;

struct Event {
  int64_t recorded_ns = 0;  // when everything before it was done
  bool waited = false;
  bool timed = false;
};

void flush(bool wait) {
  if (engine_started()) TPU_THROW_IF_ERROR(tpu_engine_flush(engine(), wait));
}

int64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kTpu; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return c10::Device(kTpu, current_device()); }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) bind_device(device.index());
  }
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {
    // PyTorch passes the index back that it had before: nothing to do, and nothing to bind.
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    int index = 0;
#define TPU_CAPABILITY(type, name)                                      \
  if (dtype_from(c10::ScalarType::name) != TPU_DTYPE_INVALID) {         \
    capability.capability_data.capability_bits |= uint64_t{1} << index; \
  }                                                                     \
  ++index;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(TPU_CAPABILITY)
#undef TPU_CAPABILITY
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override { return stream(device, t_stream); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return stream(device, next.fetch_add(1));
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const c10::Stream old = getStream(s.device());
    t_stream = s.id();
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream s) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(s.id()));
  }
  bool queryStream(const c10::Stream&) const override {
    // There is no cheap "are you done": finishing the work makes the answer true.
    flush(true);
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override { flush(true); }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    checked_device_index(index);
    flush(true);
  }

  void record(void** event, const c10::Stream&, c10::DeviceIndex index,
              c10::EventFlag flag) const override {
    checked_device_index(index);
    if (*event == nullptr) *event = new Event();
    auto* e = static_cast<Event*>(*event);
    e->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    // A timed event is the end of the work before it, so that elapsed_time is true.
    flush(e->timed);
    e->waited = e->timed;
    e->recorded_ns = clock_ns();
  }
  void block(void*, const c10::Stream&) const override {}  // one order: always behind the event
  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    auto* e = static_cast<Event*>(event);
    if (e == nullptr || e->waited) return;
    flush(true);
    e->waited = true;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    auto* a = static_cast<Event*>(first);
    auto* b = static_cast<Event*>(second);
    TORCH_CHECK(a != nullptr && b != nullptr,
                "both events must be recorded before their elapsed time can be asked");
    TORCH_CHECK(a->timed && b->timed, "both events must be made with enable_timing=True");
    return static_cast<double>(b->recorded_ns - a->recorded_ns) * 1e-6;
  }

 private:
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    const c10::Device checked(kTpu, bind_device(device.index()));
    return c10::Stream(c10::Stream::UNSAFE, checked, id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

}  // namespace tpu_shim
