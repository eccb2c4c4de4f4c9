// Generation: prefill and decode of many sequences in one call, keys and values in slots of a cache.
#include "step.h"

#include <ATen/ops/empty.h>

#include <numeric>

namespace r1 {

namespace {

struct Step {
  Model& model;
  const Cache& cache;
  const std::vector<Piece>& pieces;
  std::vector<int64_t> starts, positions;
  float *x, *qkv, *o, *logits;
  const Stop& stop;

  // Keys and values of the new tokens of a piece, for one head.
  void write(int64_t layer, const Piece& piece, int64_t start, int64_t head) const {
    const Shape& shape = model.shape;
    const int64_t d = shape.head_dim, row = stride(shape.qkv());
    float* keys = cache.keys(shape, layer, piece.slot, head);
    float* values = cache.values(shape, layer, piece.slot, head);
    const float* k = qkv + start * row + shape.queries() + head * d;
    pack_keys(piece.start, piece.count, d, k, row, keys);
    for (int64_t t = 0; t < piece.count; t++)
      std::copy_n(k + t * row + shape.keys(), d, values + (piece.start + t) * d);
  }

  // Pieces first..end through the whole network; shared out among the threads when called outside a parallel region,
  // where alone it can be stopped: false, then.
  bool run(int64_t first, int64_t end) const {
    const Kernels& kernel = kernels();
    const Shape& shape = model.shape;
    const int64_t x_row = stride(shape.hidden), qkv_row = stride(shape.qkv()), o_row = stride(shape.queries());
    const int64_t group = shape.heads / shape.kv_heads, d = shape.head_dim;
    const int64_t start = starts[first], tokens = starts[end] - start;
    // Blocks of one size, as many as the threads can share evenly.
    const int64_t sharing = at::in_parallel_region() || tokens <= BLOCK ? 1 : at::get_num_threads();
    const int64_t size = parts(tokens, sharing * parts(tokens, sharing * BLOCK));
    const bool alone = !at::in_parallel_region();
    for (int64_t l = 0; l <= shape.layers; l++) {
      if (alone && stop()) return false;
      tasks(parts(tokens, size), [&](int64_t block) {
        const int64_t at = start + block * size, count = std::min(size, start + tokens - at);
        if (l == 0)
          embed(at, count);
        else
          after_attention(model, l - 1, count, x + at * x_row, o + at * o_row, x + at * x_row, nullptr, x + at * x_row);
        if (l < shape.layers)
          before_attention(model, l, count, positions.data() + at, x + at * x_row, qkv + at * qkv_row, nullptr);
      });
      if (l == shape.layers) break;
      const auto attention = [&](int64_t task) {
        const int64_t index = first + task / shape.kv_heads, head = task % shape.kv_heads, own = starts[index];
        const Piece& piece = pieces[index];
        write(l, piece, own, head);
        attend({d, group, piece.count, piece.start, qkv + own * qkv_row + head * group * d, qkv_row,
                cache.keys(shape, l, piece.slot, head), cache.values(shape, l, piece.slot, head), d},
               o + own * o_row + head * group * d, o_row, nullptr, 0);
      };
      tasks((end - first) * shape.kv_heads, attention);
    }
    const int64_t count = end - first;
    const Floats lasts = floats(2 * count * x_row);
    float* h = lasts.get() + count * x_row;
    for (int64_t i = 0; i < count; i++)
      std::copy_n(x + (starts[first + i + 1] - 1) * x_row, shape.hidden, lasts.get() + i * x_row);
    kernel.rms_norm(count, shape.hidden, shape.eps, lasts.get(), x_row, model.norm(), h, x_row);
    model.project_head(count, h, x_row, logits + first * shape.vocab, shape.vocab);
    return true;
  }

  void embed(int64_t start, int64_t count) const;
};

void Step::embed(int64_t start, int64_t count) const {
  const Shape& shape = model.shape;
  size_t piece = std::upper_bound(starts.begin(), starts.end(), start) - starts.begin() - 1;
  for (int64_t t = start; t < start + count; t++) {
    while (t >= starts[piece + 1]) piece++;
    model.embed(pieces[piece].ids[t - starts[piece]], x + t * stride(shape.hidden));
  }
}

}  // namespace

at::Tensor step(Model& model, const Cache& cache, const std::vector<Piece>& pieces, const Stop& stop) {
  const Shape& shape = model.shape;
  const int64_t count = static_cast<int64_t>(pieces.size());
  at::Tensor logits = at::empty({count, shape.vocab}, at::kFloat);
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
  const Floats memory = floats((widths[0] + widths[1] + widths[2]) * tokens);
  float* x = memory.get();
  float* qkv = x + widths[0] * tokens;
  const Step step{model, cache,           pieces, std::move(starts), std::move(positions), x, qkv, qkv + widths[1] * tokens,
                  logits.data_ptr<float>(), stop};

  // Each thread takes some sequences through all layers without waiting for the others, if it has enough tokens to use
  // the weights well and the weights fit the processor's cache; otherwise the threads share every product.
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), count);
  const int64_t weights = shape.layers * shape.hidden * (shape.qkv() + shape.queries() + 3 * shape.inner) +
                          shape.vocab * shape.hidden;
  if (threads > 1 && tokens >= 12 * threads && weights <= (8 << 20)) {
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
  } else if (!step.run(0, count)) {
    return {};
  }
  return logits;
}

}  // namespace r1
