// Log-probabilities and entropies of tokens without materialising the logits [N, V]: one chunk of
// positions at a time, recomputed in the backward pass.
#include "logprobs.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "kernels.h"

namespace r1 {

// The support of a position and its size; null for the whole vocabulary.
std::pair<const int64_t*, int64_t> support_at(const LogprobSettings& settings, int64_t position) {
  if (!settings.ends.defined()) return {nullptr, 0};
  const int64_t* ends = settings.ends.const_data_ptr<int64_t>();
  const int64_t begin = position == 0 ? 0 : ends[position - 1];
  return {settings.support.const_data_ptr<int64_t>() + begin, ends[position] - begin};
}

namespace {

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// Whether products of these matrices can stay in f32: bf16 and f16 on CUDA. The CPU rounds them.
bool has_wide_product(const at::Tensor& x) { return x.is_cuda() && x.scalar_type() != wide(x); }

// Masks the logits [count, V] of positions from `start` on outside their support.
void mask_outside_support(const LogprobSettings& settings, int64_t start, at::Tensor& logits) {
  std::vector<int64_t> rows, places;
  for (int64_t i = 0; i < logits.size(0); i++) {
    const auto [ids, size] = support_at(settings, start + i);
    if (size > 0) rows.push_back(i);
    for (int64_t k = 0; k < size; k++) places.push_back(i * logits.size(1) + ids[k]);
  }
  if (rows.empty()) return;
  const auto there = [&](const std::vector<int64_t>& list) {
    const at::Tensor host = at::tensor(list, at::kLong);
    // A copy from memory that is not pinned waits for the device.
    return logits.is_cuda() ? host.pin_memory().to(logits.device(), true) : host.to(logits.device());
  };
  at::Tensor away = at::zeros(logits.sizes(), logits.options().dtype(at::kBool));
  away.index_fill_(0, there(rows), true);
  away.view({-1}).index_fill_(0, there(places), false);
  // A finite value: its exponential is 0, and so is their product.
  logits.masked_fill_(away, -1e30);
}

at::Tensor wide_logits(const at::Tensor& hidden, const at::Tensor& head) {
  if (has_wide_product(hidden)) return at::mm(hidden, head.t(), at::kFloat);
  return at::linear(hidden, head).to(wide(hidden));
}

// Logits of a chunk, before the division by the temperature.
at::Tensor masked_logits(const LogprobSettings& settings, const at::Tensor& hidden, const at::Tensor& head,
                         int64_t start, int64_t count) {
  at::Tensor logits = wide_logits(hidden.narrow(0, start, count), head);
  mask_outside_support(settings, start, logits);
  return logits;
}

// Logits of a chunk with libtorch's operations, divided by the temperature.
at::Tensor chunk_logits(const LogprobSettings& settings, const at::Tensor& hidden, const at::Tensor& head,
                        int64_t start, int64_t count) {
  at::Tensor logits = wide_logits(hidden.narrow(0, start, count), head).div_(settings.temperature);
  mask_outside_support(settings, start, logits);
  return logits;
}

LogprobResult plain_forward(const LogprobSettings& settings, const at::Tensor& hidden, const at::Tensor& head,
                            const at::Tensor& targets) {
  const int64_t n = hidden.size(0), chunk = settings.chunk;
  const auto options = hidden.options().dtype(wide(hidden));
  LogprobResult result{at::empty({n}, options), at::empty({n}, options), at::empty({n}, options)};
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t count = std::min(chunk, n - start);
    if (settings.fused) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, start, count); };
      sampled_logprobs(masked_logits(settings, hidden, head, start, count), part(targets), settings.temperature,
                       part(result.logp), part(result.entropy), part(result.lse));
      continue;
    }
    const at::Tensor z = chunk_logits(settings, hidden, head, start, count);
    const at::Tensor lse = z.logsumexp(1);
    result.lse.narrow(0, start, count).copy_(lse);
    result.logp.narrow(0, start, count)
        .copy_(z.gather(1, targets.narrow(0, start, count).unsqueeze(1)).squeeze(1).sub_(lse));
    const at::Tensor p = (z - lse.unsqueeze(1)).exp_();
    result.entropy.narrow(0, start, count).copy_(lse - (p * z).sum(1));
  }
  return result;
}

// From the gradient d of the logits of a chunk: writes the gradient of its hidden states h, and
// adds the gradient of the head.
void d_hidden_and_head(const at::Tensor& d, const at::Tensor& h, const at::Tensor& head, at::Tensor d_hidden,
                       at::Tensor& d_head) {
  at::mm_out(d_hidden, d, head);
  d_head.add_(has_wide_product(d) ? at::mm(d.t(), h, at::kFloat) : d.t().matmul(h));
}

std::pair<at::Tensor, at::Tensor> plain_backward(const LogprobSettings& settings, const at::Tensor& hidden,
                                                 const at::Tensor& head, const at::Tensor& targets, const LogprobResult& result,
                                                 const at::Tensor& g_logp, const at::Tensor& g_entropy) {
  const int64_t n = hidden.size(0), chunk = settings.chunk;
  at::Tensor d_hidden = at::empty_like(hidden);
  at::Tensor d_head = at::zeros(head.sizes(), head.options().dtype(wide(hidden)));
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t count = std::min(chunk, n - start);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, start, count); };
    const at::Tensor h = part(hidden);
    if (settings.fused) {
      const at::Tensor d = sampled_logprobs_backward(
          masked_logits(settings, hidden, head, start, count), part(targets), settings.temperature, part(result.lse),
          part(result.entropy), part(g_logp), part(g_entropy), hidden.scalar_type());
      d_hidden_and_head(d, h, head, part(d_hidden), d_head);
      continue;
    }
    const at::Tensor logp = chunk_logits(settings, hidden, head, start, count).sub_(part(result.lse).unsqueeze(1));
    const at::Tensor gl = part(g_logp).unsqueeze(1), ge = part(g_entropy).unsqueeze(1);
    at::Tensor d = logp.exp().neg_().mul_((logp + part(result.entropy).unsqueeze(1)).mul_(ge).add_(gl));
    d.scatter_add_(1, part(targets).unsqueeze(1), gl);
    d = d.div_(settings.temperature).to(hidden.scalar_type());
    d_hidden_and_head(d, h, head, part(d_hidden), d_head);
  }
  return {d_hidden, d_head.to(head.scalar_type())};
}

}  // namespace

LogprobResult logprobs(const LogprobSettings& settings, const at::Tensor& hidden, const at::Tensor& head,
                       const at::Tensor& targets) {
#ifdef R1_CPU_KERNELS
  if (settings.model) return native_forward(settings, hidden, targets);
#endif
  return plain_forward(settings, hidden, head, targets);
}

std::pair<at::Tensor, at::Tensor> logprobs_backward(const LogprobSettings& settings, const at::Tensor& hidden,
                                                    const at::Tensor& head, const at::Tensor& targets,
                                                    const LogprobResult& result, const at::Tensor& d_logp,
                                                    const at::Tensor& d_entropy) {
  const auto given = [&](const at::Tensor& gradient) {
    return gradient.defined() ? gradient.to(result.lse.scalar_type()).contiguous() : at::zeros_like(result.lse);
  };
  const at::Tensor g_logp = given(d_logp), g_entropy = given(d_entropy);
#ifdef R1_CPU_KERNELS
  if (settings.model) return native_backward(settings, hidden, targets, result, g_logp, g_entropy);
#endif
  return plain_backward(settings, hidden, head, targets, result, g_logp, g_entropy);
}

}  // namespace r1
