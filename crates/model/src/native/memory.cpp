// Aligned memory in large pages, a pool, and per-thread buffers; see memory.h.
#include "memory.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <tuple>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace r1 {

namespace {

constexpr int64_t HUGE_PAGE = 2 << 20;

float* allocate(int64_t count) {
  const size_t bytes = std::max<int64_t>(count, 1) * sizeof(float);
  const bool large = bytes >= static_cast<size_t>(HUGE_PAGE);
  void* memory = nullptr;
  if (posix_memalign(&memory, large ? HUGE_PAGE : 64, bytes) != 0) throw std::bad_alloc();
#if defined(__linux__)
  if (large) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return static_cast<float*>(memory);
}

// Freed memory by size. Blocks that were not used for a while are released.
struct Pool {
  std::mutex mutex;
  std::multimap<int64_t, float*> free;
};

Pool& pool() {
  static Pool* one = new Pool;  // never destroyed: tensors may give memory back while the program ends
  return *one;
}

}  // namespace

Floats floats(int64_t count) { return Floats(allocate(count), std::free); }

Floats pooled(int64_t count) {
  Pool& pool = r1::pool();
  float* memory = nullptr;
  int64_t size = count;
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    auto found = pool.free.lower_bound(count);
    if (found != pool.free.end() && found->first <= 2 * count) {
      std::tie(size, memory) = *found;
      pool.free.erase(found);
    } else {
      // The sizes have changed, so the pooled blocks no longer fit.
      for (auto& [_, old] : pool.free) std::free(old);
      pool.free.clear();
    }
  }
  if (!memory) memory = allocate(size);
  return Floats(memory, [size](float* gone) {
    Pool& pool = r1::pool();
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.free.emplace(size, gone);
  });
}

float* scratch(int slot, int64_t count) {
  struct Piece {
    Floats data;
    int64_t size = 0;
  };
  thread_local Piece pieces[12];
  Piece& piece = pieces[slot];
  if (piece.size < count) {
    piece.data = nullptr;
    piece.data = floats(count);
    piece.size = count;
  }
  return piece.data.get();
}

}  // namespace r1
