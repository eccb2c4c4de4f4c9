// Threads that compute a step together: each product is distributed over them, followed by a
// barrier.
//
// A parallel region per product would wake threads a hundred times per step. These threads spin at
// the barrier, and waiting threads prefetch their next weights, so that the memory bus is always
// busy.
#pragma once
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "common.h"

namespace r1 {

// Memory to prefetch.
struct Soon {
  const char* data = nullptr;
  int64_t bytes = 0;
};
using Next = std::array<Soon, 2>;

class ThreadPool {
 public:
  ThreadPool(int64_t threads, int64_t products) : threads(threads), cursors(threads * products) {}

  const int64_t threads;

  // Start of a thread's share of `count` pieces of work.
  int64_t begin(int64_t thread, int64_t count) const { return count * thread / threads; }

  // Runs f(i) for every i below `count`, each on one of the threads; all threads call this with the
  // same arguments. A thread processes its own share in order, for sequential reads, and then helps
  // the others.
  template <class F>
  void share(int64_t product, int64_t thread, int64_t count, F f) {
    for (int64_t other = 0; other < threads; other++) {
      const int64_t whose = (thread + other) % threads;
      const int64_t first = begin(whose, count), end = begin(whose + 1, count);
      std::atomic<int64_t>& cursor = cursors[product * threads + whose].next;
      for (int64_t i = first + cursor.fetch_add(1, std::memory_order_relaxed); i < end;
           i = first + cursor.fetch_add(1, std::memory_order_relaxed))
        f(i);
    }
  }

  // Barrier.
  void meet(const Next& next) {
    int64_t part = 0, at = 0;
    // Prefetches one cache line; false when there is nothing left.
    const auto fetch = [&] {
      while (part < 2 && at >= next[part].bytes) part++, at = 0;
      if (part == 2) return false;
      __builtin_prefetch(next[part].data + at);
      at += 64;
      return true;
    };
    const int64_t round = rounds.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
      arrived.store(0, std::memory_order_relaxed);
      rounds.store(round + 1, std::memory_order_release);
      for (int64_t i = 0; i < FIRST && fetch(); i++) {
      }
      return;
    }
    for (int64_t turns = 0; rounds.load(std::memory_order_acquire) == round; turns++) {
      if (fetch()) continue;
      // On a busy machine other threads may need this core.
      if (turns > PATIENCE) std::this_thread::yield();
    }
  }

 private:
  // Cache lines that the last thread to arrive prefetches.
  static constexpr int64_t FIRST = 64;
  static constexpr int64_t PATIENCE = 1 << 16;
  struct alignas(64) Cursor {
    std::atomic<int64_t> next{0};
  };
  std::vector<Cursor> cursors;
  alignas(64) std::atomic<int64_t> arrived{0};
  alignas(64) std::atomic<int64_t> rounds{0};
};

}  // namespace r1
