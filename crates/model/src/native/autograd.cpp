// The only file that includes libtorch's autograd, which is slow to compile.
#include "autograd.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

namespace r1 {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// An object with the lifetime of the graph.
template <class T>
struct Held : torch::CustomClassHolder {
  T value;
  explicit Held(T given) : value(std::move(given)) {}
};

template <class T>
const T& held(AutogradContext* context) {
  return static_cast<Held<T>*>(context->saved_data["held"].toCapsule().get())->value;
}

// Adds a reference to the object whose address was passed through apply(), which takes tensors and
// plain values only.
template <class T>
const T& keep(AutogradContext* context, int64_t address) {
  auto object = c10::intrusive_ptr<Held<T>>::reclaim_copy(reinterpret_cast<Held<T>*>(address));
  context->saved_data["held"] = c10::IValue::make_capsule(object);
  return object->value;
}

template <class T>
int64_t address(const c10::intrusive_ptr<Held<T>>& object) {
  return reinterpret_cast<int64_t>(object.get());
}

#ifdef R1_CPU_KERNELS
using PassPtr = std::shared_ptr<Pass>;

at::Tensor run(Pass& pass) {
  at::Tensor hidden = pooled_tensor({pass.tokens(), pass.width()});
  pass.run(hidden.data_ptr<float>());
  return hidden;
}

struct Forward : torch::autograd::Function<Forward> {
  static at::Tensor forward(AutogradContext* context, at::TensorList /*parameters*/, int64_t pass) {
    return run(*keep<PassPtr>(context, pass));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto all = held<PassPtr>(context)->gradients(gradients[0]);
    all.emplace_back();  // for the address
    return all;
  }
};
#endif

// The support of each position is in the vocabulary and contains its target.
void check_support(const LogprobSettings& settings, const at::Tensor& targets, int64_t vocab) {
  if (!settings.ends.defined()) return;
  for (const at::Tensor& list : {settings.support, settings.ends})
    TORCH_CHECK(list.dim() == 1 && list.scalar_type() == at::kLong && list.device().is_cpu() && list.is_contiguous(),
                "the support is two lists of i64 on the CPU");
  TORCH_CHECK(settings.ends.numel() == targets.numel(), "the support is for ", settings.ends.numel(), " positions of ",
              targets.numel());
  // Targets on a GPU are not read, because the host would wait for them: callers have checked them.
  const int64_t* target = targets.device().is_cpu() ? targets.const_data_ptr<int64_t>() : nullptr;
  const int64_t* ids = settings.support.const_data_ptr<int64_t>();
  const int64_t* ends = settings.ends.const_data_ptr<int64_t>();
  int64_t begin = 0;
  for (int64_t i = 0; i < targets.numel(); begin = ends[i++]) {
    TORCH_CHECK(begin <= ends[i] && ends[i] <= settings.support.numel(), "the support ends at ", ends[i]);
    for (int64_t k = begin; k < ends[i]; k++)
      TORCH_CHECK(ids[k] >= 0 && ids[k] < vocab, "id ", ids[k], " of a support is outside the vocabulary of ", vocab);
    if (!target || begin == ends[i]) continue;
    TORCH_CHECK(std::find(ids + begin, ids + ends[i], target[i]) != ids + ends[i], "target ", target[i],
                " is not in its support");
  }
}

struct LogProbs : torch::autograd::Function<LogProbs> {
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& head,
                               const at::Tensor& targets, int64_t settings) {
    const LogprobResult result = logprobs(keep<LogprobSettings>(context, settings), hidden, head, targets);
    context->save_for_backward({hidden, head, targets, result.lse, result.entropy});
    return {result.logp, result.entropy};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    auto [d_hidden, d_head] = logprobs_backward(held<LogprobSettings>(context), saved[0], saved[1], saved[2],
                                                {at::Tensor(), saved[4], saved[3]}, gradients[0], gradients[1]);
    return {d_hidden, d_head, at::Tensor(), at::Tensor()};
  }
};

variable_list product(const at::Tensor& x, const Stack& stack) {
  const std::optional<at::Tensor> bias = stack.bias.defined() ? std::make_optional(stack.bias) : std::nullopt;
  return at::linear(x, stack.weight, bias).split_with_sizes(stack.sizes, 1);
}

// The gradients of adjacent columns as one matrix: without a copy if they are columns of one.
at::Tensor side_by_side(const variable_list& parts) {
  int64_t width = 0;
  for (const at::Tensor& part : parts) width += part.size(1);
  const at::Tensor& first = parts[0];
  int64_t offset = first.storage_offset();
  bool adjacent = first.stride(0) == width;
  for (const at::Tensor& part : parts) {
    adjacent = adjacent && part.is_alias_of(first) && part.strides() == first.strides() && part.stride(1) == 1 &&
               part.storage_offset() == offset;
    offset += part.size(1);
  }
  if (!adjacent) return at::cat(parts, 1);
  return first.as_strided({first.size(0), width}, {width, 1});
}

struct StackedLinear : torch::autograd::Function<StackedLinear> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList leaves, int64_t stack) {
    const Stack& own = keep<Stack>(context, stack);
    // The rows of each leaf: first of the weights, then of the biases.
    std::vector<int64_t> rows;
    for (const at::Tensor& leaf : leaves) rows.push_back(leaf.size(0));
    if (own.bias.defined()) rows.resize(rows.size() / 2);
    context->saved_data["rows"] = rows;
    context->save_for_backward({x, own.weight});
    return product(x, own);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto rows = context->saved_data["rows"].toIntVector();
    const bool biased = held<Stack>(context).bias.defined();
    const at::Tensor d_out = side_by_side(gradients);
    variable_list all(2 + rows.size() * (biased ? 2 : 1));  // the last one is for the address
    const auto wanted = [&](size_t first) {
      for (size_t i = 0; i < rows.size(); i++)
        if (context->needs_input_grad(first + i)) return true;
      return false;
    };
    const auto spread = [&](const at::Tensor& gradient, size_t first) {
      const auto each = gradient.split_with_sizes(rows, 0);
      std::copy(each.begin(), each.end(), all.begin() + static_cast<int64_t>(first));
    };
    if (context->needs_input_grad(0)) all[0] = at::mm(d_out, saved[1]);
    if (wanted(1)) spread(at::mm(d_out.t(), saved[0]), 1);
    if (biased && wanted(1 + rows.size())) spread(d_out.sum(0), 1 + rows.size());
    return all;
  }
};

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList leaves, int64_t grouped) {
    const Grouped& own = keep<Grouped>(context, grouped);
    std::vector<int64_t> rows;
    for (const at::Tensor& leaf : leaves) rows.push_back(leaf.size(0));
    context->saved_data["rows"] = rows;
    context->save_for_backward({x, own.weight, own.ends});
    return at::_grouped_mm(x, own.weight.transpose(1, 2), own.ends);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto rows = context->saved_data["rows"].toIntVector();
    const at::Tensor d_out = gradients[0].contiguous();
    variable_list all(2 + rows.size());  // the last one is for the address
    if (context->needs_input_grad(0)) all[0] = at::_grouped_mm(d_out, saved[1], saved[2]);
    bool wanted = false;
    for (size_t i = 0; i < rows.size(); i++) wanted |= context->needs_input_grad(1 + i);
    if (wanted) {
      const at::Tensor d_weight = at::_grouped_mm(d_out.t(), saved[0], saved[2]);  // [count, out, in]
      const auto each = d_weight.reshape({-1, d_weight.size(2)}).split_with_sizes(rows, 0);
      std::copy(each.begin(), each.end(), all.begin() + 1);
    }
    return all;
  }
};

}  // namespace

at::Tensor differentiable_grouped_linear(const at::Tensor& x, const Grouped& grouped,
                                         const std::vector<at::Tensor>& leaves) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == grouped.weight.size(2), "the input must be [N, ", grouped.weight.size(2), "]");
  bool learning = x.requires_grad();
  for (const at::Tensor& leaf : leaves) learning |= leaf.requires_grad();
  if (!learning || !at::GradMode::is_enabled()) return at::_grouped_mm(x, grouped.weight.transpose(1, 2), grouped.ends);
  const auto object = c10::make_intrusive<Held<Grouped>>(grouped);
  return GroupedLinear::apply(x, at::TensorList(leaves), address(object));
}

std::vector<at::Tensor> differentiable_stacked_linear(const at::Tensor& x, const Stack& stack,
                                                      const std::vector<at::Tensor>& leaves) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == stack.weight.size(1), "the input must be [T, ", stack.weight.size(1), "]");
  bool learning = x.requires_grad();
  for (const at::Tensor& leaf : leaves) learning |= leaf.requires_grad();
  if (!learning || !at::GradMode::is_enabled()) return product(x, stack);
  const auto object = c10::make_intrusive<Held<Stack>>(stack);
  return StackedLinear::apply(x, at::TensorList(leaves), address(object));
}

#ifdef R1_CPU_KERNELS
at::Tensor differentiable_forward(const std::shared_ptr<Model>& model, const Batch& batch, bool inputs_only) {
  std::vector<at::Tensor> parameters;  // those the model has
  for (const at::Tensor& parameter : model->parameters)
    if (parameter.defined()) parameters.push_back(parameter);
  bool learning = false;
  if (at::GradMode::is_enabled())
    for (const at::Tensor& parameter : parameters) learning |= parameter.requires_grad();
  const Keep keep = !learning ? Keep::Nothing : inputs_only ? Keep::Inputs : Keep::All;
  auto pass = std::make_shared<Pass>(model, batch, keep);
  if (!learning) return run(*pass);
  const auto object = c10::make_intrusive<Held<PassPtr>>(std::move(pass));
  // A variable_list, because apply() does not search vectors for tensors.
  return Forward::apply(at::TensorList(parameters), address(object));
}
#endif

std::pair<at::Tensor, at::Tensor> differentiable_logprobs(const LogprobSettings& settings, const at::Tensor& hidden,
                                                          const at::Tensor& head, const at::Tensor& targets) {
  const at::Tensor h = hidden.contiguous(), chosen = targets.contiguous();
  TORCH_CHECK(h.dim() == 2 && h.size(1) == head.size(1) && h.scalar_type() == head.scalar_type(),
              "hidden states must be [N, ", head.size(1), "] in the model's type");
  TORCH_CHECK(chosen.dim() == 1 && chosen.size(0) == h.size(0) && chosen.scalar_type() == at::kLong,
              "targets must be [N] i64, one for each hidden state");
  TORCH_CHECK(settings.temperature > 0, "the temperature must be above 0");
  check_support(settings, chosen, head.size(0));
  if (chosen.device().is_cpu()) {
    const int64_t* ids = chosen.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < chosen.numel(); i++)
      TORCH_CHECK(ids[i] >= 0 && ids[i] < head.size(0), "target ", ids[i], " is outside the vocabulary of ",
                  head.size(0));
  }
  if (at::GradMode::is_enabled() && (h.requires_grad() || head.requires_grad())) {
    const auto object = c10::make_intrusive<Held<LogprobSettings>>(settings);
    auto out = LogProbs::apply(h, head, chosen, address(object));
    return {out[0], out[1]};
  }
  const LogprobResult result = logprobs(settings, h, head, chosen);
  return {result.logp, result.entropy};
}

}  // namespace r1
