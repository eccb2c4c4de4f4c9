// The forward pass and the log-probabilities as functions of libtorch's autograd; see autograd.cpp.
#pragma once
#include "logprobs.h"
#ifdef R1_CPU_KERNELS
#include "cpu/learn.h"
#endif

namespace r1 {

#ifdef R1_CPU_KERNELS
// Hidden states [T, E]; differentiable if gradients are required. `inputs_only`: backward
// recomputes the layers from their inputs.
at::Tensor differentiable_forward(const std::shared_ptr<Model>& model, const Batch& batch, bool inputs_only);
#endif

// logp [N] and entropy [N]; differentiable if gradients are required. Throws for wrong shapes and
// targets.
std::pair<at::Tensor, at::Tensor> differentiable_logprobs(const Question& question, const at::Tensor& hidden,
                                                          const at::Tensor& head, const at::Tensor& targets);

}  // namespace r1
