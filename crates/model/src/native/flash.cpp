// Variable-length flash attention, which tch does not bind. Its kernel is in libtorch_cuda, for f16
// and bf16; query heads can be a multiple of key heads.
#include "flash.h"

#include <ATen/ops/_flash_attention_forward.h>

#include <optional>

namespace r1 {

at::Tensor flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& sequences, double scale,
                 int64_t window) {
  std::optional<double> factor;
  if (scale > 0) factor = scale;
  // The kernel's window counts the keys before the query's own. Without a window it is unset, so
  // that the kernel can use its decode path.
  std::optional<int64_t> left, right;
  if (window > 0) {
    left = window - 1;
    right = 0;
  }
  std::optional<at::Tensor> keys;
  if (sequences.keys.defined()) keys = sequences.keys;
  return std::get<0>(at::_flash_attention_forward(
      q, k, v, sequences.first_query, sequences.first_key, sequences.most_queries, sequences.most_keys,
      /*dropout_p=*/0.0, /*is_causal=*/window >= 0, /*return_debug_mask=*/false, factor, left, right, keys));
}

}  // namespace r1
