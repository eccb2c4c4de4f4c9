// r1's own CUDA kernels (cuda/kernels/*.cu) as functions of tensors, in bf16 and f32. They are
// compiled at run time and started by the launcher, which is set from Rust (cuda/launch.rs). Tests
// execute them on the CPU. Each has a counterpart in libtorch's operations, which callers use where
// the kernels are off.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace r1 {

// Starts a kernel of cuda/kernels/SOURCE.cu, compiled with the definitions (separated by spaces),
// on the current stream of the device (-1: the CPU). Returns null or a message.
using Launcher = char* (*)(int64_t device, const char* source, const char* definitions, const char* name,
                           const uint32_t* grid, uint32_t threads, void** arguments);
void set_launcher(Launcher launcher);

// sum = x + delta and out = sum / rms(sum) * (weight + offset) over rows of `weight`'s size, and 1
// / rms of each row in f32. `delta` can be undefined: then `sum` is x.
struct Normed {
  at::Tensor sum, out, scale;
};
Normed add_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, double eps, double offset);

// Gradients of x (and delta, the same) and of the weight, which is undefined unless wanted. `d_sum`
// can be undefined.
std::pair<at::Tensor, at::Tensor> add_norm_backward(const at::Tensor& sum, const at::Tensor& weight,
                                                    const at::Tensor& scale, const at::Tensor& d_out,
                                                    const at::Tensor& d_sum, double offset, bool weight_wanted);

// The activation of gate times up, both [T, n]: SiLU or GELU (tanh).
at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, bool gelu);
// Their gradients side by side, [T, 2 n].
at::Tensor gated_backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& d_out, bool gelu);

// Projections [T, n * dim] of queries, keys and values, and what happens to them.
struct Heads {
  at::Tensor parts[3];
  at::Tensor biases[3];       // undefined: none
  at::Tensor norms[2];        // weights of the norms of query and key heads; undefined: none
  at::Tensor cosines, sines;  // [T, dim], the first half of the sines negated; undefined: no rotation
  double eps = 0, offset = 0;
  int64_t dim = 0;
};

// A key-value cache [slots, capacity, Hkv, dim] and the places of T tokens in it; undefined: none.
struct Places {
  at::Tensor keys, values, slots, positions;
};

// Queries, keys and values [T, n, dim]; with places, keys and values are written to the cache and
// the last two are undefined.
std::vector<at::Tensor> rotated_heads(const Heads& heads, const Places& places);
// Gradients of the three projections side by side, without biases and norms.
at::Tensor rotated_heads_backward(const at::Tensor& d_q, const at::Tensor& d_k, const at::Tensor& d_v,
                                  const at::Tensor& cosines, const at::Tensor& sines);

// Log-probabilities of targets, entropies and logarithms of the sums, each [N] f32, of logits [N,
// V] in f32 or bf16.
void sampled_logprobs(const at::Tensor& logits, const at::Tensor& targets, double temperature, at::Tensor logp,
                      at::Tensor entropy, at::Tensor lse);
// The gradient of the logits, in `type`.
at::Tensor sampled_logprobs_backward(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                                     const at::Tensor& lse, const at::Tensor& entropy, const at::Tensor& d_logp,
                                     const at::Tensor& d_entropy, at::ScalarType type);

// Attention of one query per sequence, q [B, H, dim], over keys and values [N, Hkv, dim]: sequence
// b has `lengths`[b] rows from `first_key`[b] on, at most `most_keys`. i32 both.
at::Tensor decode_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& first_key, const at::Tensor& lengths, int64_t most_keys, double scale,
                            int64_t window);

// The same with gradients, which need `autograd_kernels.cpp`.
std::vector<at::Tensor> differentiable_add_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                                                double eps, double offset);
at::Tensor differentiable_gated(const at::Tensor& gate, const at::Tensor& up, bool gelu);
std::vector<at::Tensor> differentiable_rotated_heads(const Heads& heads, const Places& places);

}  // namespace r1
