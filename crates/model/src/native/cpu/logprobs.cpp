// Log-probabilities and entropies with the CPU kernels: the part of ../logprobs.cpp for f32 models.
#include "../logprobs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "common.h"

namespace r1 {

namespace {

// Logits [count, V] of a chunk with the packed products; rows are `row` floats apart.
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

}  // namespace

LogprobResult native_forward(const LogprobSettings& settings, const at::Tensor& hidden, const at::Tensor& targets) {
  Model& model = *settings.model;
  TORCH_CHECK(!model.half(), "a bf16 model supports generation only");
  model.refresh();
  const int64_t n = hidden.size(0), chunk = settings.chunk, vocab = model.shape.vocab, row = stride(vocab);
  LogprobResult result{at::empty({n}, at::kFloat), at::empty({n}, at::kFloat), at::empty({n}, at::kFloat)};
  const float* h = hidden.const_data_ptr<float>();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const float scale = static_cast<float>(1.0 / settings.temperature);
  float *logp = result.logp.data_ptr<float>(), *entropy = result.entropy.data_ptr<float>();
  float* lse = result.lse.data_ptr<float>();
  const Floats logits = pooled(std::min(chunk, n) * row);
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t count = std::min(chunk, n - start);
    native_logits(model, h + start * hidden.size(1), count, logits.get(), row);
    tasks(parts(count, 16), [&](int64_t block) {
      std::vector<float> kept;
      for (int64_t i = block * 16; i < std::min(count, block * 16 + 16); i++) {
        const float* z = logits.get() + i * row;
        const auto [ids, size] = support_at(settings, start + i);
        kept.clear();
        for (int64_t k = 0; k < size; k++) kept.push_back(z[ids[k]]);
        kernels().distribution(size > 0 ? size : vocab, scale, size > 0 ? kept.data() : z, lse + start + i,
                               entropy + start + i);
        logp[start + i] = z[target[start + i]] * scale - lse[start + i];
      }
    });
  }
  return result;
}

std::pair<at::Tensor, at::Tensor> native_backward(const LogprobSettings& settings, const at::Tensor& hidden,
                                                  const at::Tensor& targets, const LogprobResult& result,
                                                  const at::Tensor& g_logp, const at::Tensor& g_entropy) {
  Model& model = *settings.model;
  const int64_t chunk = settings.chunk;
  model.refresh();
  if (hidden.size(0) == 0) return {at::zeros_like(hidden), at::zeros_like(model.head())};
  const int64_t n = hidden.size(0), vocab = model.shape.vocab, width = model.shape.hidden, row = stride(vocab);
  at::Tensor d_hidden = pooled_tensor(hidden.sizes()), d_head = pooled_tensor(model.head().sizes());
  const float* h = hidden.const_data_ptr<float>();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const float scale = static_cast<float>(1.0 / settings.temperature);
  const float *gl = g_logp.const_data_ptr<float>(), *ge = g_entropy.const_data_ptr<float>();
  const float *lse = result.lse.const_data_ptr<float>(), *entropy = result.entropy.const_data_ptr<float>();
  float* dh = d_hidden.data_ptr<float>();
  std::vector<const float*> rows;
  for (int64_t id = 0; id < vocab; id++) rows.push_back(model.head().const_data_ptr<float>() + id * width);
  const Floats logits = pooled(std::min(chunk, n) * row);
  for (int64_t start = 0; start < n; start += chunk) {
    const int64_t count = std::min(chunk, n - start);
    native_logits(model, h + start * width, count, logits.get(), row);
    // Blocks of equal size, a multiple of the number of threads. Each packs the head, so they are
    // large.
    const int64_t threads = at::get_num_threads(), share = parts(count, threads * parts(count, 4 * threads * BLOCK));
    tasks(parts(count, share), [&](int64_t block) {
      const int64_t at = block * share, m = std::min(share, count - at);
      std::vector<float> kept;
      for (int64_t i = start + at; i < start + at + m; i++) {
        float* z = logits.get() + (i - start) * row;
        const auto [ids, size] = support_at(settings, i);
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
  // The following backward pass of the trunk allocates the embedding's gradient, of the same size,
  // unless the model is frozen.
  if (model.head().requires_grad()) model.release_head();
  return {d_hidden, d_head};
}

}  // namespace r1
