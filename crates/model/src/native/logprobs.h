// Chunked log-probabilities; see logprobs.cpp.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

namespace r1 {

struct Model;  // of the CPU kernels, cpu/common.h

struct LogprobSettings {
  std::shared_ptr<Model> model;  // the head's model for the CPU kernels (f32); null for libtorch's operations
  double temperature = 1;
  int64_t chunk = 1;  // positions per chunk
  // Undefined, or the support: ids [S] and their end offset per position [N], both i64 on the CPU.
  // The distribution is over these ids only; a position without ids uses the whole vocabulary.
  at::Tensor support, ends;
  // Whether the softmax is the kernel of kernels.h: f32 logits of bf16 and f32 models.
  bool fused = false;
};

// All [N]; lse is the log of the sum of exponentials.
struct LogprobResult {
  at::Tensor logp, entropy, lse;
};

// Log-probabilities of `targets` [N] at hidden states [N, E] with the output projection `head` [V,
// E].
LogprobResult logprobs(const LogprobSettings& settings, const at::Tensor& hidden, const at::Tensor& head,
                       const at::Tensor& targets);

// The support of a position and its size; null for the whole vocabulary.
std::pair<const int64_t*, int64_t> support_at(const LogprobSettings& settings, int64_t position);

// The same with the CPU kernels (cpu/logprobs.cpp), if `settings` have a model.
LogprobResult native_forward(const LogprobSettings& settings, const at::Tensor& hidden, const at::Tensor& targets);
std::pair<at::Tensor, at::Tensor> native_backward(const LogprobSettings& settings, const at::Tensor& hidden,
                                                  const at::Tensor& targets, const LogprobResult& result,
                                                  const at::Tensor& g_logp, const at::Tensor& g_entropy);

// Gradients of hidden and head; incoming gradients can be undefined.
std::pair<at::Tensor, at::Tensor> logprobs_backward(const LogprobSettings& settings, const at::Tensor& hidden,
                                                    const at::Tensor& head, const at::Tensor& targets,
                                                    const LogprobResult& result, const at::Tensor& d_logp,
                                                    const at::Tensor& d_entropy);

}  // namespace r1
