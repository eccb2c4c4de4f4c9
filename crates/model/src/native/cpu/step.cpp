// Generation: prefill and decode of many sequences in one call, keys and values in slots of a
// cache.
#include "step.h"

#include <numeric>

namespace r1 {

void Step::attend_head(int64_t layer, int64_t index, int64_t head) const {
  const Shape& shape = model.shape;
  const Piece& piece = pieces[index];
  const int64_t row = stride(shape.qkv()), o_row = stride(shape.queries());
  const int64_t group = shape.heads / shape.kv_heads, d = shape.head_dim;
  float* keys = cache.keys(shape, layer, piece.slot, head);
  float* values = cache.values(shape, layer, piece.slot, head);
  const float* k = qkv + starts[index] * row + shape.queries() + head * d;
  pack_keys(piece.start, piece.count, d, k, row, keys);
  for (int64_t t = 0; t < piece.count; t++)
    std::copy_n(k + t * row + shape.keys(), d, values + (piece.start + t) * d);
  // In the last layer only the last token is needed.
  const int64_t skipped = layer + 1 < shape.layers ? 0 : piece.count - 1, own = starts[index] + skipped;
  attend({d, group, piece.count - skipped, piece.start + skipped, qkv + own * row + head * group * d, row, keys, values, d},
         o + own * o_row + head * group * d, o_row, nullptr, 0);
}

bool Step::run(int64_t first, int64_t end) const {
  const Kernels& kernel = kernels();
  const Shape& shape = model.shape;
  const int64_t x_row = stride(shape.hidden), qkv_row = stride(shape.qkv()), o_row = stride(shape.queries());
  const int64_t start = starts[first], tokens = starts[end] - start;
  const bool alone = !at::in_parallel_region();
  // Calls f(at, count) for blocks of equal size, a multiple of the number of threads.
  const auto blocks = [&](int64_t tokens, auto f) {
    const int64_t sharing = !alone || tokens <= BLOCK ? 1 : at::get_num_threads();
    const int64_t size = parts(tokens, sharing * parts(tokens, sharing * BLOCK));
    tasks(parts(tokens, size), [&](int64_t block) { f(block * size, std::min(size, tokens - block * size)); });
  };
  for (int64_t l = 0; l < shape.layers; l++) {
    if (alone && stop()) return false;
    blocks(tokens, [&](int64_t place, int64_t count) {
      const int64_t at = start + place;
      if (l == 0)
        embed(at, count);
      else
        after_attention(model, l - 1, count, x + at * x_row, o + at * o_row, x + at * x_row, nullptr, x + at * x_row);
      before_attention(model, l, count, positions.data() + at, x + at * x_row, qkv + at * qkv_row, nullptr);
    });
    tasks((end - first) * shape.kv_heads,
          [&](int64_t task) { attend_head(l, first + task / shape.kv_heads, task % shape.kv_heads); });
  }
  if (alone && stop()) return false;
  // Logits and the rest of the last layer are computed for the last tokens only.
  const int64_t count = end - first;
  const Floats memory = floats(count * (2 * x_row + o_row));
  float *lasts = memory.get(), *h = lasts + count * x_row, *heads = h + count * x_row;
  for (int64_t i = 0; i < count; i++) {
    const int64_t last = starts[first + i + 1] - 1;
    std::copy_n(x + last * x_row, shape.hidden, lasts + i * x_row);
    std::copy_n(o + last * o_row, shape.queries(), heads + i * o_row);
  }
  blocks(count, [&](int64_t at, int64_t some) {
    float* own = lasts + at * x_row;
    after_attention(model, shape.layers - 1, some, own, heads + at * o_row, own, nullptr, own);
  });
  kernel.rms_norm(count, shape.hidden, shape.eps, lasts, x_row, model.norm(), h, x_row);
  model.project_head(count, h, x_row, logits + first * shape.vocab, shape.vocab);
  return true;
}

void Step::embed(int64_t start, int64_t count) const {
  const Shape& shape = model.shape;
  size_t piece = std::upper_bound(starts.begin(), starts.end(), start) - starts.begin() - 1;
  for (int64_t t = start; t < start + count; t++) {
    while (t >= starts[piece + 1]) piece++;
    model.embed(pieces[piece].ids[t - starts[piece]], x + t * stride(shape.hidden));
  }
}

at::Tensor step(Model& model, const Cache& cache, const std::vector<Piece>& pieces, const Stop& stop) {
  const Shape& shape = model.shape;
  const int64_t count = static_cast<int64_t>(pieces.size());
  at::Tensor logits = pooled_tensor({count, shape.vocab});
  if (count == 0) return logits;
  if (!model.refresh(stop)) return {};
  std::vector<int64_t> starts{0}, positions;
  for (const Piece& piece : pieces) {
    starts.push_back(starts.back() + piece.count);
    for (int64_t t = 0; t < piece.count; t++) positions.push_back(piece.start + t);
  }
  model.reserve_positions(1 + *std::max_element(positions.begin(), positions.end()));
  const int64_t tokens = starts.back();
  const int64_t widths[] = {stride(shape.hidden), stride(shape.qkv()), stride(shape.queries())};
  const Floats memory = pooled((widths[0] + widths[1] + widths[2]) * tokens);
  float* x = memory.get();
  float* qkv = x + widths[0] * tokens;
  const Step step{model, cache,           pieces, std::move(starts), std::move(positions), x, qkv, qkv + widths[1] * tokens,
                  logits.data_ptr<float>(), stop};

  // If each thread has enough tokens to reuse the weights and the weights fit in the cache, each
  // thread computes its sequences through all layers; otherwise the threads share every product.
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), count);
  const int64_t weights = shape.layers * shape.hidden * (shape.qkv() + shape.queries() + 3 * shape.inner) +
                          shape.vocab * shape.hidden;
  constexpr int64_t small = 8 << 20;
  if (model.half() && tokens <= FEW && weights > small && !at::in_parallel_region()) {
    if (!step.together()) return {};
  } else if (threads > 1 && tokens >= 12 * threads && weights <= small) {
    std::vector<int64_t> cuts{0};
    for (int64_t thread = 1; thread < threads; thread++) {
      const auto cut = std::lower_bound(step.starts.begin(), step.starts.end(), tokens * thread / threads);
      cuts.push_back(std::max(cuts.back(), static_cast<int64_t>(cut - step.starts.begin())));
    }
    cuts.push_back(count);
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++)
        if (cuts[i] < cuts[i + 1]) step.run(cuts[i], cuts[i + 1]);
    });
  } else {
    // Waking threads for each of a hundred products costs more than 2^25 multiplications (0.5 ms),
    // above all if another process uses a core.
    single_thread = weights * tokens < (1 << 25) && weights <= small;
    const bool done = step.run(0, count);
    single_thread = false;
    if (!done) return {};
  }
  return logits;
}

}  // namespace r1
