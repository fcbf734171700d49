// What the engine does as activities of torch.profiler (ProfilerActivity.PrivateUse1): a device row
// beside the CPU's. The engine collects spans while a session records (base/events.h).
#ifndef USE_KINETO
#define USE_KINETO
#endif
#define FMT_HEADER_ONLY  // kineto's headers use fmt, which no library of PyTorch exports
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/alloc.h"
#include "base/events.h"

namespace tpu_shim {

namespace {

using libkineto::ActivityType;

constexpr int64_t kDevice = 0;

// Programs and what runs in their place are on the device; all else is what the host does for it.
bool is_on_device(tpu_event_kind_t kind) {
  return kind == TPU_EVENT_LAUNCH || kind == TPU_EVENT_HOST_STEP;
}

ActivityType type_of(tpu_event_kind_t kind) {
  if (is_on_device(kind)) return ActivityType::CONCURRENT_KERNEL;
  const bool copies = kind == TPU_EVENT_TO_HOST || kind == TPU_EVENT_TO_DEVICE;
  return copies ? ActivityType::GPU_MEMCPY : ActivityType::PRIVATEUSE1_RUNTIME;
}

const char* size_name(tpu_event_kind_t kind) {
  const bool counts = is_on_device(kind) || kind == TPU_EVENT_FLUSH;
  return counts ? "operations" : "bytes";
}

class Session : public libkineto::IActivityProfilerSession {
 public:
  ~Session() override { tpu_free(events_); }

  void start() override {
    status_ = libkineto::TraceStatus::RECORDING;
    tpu_events_start();
  }

  void stop() override {
    if (status_ != libkineto::TraceStatus::RECORDING) return;
    status_ = libkineto::TraceStatus::PROCESSING;
    size_t dropped = 0;
    tpu_free(events_);
    tpu_status_free(tpu_events_stop(&events_, &count_, &dropped));
    if (dropped > 0) {
      errors_.push_back("torch_tpu: " + std::to_string(dropped) + " events were left out");
    }
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    make_activities();
    for (const auto& activity : activities_) activity->log(logger);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{kDevice, libkineto::kExceedMaxPid, "tpu", "tpu"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    make_activities();
    auto buffer = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer->span = span_;
    for (auto& activity : activities_) buffer->activities.push_back(std::move(activity));
    activities_.clear();
    return buffer;
  }

 private:
  void make_activities() {
    for (size_t i = 0; i < count_; ++i) {
      const tpu_event_t& event = events_[i];
      const char* kind = tpu_event_kind_name(event.kind);
      auto activity = std::make_unique<libkineto::GenericTraceActivity>(
          span_, type_of(event.kind), std::string(kind) + ": " + event.name);
      activity->startTime = event.begin_ns;
      activity->endTime = event.end_ns;
      activity->device = kDevice;
      activity->resource = static_cast<int32_t>(event.kind);
      activity->threadId = event.thread;
      activity->id = static_cast<int32_t>(i + 1);
      activity->addMetadata(size_name(event.kind), event.size);
      activities_.push_back(std::move(activity));
    }
    count_ = 0;
  }

  tpu_event_t* events_ = nullptr;
  size_t count_ = 0;
  std::vector<std::string> errors_;
  libkineto::TraceSpan span_{0, 0, "torch_tpu"};
  std::vector<std::unique_ptr<libkineto::GenericTraceActivity>> activities_;
};

class Profiler : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    for (ActivityType type : types_) {
      if (types.count(type) > 0) return std::make_unique<Session>();
    }
    return nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "torch_tpu";
  const std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                         ActivityType::PRIVATEUSE1_RUNTIME,
                                         ActivityType::PRIVATEUSE1_DRIVER};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace

}  // namespace tpu_shim
