// CUDA graphs of libtorch for Rust: what a stream was asked to do, recorded once and launched as a whole afterwards. A
// library of its own, because it needs libtorch_cuda, which r1 loads when it runs (mod.rs); its symbols come from there.
// A function that can fail returns null, or a message for r1_free_message.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>

#include "../guarded.h"

namespace {

using r1::guarded;

struct Graph {
  at::cuda::CUDAGraph graph;
  // Recording is not possible on the stream that everybody uses.
  c10::cuda::CUDAStream own, usual;
  bool recording = false;
};

}  // namespace

extern "C" {

// Moves this thread to a stream of the graph's own, after what is under way.
char* r1_graph_new(int64_t device, void** out) {
  return guarded([&] {
    const auto index = static_cast<c10::DeviceIndex>(device);
    c10::cuda::device_synchronize();
    auto* graph = new Graph{{}, c10::cuda::getStreamFromPool(false, index), c10::cuda::getCurrentCUDAStream(index)};
    c10::cuda::setCurrentCUDAStream(graph->own);
    *out = graph;
  });
}

// From here on nothing is carried out: what this thread asks for is recorded. Graphs that share the memory of `other`, if
// there is one, must not need what theirs holds at the same time.
char* r1_graph_record(void* handle, void* other) {
  return guarded([&] {
    auto* graph = static_cast<Graph*>(handle);
    graph->own.synchronize();
    const auto pool = other ? static_cast<Graph*>(other)->graph.pool() : at::cuda::MempoolId_t{0, 0};
    // Of this thread alone: another may be at work on the same device.
    graph->graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    graph->recording = true;
  });
}

// Ends what r1_graph_new and r1_graph_record began; to be called whatever happened in between.
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
