// libtorch's flash attention; see flash.cpp.
#pragma once
#include <ATen/core/Tensor.h>

namespace r1 {

// Offsets of sequences in the queries and in the keys, [B + 1] i32 each; `keys`, if defined, is the
// number of keys of each, [B] i32.
struct Sequences {
  at::Tensor first_query, first_key, keys;
  int64_t most_queries, most_keys;
};

// Causal attention of q [T, H, D] over k and v [N, Hkv, D], the last query of a sequence at its
// last key; `scale` 0 for D^-0.5, `window` 0 for none. With the window -1 a query attends to all
// keys of its sequence. Differentiable without `keys`.
at::Tensor flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& sequences, double scale,
                 int64_t window);

}  // namespace r1
