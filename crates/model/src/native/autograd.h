// The forward pass and the log-probabilities as functions of libtorch's autograd; see autograd.cpp.
#pragma once
#include <vector>

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
std::pair<at::Tensor, at::Tensor> differentiable_logprobs(const LogprobSettings& settings, const at::Tensor& hidden,
                                                          const at::Tensor& head, const at::Tensor& targets);

// The weights [sum, in] and biases [sum] (undefined without) of several projections, and the sizes
// of the outputs.
struct Stack {
  at::Tensor weight, bias;
  std::vector<int64_t> sizes;
};

// Outputs [T, size] of x [T, in] as views of one product; differentiable if x or a leaf requires a
// gradient. `leaves`: views of the rows of the weight in order, then views of the bias.
std::vector<at::Tensor> differentiable_stacked_linear(const at::Tensor& x, const Stack& stack,
                                                      const std::vector<at::Tensor>& leaves);

// The weights [count, out, in] of the same projection of several experts, and the end of each
// expert's rows, [count] i32 on the device.
struct Grouped {
  at::Tensor weight, ends;
};

// x [N, in], whose rows are sorted by expert, times the transposed weights of their experts: [N,
// out]. `leaves`: views of the rows of the weights, expert by expert. The host does not wait for
// the device where libtorch has the product (bf16, compute capability 9.0 and above).
at::Tensor differentiable_grouped_linear(const at::Tensor& x, const Grouped& grouped,
                                         const std::vector<at::Tensor>& leaves);

}  // namespace r1
