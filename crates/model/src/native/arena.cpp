// Memory for weights, keys and values; see arena.h.
#include "arena.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <new>

namespace r1 {

at::Tensor Arena::take(at::IntArrayRef shape, at::ScalarType kind) {
  // Whole cache lines.
  constexpr int64_t line = 64;
  int64_t bytes = static_cast<int64_t>(c10::elementSize(kind));
  for (const int64_t size : shape)
    TORCH_CHECK(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes) && bytes < int64_t{1} << 60,
                "a tensor of shape ", shape, " is too large");
  const int64_t count = parts(bytes, line) * (line / static_cast<int64_t>(sizeof(float)));
  if (!block || count > size - used) {
    size = std::max(count, BLOCK_FLOATS);
    try {
      block = floats(size);
    } catch (const std::bad_alloc&) {
      TORCH_CHECK(false, "the system has no memory for ", bytes, " bytes");
    }
    used = 0;
  }
  float* data = block.get() + used;
  used += count;
  return at::from_blob(data, shape, [owner = block](void*) {}, at::TensorOptions(kind));
}

}  // namespace r1
