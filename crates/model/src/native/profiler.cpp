// libtorch's profiler (Kineto) for Rust: a Chrome trace, and totals by operation; see profiler.rs.
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "guarded.h"

namespace {

using r1::guarded;
using torch::autograd::profiler::KinetoEvent;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

struct Total {
  int64_t count = 0, nanoseconds = 0;
};

// Host time without the operations that each operation calls.
std::map<std::string, Total> on_host(std::vector<const KinetoEvent*> events) {
  std::map<std::string, Total> totals;
  // Callers before what they call.
  std::sort(events.begin(), events.end(), [](const KinetoEvent* a, const KinetoEvent* b) {
    const auto key = [](const KinetoEvent* e) { return std::make_tuple(e->startThreadId(), e->startNs()); };
    return key(a) != key(b) ? key(a) < key(b) : a->durationNs() > b->durationNs();
  });
  std::vector<const KinetoEvent*> callers;
  for (const KinetoEvent* event : events) {
    while (!callers.empty() && (callers.back()->startThreadId() != event->startThreadId() ||
                                callers.back()->endNs() <= event->startNs())) {
      callers.pop_back();
    }
    if (!callers.empty()) totals[callers.back()->name()].nanoseconds -= static_cast<int64_t>(event->durationNs());
    Total& own = totals[event->name()];
    own.count++, own.nanoseconds += static_cast<int64_t>(event->durationNs());
    callers.push_back(event);
  }
  return totals;
}

}  // namespace

extern "C" {

// Starts a profile of this thread, and of the threads of its backward passes.
char* r1_profile_start(bool device) {
  return guarded([&] {
    const ProfilerConfig config(ProfilerState::KINETO);
    std::set<ActivityType> activities{ActivityType::CPU};
    if (device) activities.insert(ActivityType::CUDA);
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities);
  });
}

// Ends the profile. Writes a Chrome trace to `path`; `each` receives name, count and nanoseconds of
// the operations of the host (`device` false) and of the kernels and copies of the device.
char* r1_profile_stop(const char* path, void (*each)(void*, const char*, int64_t, int64_t, bool), void* target) {
  return guarded([&] {
    const auto result = torch::autograd::profiler::disableProfiler();
    TORCH_CHECK(result, "the profile has no result");
    std::vector<const KinetoEvent*> host;
    std::map<std::string, Total> device;
    for (const KinetoEvent& event : result->events()) {
      if (event.deviceType() == c10::kCPU) {
        host.push_back(&event);
      } else {
        Total& own = device[event.name()];
        own.count++, own.nanoseconds += static_cast<int64_t>(event.durationNs());
      }
    }
    for (const auto& [name, total] : on_host(host)) each(target, name.c_str(), total.count, total.nanoseconds, false);
    for (const auto& [name, total] : device) each(target, name.c_str(), total.count, total.nanoseconds, true);
    result->save(path);
  });
}

}  // extern "C"
