// libtorch's AdamW over many tensors at once: each number is read and written once, on the GPU in a few launches.
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
  // libtorch divides by what a loss was scaled up by, which it takes in f32.
  std::optional<at::Tensor> scale;
  if (weights[0].scalar_type() == at::kDouble)
    for (at::Tensor& gradient : gradients) gradient = gradient.mul(settings.scale);
  else if (settings.scale != 1)
    scale = at::full({}, 1 / settings.scale, options);
  at::_fused_adamw_(weights, gradients, averages, squares, {}, steps, settings.lr, settings.beta1, settings.beta2,
                    settings.weight_decay, settings.eps, /*amsgrad=*/false, /*maximize=*/false, scale,
                    /*found_inf=*/std::nullopt);
  // The CPU kernels keep a packed copy of the weights; the counter tells them that it is old.
  for (const at::Tensor& weight : weights) weight.unsafeGetTensorImpl()->bump_version();
}

}  // namespace r1
