// Memory for floats, and tasks on libtorch's threads.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace r1 {

// Uninitialised, aligned floats.
using Floats = std::shared_ptr<float>;
Floats floats(int64_t count);
// The same from a pool: new memory costs page faults, which took a tenth of the time of a training
// step, so memory is reused across steps.
Floats pooled(int64_t count);
// An uninitialised f32 tensor on the CPU, from the pool if it is large.
at::Tensor pooled_tensor(at::IntArrayRef sizes);
// A thread-local buffer for `slot` of at least `count` floats, kept between calls.
float* scratch(int slot, int64_t count);

// Row stride for n floats: a multiple of the vector width, but not of 1 KiB, to avoid cache set
// conflicts.
inline int64_t stride(int64_t n) {
  const int64_t whole = (n + 15) / 16 * 16;
  return whole % 256 == 0 ? whole + 16 : whole;
}

inline int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

// While it is true, `tasks` of this thread use no other thread.
inline thread_local bool single_thread = false;

// Runs f(0), … f(count - 1) in parallel; in order on this thread inside a parallel region.
template <class F>
void tasks(int64_t count, F f) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), count);
  if (threads <= 1 || single_thread || at::in_parallel_region()) {
    for (int64_t i = 0; i < count; i++) f(i);
    return;
  }
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < count; i = next++) f(i);
  });
}

}  // namespace r1
