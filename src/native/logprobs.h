// Chunked log-probabilities; see logprobs.cpp.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

namespace r1 {

struct Model;  // of the CPU kernels, cpu/common.h

struct Question {
  std::shared_ptr<Model> model;  // whose head it is: f32 on the CPU by the kernels; null by libtorch's operations
  double temperature = 1;
  int64_t chunk = 1;  // positions at once
  // Undefined, or the ids [S] that positions choose among and where those of each position end [N], both i64 on the CPU: the
  // distribution is that of these ids alone. A position without any chooses among all.
  at::Tensor support, ends;
};

// All [N]; lse is the log of the sum of exponentials.
struct Answer {
  at::Tensor logp, entropy, lse;
};

// Of `targets` [N] at each of the hidden states [N, E], under the output projection `head` [V, E].
Answer logprobs(const Question& question, const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets);

// The ids that a position chooses among, and how many; none if all.
std::pair<const int64_t*, int64_t> among(const Question& question, int64_t position);

// The same by the CPU kernels (cpu/logprobs.cpp), for questions with a model.
Answer native_forward(const Question& question, const at::Tensor& hidden, const at::Tensor& targets);
std::pair<at::Tensor, at::Tensor> native_backward(const Question& question, const at::Tensor& hidden,
                                                  const at::Tensor& targets, const Answer& answer,
                                                  const at::Tensor& g_logp, const at::Tensor& g_entropy);

// Gradients of hidden and head; those given may be undefined.
std::pair<at::Tensor, at::Tensor> logprobs_backward(const Question& question, const at::Tensor& hidden,
                                                    const at::Tensor& head, const at::Tensor& targets,
                                                    const Answer& answer, const at::Tensor& d_logp,
                                                    const at::Tensor& d_entropy);

}  // namespace r1
