// Forward and backward of the whole network over packed rows, as one autograd function.
//
// Rows never see each other, so they are taken in chunks of whole rows small enough for the processor's last cache;
// within a chunk, blocks of tokens and the heads of rows are shared out among the threads. What backward needs of a
// layer is kept (2 E + qkv + H D + 2 I + H floats a token); norms and the activation are computed again.
#include "learn.h"

#include <ATen/ops/empty_like.h>

#include <numeric>

namespace r1 {

Pass::Pass(std::shared_ptr<Model> owner, Batch rows, bool keep) : model(std::move(owner)), batch(std::move(rows)) {
  const Shape& shape = model->shape;
  int64_t furthest = 0;
  for (const int64_t id : batch.ids)
    TORCH_CHECK(id >= 0 && id < shape.vocab, "token id ", id, " is outside the vocabulary of ", shape.vocab);
  for (const int64_t position : batch.positions) {
    TORCH_CHECK(position >= 0 && position < (1 << 24), "position ", position, " is out of range");
    furthest = std::max(furthest, position);
  }
  model->reserve_positions(furthest + 1);
  const int64_t tokens = batch.starts.back(), size = 768 * at::get_num_threads();
  for (int64_t row = 0; row + 1 < static_cast<int64_t>(batch.starts.size()); row++) {
    if (chunks.empty() || chunks.back().tokens >= size) chunks.push_back({row, 0, starts(row), 0});
    chunks.back().rows++;
    chunks.back().tokens += starts(row + 1) - starts(row);
  }
  const std::vector<int64_t> widths = {stride(shape.hidden),    stride(shape.qkv()),  stride(shape.queries()),
                                       shape.heads,             stride(shape.hidden), stride(2 * shape.inner)};
  const int64_t wide = std::accumulate(widths.begin(), widths.end() - (keep ? 0 : 1), int64_t{0});
  // Each part of a token's row begins at a whole vector.
  memory = pooled(((keep ? shape.layers : 1) * wide + stride(shape.hidden)) * (tokens + 16) + 16);
  float* at = memory.get();
  const auto take = [&](int64_t width) {
    float* start = at;
    at += (width * tokens + 15) / 16 * 16;
    return start;
  };
  last = take(widths[0]);
  for (int64_t l = 0; l < shape.layers; l++) {
    if (l > 0 && !keep) {
      layers.push_back(layers.front());
      continue;
    }
    Kept kept{take(widths[0]), take(widths[1]), take(widths[2]), take(widths[3]), take(widths[4]), nullptr};
    if (keep) kept.gate_up = take(widths[5]);
    layers.push_back(kept);
  }
}

// Blocks of a chunk's tokens: f(first token of the batch, tokens).
template <class F>
void Pass::blocks(const Chunk& chunk, F f) {
  tasks(parts(chunk.tokens, BLOCK), [&](int64_t block) {
    const int64_t start = block * BLOCK;
    f(chunk.start + start, std::min(BLOCK, chunk.tokens - start));
  });
}

namespace {

// The heads of a row, without the keys' panels.
Attention heads_of(const Shape& shape, const float* qkv, int64_t tokens, int64_t head) {
  const int64_t row = stride(shape.qkv()), group = shape.heads / shape.kv_heads;
  return {shape.head_dim, group, tokens, 0, qkv + head * group * shape.head_dim, row, nullptr,
          qkv + shape.queries() + shape.keys() + head * shape.head_dim, row};
}

// Pointers to `count` rows of a weight of `width` columns.
void add_rows(std::vector<const float*>& rows, const float* weight, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; i++) rows.push_back(weight + i * width);
}

}  // namespace

void Pass::run(float* hidden) {
  model->refresh();
  weights = model->fingerprint();
  const Shape& shape = model->shape;
  const int64_t x_row = stride(shape.hidden), qkv_row = stride(shape.qkv()), o_row = stride(shape.queries());
  const int64_t gate_up_row = stride(2 * shape.inner);
  for (const Chunk& chunk : chunks) {
    for (int64_t l = 0; l <= shape.layers; l++) {
      blocks(chunk, [&](int64_t start, int64_t tokens) {
        float* x = (l < shape.layers ? layers[l].x : last) + start * x_row;
        if (l == 0) {
          for (int64_t t = 0; t < tokens; t++)
            std::copy_n(model->embed() + batch.ids[start + t] * shape.hidden, shape.hidden, x + t * x_row);
        } else {
          const Kept& kept = layers[l - 1];
          after_attention(*model, l - 1, tokens, kept.x + start * x_row, kept.o + start * o_row,
                          kept.x1 + start * x_row, kept.gate_up ? kept.gate_up + start * gate_up_row : nullptr, x);
        }
        if (l < shape.layers)
          before_attention(*model, l, tokens, batch.positions.data() + start, x, layers[l].qkv + start * qkv_row);
        else
          kernels().rms_norm(tokens, shape.hidden, shape.eps, x, x_row, model->norm(), hidden + start * shape.hidden,
                             shape.hidden);
      });
      if (l < shape.layers) attention(layers[l], chunk);
    }
  }
}

void Pass::attention(const Kept& kept, const Chunk& chunk) const {
  const Shape& shape = model->shape;
  const int64_t qkv_row = stride(shape.qkv()), o_row = stride(shape.queries()), group = shape.heads / shape.kv_heads;
  tasks(chunk.rows * shape.kv_heads, [&](int64_t task) {
    const int64_t row = chunk.row + task / shape.kv_heads, head = task % shape.kv_heads;
    const int64_t start = starts(row), tokens = starts(row + 1) - start;
    const float* qkv = kept.qkv + start * qkv_row;
    Attention a = heads_of(shape, qkv, tokens, head);
    float* keys = scratch(8, parts(tokens, kernels().panel) * kernels().panel * shape.head_dim);
    pack_keys(tokens, shape.head_dim, qkv + shape.queries() + head * shape.head_dim, qkv_row, keys);
    a.key_panels = keys;
    attend(a, kept.o + start * o_row + head * group * shape.head_dim, o_row,
           kept.lse + start * shape.heads + head * group, shape.heads);
  });
}

std::vector<at::Tensor> Pass::gradients(const at::Tensor& d_hidden) const {
  TORCH_CHECK(weights == model->fingerprint(), "the weights changed between forward and backward");
  const Kernels& kernel = kernels();
  const Shape& shape = model->shape;
  const int64_t x_row = stride(shape.hidden), qkv_row = stride(shape.qkv()), o_row = stride(shape.queries());
  const int64_t gate_up_row = stride(2 * shape.inner), inner_row = stride(shape.inner);
  const int64_t group = shape.heads / shape.kv_heads, hidden = shape.hidden;

  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : model->parameters) all.push_back(at::empty_like(parameter));
  const auto gradient = [&](size_t place) { return all[place].data_ptr<float>(); };

  int64_t most = 0, most_blocks = 0;
  for (const Chunk& chunk : chunks) {
    most = std::max(most, chunk.tokens);
    most_blocks = std::max(most_blocks, parts(chunk.tokens, BLOCK));
  }
  const int64_t tokens_all = batch.starts.back();
  // d x of the whole batch; the rest for one chunk.
  const Floats memory = pooled(tokens_all * x_row + most * (4 * x_row + o_row + qkv_row + gate_up_row + inner_row) +
                               2 * most_blocks * x_row + x_row);
  float* at = memory.get();
  const auto take = [&](int64_t count) { return std::exchange(at, at + count); };
  float* dx = take(tokens_all * x_row);
  float* d_x1 = take(most * x_row);
  float* d_before = take(most * x_row);
  float* h = take(most * x_row);
  float* h1 = take(most * x_row);
  float* d_o = take(most * o_row);
  float* d_qkv = take(most * qkv_row);
  float* d_gate_up = take(most * gate_up_row);
  float* inner = take(most * inner_row);
  // The gradients of the norms' weights are summed per block, then block after block, whatever thread did which.
  float* d_norm = take(most_blocks * x_row);
  float* d_norm1 = take(most_blocks * x_row);
  float* zero = take(x_row);
  std::fill_n(zero, x_row, 0.0f);
  const auto sum_blocks = [&](const float* partial, int64_t count, float* out, bool first) {
    if (first) std::fill_n(out, hidden, 0.0f);
    for (int64_t b = 0; b < count; b++) kernel.add(hidden, partial + b * x_row, out);
  };

  const at::Tensor given = d_hidden.contiguous();
  const float* d_given = given.const_data_ptr<float>();
  for (const Chunk& chunk : chunks) {
    blocks(chunk, [&](int64_t start, int64_t tokens) {
      float* partial = d_norm + (start - chunk.start) / BLOCK * x_row;
      std::fill_n(partial, x_row, 0.0f);
      kernel.rms_norm_backward(tokens, hidden, shape.eps, last + start * x_row, x_row, model->norm(),
                               d_given + start * hidden, hidden, zero, 0, dx + start * x_row, x_row, partial);
    });
    sum_blocks(d_norm, parts(chunk.tokens, BLOCK), gradient(model->norm_place()), chunk.row == 0);
  }

  for (int64_t l = shape.layers - 1; l >= 0; l--) {
    const Kept& kept = layers[l];
    std::vector<const float*> qkv_rows, o_rows, gate_up_rows, down_rows;
    add_rows(qkv_rows, model->weight(l, Q), shape.queries(), hidden);
    add_rows(qkv_rows, model->weight(l, K), shape.keys(), hidden);
    add_rows(qkv_rows, model->weight(l, V), shape.keys(), hidden);
    add_rows(o_rows, model->weight(l, O), hidden, shape.queries());
    add_rows(gate_up_rows, model->weight(l, GATE), shape.inner, hidden);
    add_rows(gate_up_rows, model->weight(l, UP), shape.inner, hidden);
    add_rows(down_rows, model->weight(l, DOWN), hidden, shape.inner);
    const auto of = [&](Slot slot) { return gradient(model->place(l, slot)); };

    for (const Chunk& chunk : chunks) {
      const bool first = chunk.row == 0;
      // The feed-forward block and the output projection.
      blocks(chunk, [&](int64_t start, int64_t tokens) {
        const int64_t own = start - chunk.start;
        const float* x1 = kept.x1 + start * x_row;
        multiply_rows(tokens, shape.inner, hidden, dx + start * x_row, x_row, down_rows.data(), inner + own * inner_row,
                      inner_row);
        for (int64_t t = 0; t < tokens; t++) {
          const float* gate = kept.gate_up + (start + t) * gate_up_row;
          float* d_gate = d_gate_up + (own + t) * gate_up_row;
          kernel.swiglu_backward(shape.inner, gate, gate + shape.inner, inner + (own + t) * inner_row, d_gate,
                                 d_gate + shape.inner);
        }
        kernel.rms_norm(tokens, hidden, shape.eps, x1, x_row, model->weight(l, POST_NORM), h1 + own * x_row, x_row);
        float* d_h = scratch(1, tokens * x_row);
        multiply_rows(tokens, hidden, 2 * shape.inner, d_gate_up + own * gate_up_row, gate_up_row, gate_up_rows.data(),
                      d_h, x_row);
        float* partial = d_norm1 + own / BLOCK * x_row;
        std::fill_n(partial, x_row, 0.0f);
        kernel.rms_norm_backward(tokens, hidden, shape.eps, x1, x_row, model->weight(l, POST_NORM), d_h, x_row,
                                 dx + start * x_row, x_row, d_x1 + own * x_row, x_row, partial);
        multiply_rows(tokens, shape.queries(), hidden, d_x1 + own * x_row, x_row, o_rows.data(), d_o + own * o_row,
                      o_row);
      });
      tasks(chunk.rows * shape.kv_heads, [&](int64_t task) {
        const int64_t row = chunk.row + task / shape.kv_heads, head = task % shape.kv_heads;
        const int64_t start = starts(row), tokens = starts(row + 1) - start, own = start - chunk.start;
        const int64_t q = head * group * shape.head_dim, k = shape.queries() + head * shape.head_dim;
        const float* qkv = kept.qkv + start * qkv_row;
        Attention a = heads_of(shape, qkv, tokens, head);
        float* keys = scratch(8, parts(tokens, kernel.panel) * kernel.panel * shape.head_dim);
        pack_keys(tokens, shape.head_dim, qkv + k, qkv_row, keys);
        a.key_panels = keys;
        float* d = d_qkv + own * qkv_row;
        attend_backward(a, qkv + k, qkv_row, kept.o + start * o_row + q, d_o + own * o_row + q, o_row,
                        kept.lse + start * shape.heads + head * group, shape.heads, d + q, d + k, d + k + shape.keys(),
                        qkv_row);
      });
      blocks(chunk, [&](int64_t start, int64_t tokens) {
        const int64_t own = start - chunk.start;
        const float* x = kept.x + start * x_row;
        float* d = d_qkv + own * qkv_row;
        for (int64_t t = 0; t < tokens; t++)
          kernel.rotate(shape.heads + shape.kv_heads, shape.head_dim, d + t * qkv_row,
                        model->cosine(batch.positions[start + t]), model->sine(batch.positions[start + t]), -1.0f);
        kernel.rms_norm(tokens, hidden, shape.eps, x, x_row, model->weight(l, INPUT_NORM), h + own * x_row, x_row);
        float* d_h = scratch(1, tokens * x_row);
        multiply_rows(tokens, hidden, shape.qkv(), d, qkv_row, qkv_rows.data(), d_h, x_row);
        float* partial = d_norm + own / BLOCK * x_row;
        std::fill_n(partial, x_row, 0.0f);
        // dx of the layer's output is still needed for the weights.
        std::copy_n(dx + start * x_row, tokens * x_row, d_before + own * x_row);
        kernel.rms_norm_backward(tokens, hidden, shape.eps, x, x_row, model->weight(l, INPUT_NORM), d_h, x_row,
                                 d_x1 + own * x_row, x_row, dx + start * x_row, x_row, partial);
      });
      const int64_t inner_size = shape.inner, queries = shape.queries(), keys = shape.keys();
      accumulate(chunk.tokens,
                 {
                     {hidden, inner_size, d_before, x_row, inner, inner_row, of(DOWN)},
                     {inner_size, hidden, d_gate_up, gate_up_row, h1, x_row, of(GATE)},
                     {inner_size, hidden, d_gate_up + inner_size, gate_up_row, h1, x_row, of(UP)},
                     {hidden, queries, d_x1, x_row, kept.o + chunk.start * o_row, o_row, of(O)},
                     {queries, hidden, d_qkv, qkv_row, h, x_row, of(Q)},
                     {keys, hidden, d_qkv + queries, qkv_row, h, x_row, of(K)},
                     {keys, hidden, d_qkv + queries + keys, qkv_row, h, x_row, of(V)},
                 },
                 first);
      for (auto [slot, column, count] : {std::make_tuple(Q_BIAS, int64_t{0}, queries), std::make_tuple(K_BIAS, queries, keys),
                                         std::make_tuple(V_BIAS, queries + keys, keys)}) {
        if (first) std::fill_n(of(slot), count, 0.0f);
        for (int64_t t = 0; t < chunk.tokens; t++) kernel.add(count, d_qkv + t * qkv_row + column, of(slot));
      }
      const int64_t count = parts(chunk.tokens, BLOCK);
      sum_blocks(d_norm, count, of(INPUT_NORM), first);
      sum_blocks(d_norm1, count, of(POST_NORM), first);
    }
  }

  // Each thread has its own columns of the embedding, so that a token's sum has the same order on every run.
  float* d_embed = gradient(0);
  constexpr int64_t columns = 64;
  tasks(parts(hidden, columns), [&](int64_t part) {
    const int64_t column = part * columns, width = std::min(columns, hidden - column);
    for (int64_t id = 0; id < shape.vocab; id++) std::fill_n(d_embed + id * hidden + column, width, 0.0f);
    for (int64_t t = 0; t < tokens_all; t++)
      kernel.add(width, dx + t * x_row + column, d_embed + batch.ids[t] * hidden + column);
  });
  // The head of an untied model is not used here.
  for (size_t place = model->norm_place() + 1; place < all.size(); place++) all[place] = at::Tensor();
  return all;
}

}  // namespace r1
