// The kernels as functions of libtorch's autograd; see kernels.h.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels.h"

namespace r1 {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool learning(std::initializer_list<const at::Tensor*> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor* x : tensors)
    if (x->defined() && x->requires_grad()) return true;
  return false;
}

struct AddNorm : torch::autograd::Function<AddNorm> {
  // `added`: whether `delta` is added; without it, any tensor takes its place.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& delta,
                               const at::Tensor& weight, bool added, double eps, double offset) {
    const Normed normed = add_norm(x, added ? delta : at::Tensor(), weight, eps, offset);
    context->save_for_backward({normed.sum, weight, normed.scale});
    context->saved_data["offset"] = offset;
    context->set_materialize_grads(false);
    if (!added) return {normed.out};
    return {normed.out, normed.sum};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor d_sum = gradients.size() > 1 ? gradients[1] : at::Tensor();
    at::Tensor d_x = d_sum, d_weight;
    if (gradients[0].defined())
      std::tie(d_x, d_weight) = add_norm_backward(saved[0], saved[1], saved[2], gradients[0], d_sum,
                                                  context->saved_data["offset"].toDouble(), context->needs_input_grad(2));
    const at::Tensor none;
    return {d_x, gradients.size() > 1 ? d_x : none, d_weight, none, none, none};
  }
};

struct GatedFunction : torch::autograd::Function<GatedFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up, bool gelu) {
    context->save_for_backward({gate, up});
    context->saved_data["gelu"] = gelu;
    return gated(gate, up, gelu);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor both = gated_backward(saved[0], saved[1], gradients[0], context->saved_data["gelu"].toBool());
    const int64_t width = both.size(1) / 2;
    return {both.narrow(1, 0, width), both.narrow(1, width, width), at::Tensor()};
  }
};

struct RotatedHeads : torch::autograd::Function<RotatedHeads> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& cosines, const at::Tensor& sines, int64_t dim) {
    context->save_for_backward({cosines, sines});
    Heads heads;
    heads.parts[0] = q;
    heads.parts[1] = k;
    heads.parts[2] = v;
    heads.cosines = cosines;
    heads.sines = sines;
    heads.dim = dim;
    return rotated_heads(heads, {});
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor all = rotated_heads_backward(gradients[0], gradients[1], gradients[2], saved[0], saved[1]);
    const auto width = [&](int i) { return gradients[i].size(1) * gradients[i].size(2); };
    return {all.narrow(1, 0, width(0)), all.narrow(1, width(0), width(1)), all.narrow(1, width(0) + width(1), width(2)),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::vector<at::Tensor> differentiable_add_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                                                double eps, double offset) {
  if (learning({&x, &delta, &weight})) {
    auto all = AddNorm::apply(x, delta.defined() ? delta : x.detach(), weight, delta.defined(), eps, offset);
    if (all.size() == 1) all.push_back(x);
    return all;
  }
  const Normed normed = add_norm(x, delta, weight, eps, offset);
  return {normed.out, normed.sum};
}

at::Tensor differentiable_gated(const at::Tensor& gate, const at::Tensor& up, bool gelu) {
  return learning({&gate, &up}) ? GatedFunction::apply(gate, up, gelu) : gated(gate, up, gelu);
}

std::vector<at::Tensor> differentiable_rotated_heads(const Heads& heads, const Places& places) {
  const auto* parts = heads.parts;
  if (!learning({&parts[0], &parts[1], &parts[2]})) return rotated_heads(heads, places);
  bool plain = heads.cosines.defined() && !places.keys.defined() && !heads.norms[0].defined() && !heads.norms[1].defined();
  for (const at::Tensor& bias : heads.biases) plain &= !bias.defined();
  TORCH_CHECK(plain, "gradients of biases, norms and caches are not those of this kernel");
  return RotatedHeads::apply(parts[0], parts[1], parts[2], heads.cosines, heads.sines, heads.dim);
}

}  // namespace r1
