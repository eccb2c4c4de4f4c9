// CPU tensors in contiguous blocks of large pages.
#pragma once
#include <ATen/core/Tensor.h>

#include "memory.h"

namespace r1 {

// Allocator of blocks, each returned to the system with its last tensor. A step reads all weights
// once; large pages avoid the TLB misses of separate allocations with 4 KiB pages.
class Arena {
 public:
  at::Tensor take(at::IntArrayRef shape, at::ScalarType kind);

 private:
  static constexpr int64_t BLOCK_FLOATS = 16 << 20;
  Floats block;
  int64_t used = 0, size = 0;  // floats
};

}  // namespace r1
