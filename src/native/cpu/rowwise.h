// Generation in plain operations, in f32 on the CPU: products, activations and attention in which the bits of a row
// depend on that row alone, not on how many rows are computed together. No gradients.
#pragma once
#include <ATen/core/Tensor.h>

namespace r1 {

// x [T, in] times weight [out, in] transposed, plus bias [out] where it is defined: [T, out].
at::Tensor linear_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// silu(gate) * up, or with `gelu` gelu(gate) * up by the tanh approximation; all [T, n].
at::Tensor gated_rows(const at::Tensor& gate, const at::Tensor& up, bool gelu);
// Causal attention of queries q [T, H, D] over cached keys and values [slots, capacity, Hkv, D]. Query t belongs to
// sequence slots[t], stands at positions[t] and sees its own key and those before it, at most `window` in all if that
// is positive. Gives [T, H, D].
at::Tensor attend_rows(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& slots,
                       const at::Tensor& positions, double scale, int64_t window);

}  // namespace r1
