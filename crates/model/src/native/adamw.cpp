// libtorch's fused AdamW over many tensors: one pass over memory, a few launches on the GPU.
#include "adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

namespace r1 {

void adamw(std::vector<at::Tensor>& weights, std::vector<at::Tensor>& gradients, std::vector<at::Tensor>& averages,
           std::vector<at::Tensor>& squares, const AdamW& settings) {
  if (weights.empty()) return;
  const at::NoGradGuard guard;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(weights[0].device());
  const std::vector<at::Tensor> steps(weights.size(), at::full({}, static_cast<double>(settings.step), options));
  // libtorch divides gradients by a loss scale, in f32.
  std::optional<at::Tensor> scale;
  if (weights[0].scalar_type() == at::kDouble)
    for (at::Tensor& gradient : gradients) gradient = gradient.mul(settings.scale);
  else if (settings.scale != 1)
    scale = at::full({}, 1 / settings.scale, options);
  at::_fused_adamw_(weights, gradients, averages, squares, {}, steps, settings.lr, settings.beta1, settings.beta2,
                    settings.weight_decay, settings.eps, /*amsgrad=*/false, /*maximize=*/false, scale,
                    /*found_inf=*/std::nullopt);
  // Raises the version counters, which invalidate the CPU kernels' packed copy of the weights.
  for (const at::Tensor& weight : weights) weight.unsafeGetTensorImpl()->bump_version();
}

}  // namespace r1
