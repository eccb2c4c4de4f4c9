// Aligned memory in large pages, a pool, and per-thread buffers; see memory.h.
#include "memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace r1 {

namespace {

constexpr int64_t HUGE_PAGE = 2 << 20;
// Floats of a block that malloc keeps itself when it is freed.
constexpr int64_t SMALL = 1 << 18;

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

// Memory of freed blocks. All blocks together, used and free, are at most a sixteenth more than the
// used ones were at their peak. Memory is kept until the program ends.
class Pool {
 public:
  struct Block {
    float* memory;
    int64_t size;
  };

  Block take(int64_t count) {
    const std::lock_guard<std::mutex> lock(mutex);
    // At most an eighth more than the request: a batch with a few more tokens fits.
    int64_t unit = SMALL / 8;
    while (unit * 16 < count) unit *= 2;
    const int64_t size = parts(count, unit) * unit;
    // A block may be twice as large as the request, or four times if a new block would exceed the
    // limit.
    const bool full = used + size + unused > limit(used + size);
    auto best = free.end();
    for (auto block = free.begin(); block != free.end(); block++)
      if (block->size >= count && block->size <= (full ? 4 : 2) * count && (best == free.end() || block->size < best->size))
        best = block;
    if (best != free.end()) {
      const Block found = *best;
      free.erase(best);
      unused -= found.size;
      used += found.size;
      peak = std::max(peak, used);
      return found;
    }
    while (!free.empty() && used + size + unused > limit(used + size)) drop(used + size + unused - limit(used + size));
    Block block{nullptr, size};
    try {
      block.memory = allocate(size);
    } catch (const std::bad_alloc&) {
      while (!free.empty()) drop(0);
      block.memory = allocate(size);
    }
    used += size;
    peak = std::max(peak, used);
    return block;
  }

  void give(const Block& block) {
    const std::lock_guard<std::mutex> lock(mutex);
    used -= block.size;
    unused += block.size;
    free.push_back(block);
  }

 private:
  int64_t limit(int64_t now) const {
    const int64_t most = std::max(peak, now);
    return most + most / 16;
  }

  // Releases the smallest block of at least this size, or else the largest one. Releasing large
  // blocks for small requests would cost more page faults later.
  void drop(int64_t size) {
    const auto worse = [size](const Block& a, const Block& b) {
      if ((a.size >= size) != (b.size >= size)) return b.size >= size;
      return a.size >= size ? a.size > b.size : a.size < b.size;
    };
    const auto chosen = std::max_element(free.begin(), free.end(), worse);
    std::free(chosen->memory);
    unused -= chosen->size;
    free.erase(chosen);
  }

  std::mutex mutex;
  std::vector<Block> free;
  int64_t used = 0, unused = 0, peak = 0;  // floats
};

Pool& pool() {
  static Pool* one = new Pool;  // never destroyed: tensors may give memory back while the program ends
  return *one;
}

}  // namespace

Floats floats(int64_t count) { return Floats(allocate(count), std::free); }

Floats pooled(int64_t count) {
  if (count < SMALL) return floats(count);
  const Pool::Block block = pool().take(count);
  return Floats(block.memory, [block](float*) { pool().give(block); });
}

at::Tensor pooled_tensor(at::IntArrayRef sizes) {
  const int64_t count = c10::multiply_integers(sizes);
  if (count < SMALL) return at::empty(sizes, at::kFloat);
  const Floats memory = pooled(count);
  return at::from_blob(memory.get(), sizes, [memory](void*) {}, at::kFloat);
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
