// CUDA graphs of libtorch for Rust: the operations of a stream, recorded once and launched as one.
// A separate library, because it needs the symbols of libtorch_cuda, which r1 loads at run time
// (mod.rs). Functions that can fail return null or a message for r1_free_message.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>
#include <map>
#include <utility>

#include "../guarded.h"

// Of ATen/cuda/CUDAContextLight.h, which needs headers of further CUDA libraries.
namespace at::cuda {
TORCH_CUDA_CPP_API c10::Allocator* getCUDADeviceAllocator();
}

namespace {

using r1::guarded;

struct Graph {
  at::cuda::CUDAGraph graph;
  c10::cuda::CUDAStream own, usual;
  // The memory of the results, shared by graphs that are not in use at the same time.
  at::cuda::MempoolId_t pool{0, 0};
  bool recording = false;
};

// The stream of all recordings of a device, because the default stream can't be recorded. libtorch
// reuses freed memory only on the same stream, and cuBLAS has a workspace per stream.
c10::cuda::CUDAStream recording_stream(c10::DeviceIndex device) {
  // All recording is on the thread that owns the tensors.
  thread_local std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  return streams.emplace(device, c10::cuda::getStreamFromPool(false, device)).first->second;
}

}  // namespace

extern "C" {

// Switches this thread to the graph's stream, after the queued work.
char* r1_graph_new(int64_t device, void** out) {
  return guarded([&] {
    const auto index = static_cast<c10::DeviceIndex>(device);
    c10::cuda::device_synchronize();
    auto* graph = new Graph{{}, recording_stream(index), c10::cuda::getCurrentCUDAStream(index)};
    c10::cuda::setCurrentCUDAStream(graph->own);
    *out = graph;
  });
}

// Starts recording: operations of this thread are recorded instead of executed. A graph that shares
// the memory of `other` must not be in use at the same time.
char* r1_graph_record(void* handle, void* other) {
  return guarded([&] {
    auto* graph = static_cast<Graph*>(handle);
    graph->own.synchronize();
    graph->pool = other ? static_cast<Graph*>(other)->pool : at::cuda::graph_pool_handle();
    // Only operations of this thread: other threads may use the same device.
    graph->recording = true;
    graph->graph.capture_begin(graph->pool, cudaStreamCaptureModeThreadLocal);
  });
}

// Ends recording and restores the stream; must be called also after errors.
char* r1_graph_end(void* handle) {
  auto* graph = static_cast<Graph*>(handle);
  const bool recording = std::exchange(graph->recording, false);
  char* message = guarded([&] {
    if (recording) graph->graph.capture_end();
  });
  // First, so that no later error leaves the thread on the stream of recordings.
  char* moved = guarded([&] { c10::cuda::setCurrentCUDAStream(graph->usual); });
  if (message && recording) {
    // After a failed recording the allocator still reserves its memory for the recording.
    free(guarded([&] {
      using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
      auto* allocator = static_cast<Allocator*>(at::cuda::getCUDADeviceAllocator());
      allocator->endAllocateToPool(graph->own.device_index(), graph->pool);
    }));
  }
  char* waited = guarded([&] { graph->own.synchronize(); });
  for (char** other : {&moved, &waited}) {
    if (message == nullptr) std::swap(message, *other);
    free(*other);
  }
  return message;
}

char* r1_graph_replay(void* handle) {
  return guarded([&] { static_cast<Graph*>(handle)->graph.replay(); });
}

// The stream of this thread on a device.
char* r1_current_stream(int64_t device, void** out) {
  return guarded([&] { *out = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream(); });
}

void r1_graph_free(void* handle) {
  free(guarded([&] { delete static_cast<Graph*>(handle); }));
}

}  // extern "C"
