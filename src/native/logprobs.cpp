// Log-probabilities and entropies of chosen tokens without ever holding the logits [N, V] whole, neither forward nor
// backward: a chunk of positions at a time, computed again in the backward pass.
#include "logprobs.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace r1 {

namespace {

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// The ids that a position chooses among, and how many; none if all.
std::pair<const int64_t*, int64_t> among(const Question& question, int64_t position) {
  if (!question.ends.defined()) return {nullptr, 0};
  const int64_t* ends = question.ends.const_data_ptr<int64_t>();
  const int64_t begin = position == 0 ? 0 : ends[position - 1];
  return {question.support.const_data_ptr<int64_t>() + begin, ends[position] - begin};
}

// Makes the logits [count, V] of positions from `start` on nothing where a position does not choose among them.
void cut(const Question& question, int64_t start, at::Tensor& logits) {
  std::vector<int64_t> rows, places;
  for (int64_t i = 0; i < logits.size(0); i++) {
    const auto [ids, size] = among(question, start + i);
    if (size > 0) rows.push_back(i);
    for (int64_t k = 0; k < size; k++) places.push_back(i * logits.size(1) + ids[k]);
  }
  if (rows.empty()) return;
  const auto there = [&](const std::vector<int64_t>& list) { return at::tensor(list, at::kLong).to(logits.device()); };
  at::Tensor away = at::zeros(logits.sizes(), logits.options().dtype(at::kBool));
  away.index_fill_(0, there(rows), true);
  away.view({-1}).index_fill_(0, there(places), false);
  // Not infinite: its exponential is 0 and their product too.
  logits.masked_fill_(away, -1e30);
}

// Logits of a chunk in libtorch's operations, divided by the temperature.
at::Tensor chunk_logits(const Question& question, const at::Tensor& hidden, const at::Tensor& head, int64_t start,
                        int64_t count) {
  at::Tensor logits = at::linear(hidden.narrow(0, start, count), head).to(wide(hidden)).div_(question.temperature);
  cut(question, start, logits);
  return logits;
}

Answer plain_forward(const Question& question, const at::Tensor& hidden, const at::Tensor& head,
                     const at::Tensor& targets) {
  const int64_t n = hidden.size(0), chunk = question.chunk;
  const auto options = hidden.options().dtype(wide(hidden));
  Answer answer{at::empty({n}, options), at::empty({n}, options), at::empty({n}, options)};
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t count = std::min(chunk, n - start);
    const at::Tensor z = chunk_logits(question, hidden, head, start, count);
    const at::Tensor lse = z.logsumexp(1);
    answer.lse.narrow(0, start, count).copy_(lse);
    answer.logp.narrow(0, start, count)
        .copy_(z.gather(1, targets.narrow(0, start, count).unsqueeze(1)).squeeze(1).sub_(lse));
    const at::Tensor p = (z - lse.unsqueeze(1)).exp_();
    answer.entropy.narrow(0, start, count).copy_(lse - (p * z).sum(1));
  }
  return answer;
}

std::pair<at::Tensor, at::Tensor> plain_backward(const Question& question, const at::Tensor& hidden,
                                                 const at::Tensor& head, const at::Tensor& targets, const Answer& answer,
                                                 const at::Tensor& g_logp, const at::Tensor& g_entropy) {
  const int64_t n = hidden.size(0), chunk = question.chunk;
  at::Tensor d_hidden = at::empty_like(hidden);
  at::Tensor d_head = at::zeros(head.sizes(), head.options().dtype(wide(hidden)));
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t count = std::min(chunk, n - start);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, start, count); };
    const at::Tensor h = part(hidden);
    const at::Tensor logp = chunk_logits(question, hidden, head, start, count).sub_(part(answer.lse).unsqueeze(1));
    const at::Tensor gl = part(g_logp).unsqueeze(1), ge = part(g_entropy).unsqueeze(1);
    at::Tensor d = logp.exp().neg_().mul_((logp + part(answer.entropy).unsqueeze(1)).mul_(ge).add_(gl));
    d.scatter_add_(1, part(targets).unsqueeze(1), gl);
    d = d.div_(question.temperature).to(hidden.scalar_type());
    part(d_hidden).copy_(d.matmul(head));
    d_head.add_(d.t().matmul(h));
  }
  return {d_hidden, d_head.to(head.scalar_type())};
}

// Logits [count, V] of a chunk by the model's own products, one row `row` floats apart.
void native_logits(const Model& model, const float* hidden, int64_t count, float* logits, int64_t row) {
  const Shape& shape = model.shape;
  if (count >= 4 * BLOCK && shape.vocab * shape.hidden <= (1 << 20)) {
    tasks(parts(count, BLOCK), [&](int64_t block) {
      const int64_t at = block * BLOCK;
      model.project_head(std::min(BLOCK, count - at), hidden + at * shape.hidden, shape.hidden, logits + at * row, row);
    });
  } else {
    model.project_head(count, hidden, shape.hidden, logits, row);
  }
}

Answer native_forward(const Question& question, const at::Tensor& hidden, const at::Tensor& targets) {
  Model& model = *question.model;
  model.refresh();
  const int64_t n = hidden.size(0), chunk = question.chunk, vocab = model.shape.vocab, row = stride(vocab);
  Answer answer{at::empty({n}, at::kFloat), at::empty({n}, at::kFloat), at::empty({n}, at::kFloat)};
  const float* h = hidden.const_data_ptr<float>();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const float scale = static_cast<float>(1.0 / question.temperature);
  float *logp = answer.logp.data_ptr<float>(), *entropy = answer.entropy.data_ptr<float>();
  float* lse = answer.lse.data_ptr<float>();
  const Floats logits = floats(std::min(chunk, n) * row);
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t count = std::min(chunk, n - start);
    native_logits(model, h + start * hidden.size(1), count, logits.get(), row);
    tasks(parts(count, 16), [&](int64_t block) {
      std::vector<float> kept;
      for (int64_t i = block * 16; i < std::min(count, block * 16 + 16); i++) {
        const float* z = logits.get() + i * row;
        const auto [ids, size] = among(question, start + i);
        kept.clear();
        for (int64_t k = 0; k < size; k++) kept.push_back(z[ids[k]]);
        kernels().distribution(size > 0 ? size : vocab, scale, size > 0 ? kept.data() : z, lse + start + i,
                               entropy + start + i);
        logp[start + i] = z[target[start + i]] * scale - lse[start + i];
      }
    });
  }
  return answer;
}

std::pair<at::Tensor, at::Tensor> native_backward(const Question& question, const at::Tensor& hidden,
                                                  const at::Tensor& targets, const Answer& answer,
                                                  const at::Tensor& g_logp, const at::Tensor& g_entropy) {
  Model& model = *question.model;
  const int64_t chunk = question.chunk;
  model.refresh();
  if (hidden.size(0) == 0) return {at::zeros_like(hidden), at::zeros_like(model.head())};
  const int64_t n = hidden.size(0), vocab = model.shape.vocab, width = model.shape.hidden, row = stride(vocab);
  at::Tensor d_hidden = at::empty_like(hidden), d_head = at::empty_like(model.head());
  const float* h = hidden.const_data_ptr<float>();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const float scale = static_cast<float>(1.0 / question.temperature);
  const float *gl = g_logp.const_data_ptr<float>(), *ge = g_entropy.const_data_ptr<float>();
  const float *lse = answer.lse.const_data_ptr<float>(), *entropy = answer.entropy.const_data_ptr<float>();
  float* dh = d_hidden.data_ptr<float>();
  std::vector<const float*> rows;
  for (int64_t id = 0; id < vocab; id++) rows.push_back(model.head().const_data_ptr<float>() + id * width);
  const Floats logits = floats(std::min(chunk, n) * row);
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t count = std::min(chunk, n - start);
    native_logits(model, h + start * width, count, logits.get(), row);
    // Blocks of one size, as many as the threads can share evenly.
    const int64_t threads = at::get_num_threads(), share = parts(count, threads * parts(count, threads * BLOCK));
    tasks(parts(count, share), [&](int64_t block) {
      const int64_t at = block * share, m = std::min(share, count - at);
      std::vector<float> kept;
      for (int64_t i = start + at; i < start + at + m; i++) {
        float* z = logits.get() + (i - start) * row;
        const auto [ids, size] = among(question, i);
        if (size == 0) {
          kernels().distribution_backward(vocab, scale, lse[i], entropy[i], target[i], gl[i], ge[i], z);
          continue;
        }
        kept.clear();
        for (int64_t k = 0; k < size; k++) kept.push_back(z[ids[k]]);
        const int64_t chosen = std::find(ids, ids + size, target[i]) - ids;
        kernels().distribution_backward(size, scale, lse[i], entropy[i], chosen, gl[i], ge[i], kept.data());
        std::fill(z, z + vocab, 0.0f);
        for (int64_t k = 0; k < size; k++) z[ids[k]] = kept[k];
      }
      multiply_rows(m, width, vocab, logits.get() + at * row, row, rows.data(), dh + (start + at) * width, width);
    });
    accumulate(count, {{vocab, width, logits.get(), row, h + start * width, width, d_head.data_ptr<float>()}},
               start == 0);
  }
  // The trunk's backward pass, which follows, makes the embedding's gradient, of the same size. A frozen model makes none.
  if (model.head().requires_grad()) model.release_head();
  return {d_hidden, d_head};
}

}  // namespace

Answer logprobs(const Question& question, const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets) {
  return question.model ? native_forward(question, hidden, targets) : plain_forward(question, hidden, head, targets);
}

std::pair<at::Tensor, at::Tensor> logprobs_backward(const Question& question, const at::Tensor& hidden,
                                                    const at::Tensor& head, const at::Tensor& targets,
                                                    const Answer& answer, const at::Tensor& d_logp,
                                                    const at::Tensor& d_entropy) {
  const auto given = [&](const at::Tensor& gradient) {
    return gradient.defined() ? gradient.to(answer.lse.scalar_type()).contiguous() : at::zeros_like(answer.lse);
  };
  const at::Tensor g_logp = given(d_logp), g_entropy = given(d_entropy);
  return question.model ? native_backward(question, hidden, targets, answer, g_logp, g_entropy)
                        : plain_backward(question, hidden, head, targets, answer, g_logp, g_entropy);
}

}  // namespace r1
