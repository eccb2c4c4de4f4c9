// CUDA graphs of libtorch for Rust: the operations of a stream, recorded once and launched as one.
// A separate library, because it needs the symbols of libtorch_cuda, which r1 loads at run time
// (mod.rs). Functions that can fail return null or a message for r1_free_message.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>

#include "../guarded.h"

namespace {

using r1::guarded;

struct Graph {
  at::cuda::CUDAGraph graph;
  // Recording is not possible on the default stream.
  c10::cuda::CUDAStream own, usual;
  bool recording = false;
};

}  // namespace

extern "C" {

// Switches this thread to the graph's stream, after the queued work.
char* r1_graph_new(int64_t device, void** out) {
  return guarded([&] {
    const auto index = static_cast<c10::DeviceIndex>(device);
    c10::cuda::device_synchronize();
    auto* graph = new Graph{{}, c10::cuda::getStreamFromPool(false, index), c10::cuda::getCurrentCUDAStream(index)};
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
    const auto pool = other ? static_cast<Graph*>(other)->graph.pool() : at::cuda::MempoolId_t{0, 0};
    // Only operations of this thread: other threads may use the same device.
    graph->graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    graph->recording = true;
  });
}

// Ends recording and restores the stream; must be called also after errors.
char* r1_graph_end(void* handle) {
  auto* graph = static_cast<Graph*>(handle);
  char* message = guarded([&] {
    if (graph->recording) graph->graph.capture_end();
    graph->recording = false;
  });
  char* moved = guarded([&] {
    graph->own.synchronize();
    c10::cuda::setCurrentCUDAStream(graph->usual);
  });
  if (message == nullptr) return moved;
  free(moved);
  return message;
}

char* r1_graph_replay(void* handle) {
  return guarded([&] { static_cast<Graph*>(handle)->graph.replay(); });
}

void r1_graph_free(void* handle) {
  free(guarded([&] { delete static_cast<Graph*>(handle); }));
}

}  // extern "C"
