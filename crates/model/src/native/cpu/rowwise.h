// Batch-invariant f32 operations for generation with the plain operations: products, activations
// and attention whose rows do not depend on the other rows (bitwise). No gradients.
#pragma once
#include <ATen/core/Tensor.h>

namespace r1 {

// x [T, in] times weight [out, in] transposed, plus bias [out] if defined: [T, out].
at::Tensor linear_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// silu(gate) * up, or with `gelu` gelu(gate) * up with the tanh approximation; all [T, n].
at::Tensor gated_rows(const at::Tensor& gate, const at::Tensor& up, bool gelu);
// Causal attention of queries q [T, H, D] over cached keys and values [slots, capacity, Hkv, D].
// Query t belongs to sequence slots[t], has position positions[t] and attends to its own and
// earlier keys, at most `window` in total if that is positive. Sinks [H] (or an undefined tensor)
// are scores of heads without a key and a value. Returns [T, H, D].
at::Tensor attend_rows(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& sinks,
                       const at::Tensor& slots, const at::Tensor& positions, double scale, int64_t window);

}  // namespace r1
