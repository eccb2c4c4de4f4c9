// Tensors on the CPU side by side in blocks of large pages.
#pragma once
#include <ATen/core/Tensor.h>

#include "memory.h"

namespace r1 {

// Hands out memory that goes back to the system a block at a time, with the last tensor in it. A step reads all weights
// once: where each lies in memory of its own, its ends are in pages of 4 KiB, which take longer to look up.
class Arena {
 public:
  at::Tensor take(at::IntArrayRef shape, at::ScalarType kind);

 private:
  static constexpr int64_t BLOCK_FLOATS = 16 << 20;
  Floats block;
  int64_t used = 0, size = 0;  // floats
};

}  // namespace r1
