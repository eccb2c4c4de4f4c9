// Forward and backward of the whole network over packed rows, as one autograd function.
//
// Shared prefixes are computed once (prefix.h). Rows are otherwise independent, so they are
// processed in chunks that fit in the last-level cache; within a chunk, blocks of tokens and heads
// of rows are distributed over the threads. A layer keeps its activations for backward (2 E + qkv +
// H D + 2 I + H floats per token, and queries and keys before their norms), or only its input (E
// floats) and recomputes the rest; norms and the activation function are recomputed in both cases.
#include "learn.h"

#include <numeric>

namespace r1 {

thread_local LayerHook layer_hook{};

// Tokens of a chunk: the activations of a layer fit in the last-level cache.
int64_t chunk_tokens() { return 768 * at::get_num_threads(); }

Pass::Pass(std::shared_ptr<Model> owner, const Batch& batch, Keep what)
    : model(std::move(owner)),
      keep(what),
      forest(batch, chunk_tokens(), model->shape.kv_heads, at::get_num_threads()) {
  check(batch);
  const Shape& shape = model->shape;
  const int64_t tokens = forest.tokens();
  for (int64_t tree = 0; tree + 1 < static_cast<int64_t>(forest.trees.size()); tree++) {
    const auto start = [&](int64_t t) {
      const int64_t segment = forest.trees[t];
      return segment < static_cast<int64_t>(forest.segments.size()) ? forest.segments[segment].start : tokens;
    };
    if (chunks.empty() || chunks.back().tokens >= chunk_tokens()) chunks.push_back({tree, 0, start(tree), 0});
    chunks.back().trees++;
    chunks.back().tokens += start(tree + 1) - start(tree);
  }
  const std::vector<int64_t> widths = {stride(shape.hidden),    stride(shape.qkv()),  stride(shape.queries()),
                                       shape.heads,             stride(shape.hidden), stride(2 * shape.inner),
                                       model->has(Q_NORM) ? stride(shape.queries() + shape.keys()) : 0};
  const int64_t rest = std::accumulate(widths.begin() + 1, widths.end() - (keep == Keep::Nothing ? 2 : 0), int64_t{0});
  const int64_t inputs = keep == Keep::Nothing ? 1 : shape.layers, rests = keep == Keep::All ? shape.layers : 1;
  // Each part of a token's row is aligned to vectors.
  memory = pooled((inputs * widths[0] + rests * rest + stride(shape.hidden)) * (tokens + 16) + 16);
  float* at = memory.get();
  const auto take = [&](int64_t width) {
    float* start = at;
    at += (width * tokens + 15) / 16 * 16;
    return start;
  };
  last = take(widths[0]);
  for (int64_t l = 0; l < shape.layers; l++) {
    Kept kept{};
    if (l > 0) kept = layers.front();
    if (l < inputs) kept.x = take(widths[0]);
    if (l < rests) {
      kept.qkv = take(widths[1]);
      kept.o = take(widths[2]);
      kept.lse = take(widths[3]);
      kept.x1 = take(widths[4]);
      if (keep != Keep::Nothing) kept.gate_up = take(widths[5]);
      if (keep != Keep::Nothing && widths[6]) kept.raw = take(widths[6]);
    }
    layers.push_back(kept);
  }
}

void Pass::check(const Batch& batch) const {
  int64_t furthest = 0;
  for (const int64_t id : batch.ids)
    TORCH_CHECK(id >= 0 && id < model->shape.vocab, "token id ", id, " is outside the vocabulary of ", model->shape.vocab);
  for (const int64_t position : batch.positions) {
    TORCH_CHECK(position >= 0 && position < (1 << 24), "position ", position, " is out of range");
    furthest = std::max(furthest, position);
  }
  model->reserve_positions(furthest + 1);
}

// Calls f(first token of the batch, tokens) for blocks of a chunk.
template <class F>
void Pass::blocks(const Chunk& chunk, F f) {
  tasks(parts(chunk.tokens, BLOCK), [&](int64_t block) {
    const int64_t start = block * BLOCK;
    f(chunk.start + start, std::min(BLOCK, chunk.tokens - start));
  });
}

namespace {

// Buffers of one thread: keys and values of one head from the start of the rows to the end of the
// current segment. Segments are in depth-first order, so the prefix of a segment is already in
// place.
struct Path {
  int64_t d, width;
  float *keys, *values;  // panels, rows

  Path(const Forest& forest, int64_t first, int64_t end, int64_t head_dim) : d(head_dim) {
    int64_t longest = 0;
    for (int64_t s = first; s < end; s++) longest = std::max(longest, forest.segments[s].path + forest.segments[s].length);
    width = parts(longest, kernels().panel) * kernels().panel;
    keys = scratch(8, width * d);
    values = scratch(9, width * d);
  }

  void add(const Segment& s, const float* k, const float* v, int64_t row) {
    pack_keys(s.path, s.length, d, k, row, keys);
    for (int64_t t = 0; t < s.length; t++) std::copy_n(v + t * row, d, values + (s.path + t) * d);
  }
};

}  // namespace

void Pass::run(float* hidden) {
  model->refresh();
  weights = model->weights_version();
  const Shape& shape = model->shape;
  const int64_t x_row = stride(shape.hidden), o_row = stride(shape.queries()), gate_up_row = stride(2 * shape.inner);
  for (const Chunk& chunk : chunks) {
    for (int64_t l = 0; l <= shape.layers; l++) {
      blocks(chunk, [&](int64_t start, int64_t tokens) {
        float* x = (l < shape.layers ? layers[l].x : last) + start * x_row;
        if (l == 0) {
          for (int64_t t = 0; t < tokens; t++)
            model->embed(forest.ids[start + t], x + t * x_row);
        } else {
          const Kept& kept = layers[l - 1];
          after_attention(*model, l - 1, tokens, kept.x + start * x_row, kept.o + start * o_row,
                          kept.x1 + start * x_row, kept.gate_up ? kept.gate_up + start * gate_up_row : nullptr, x);
        }
        if (l < shape.layers)
          queries_and_keys(l, start, tokens);
        else
          for (int64_t t = start; t < start + tokens; t++, x += x_row) {
            const int64_t* member = forest.members.data() + forest.first[t];
            const int64_t* end = forest.members.data() + forest.first[t + 1];
            float* out = hidden + *member * shape.hidden;
            kernels().rms_norm(1, shape.hidden, shape.eps, x, x_row, model->norm(), out, shape.hidden);
            for (member++; member != end; member++) std::copy_n(out, shape.hidden, hidden + *member * shape.hidden);
          }
      });
      if (l < shape.layers) attention(layers[l], chunk);
    }
  }
}

// Tokens of the batch up to the attention of a layer.
void Pass::queries_and_keys(int64_t layer, int64_t start, int64_t tokens) const {
  const Shape& shape = model->shape;
  const Kept& kept = layers[layer];
  before_attention(*model, layer, tokens, forest.positions.data() + start, kept.x + start * stride(shape.hidden),
                   kept.qkv + start * stride(shape.qkv()),
                   kept.raw ? kept.raw + start * stride(shape.queries() + shape.keys()) : nullptr);
}

// Recomputes the activations of a layer from its input, after later layers have overwritten them.
void Pass::again(int64_t layer) const {
  const Shape& shape = model->shape;
  const int64_t x_row = stride(shape.hidden), o_row = stride(shape.queries()), gate_up_row = stride(2 * shape.inner);
  const Kept& kept = layers[layer];
  for (const Chunk& chunk : chunks) {
    blocks(chunk, [&](int64_t start, int64_t tokens) { queries_and_keys(layer, start, tokens); });
    attention(kept, chunk);
    blocks(chunk, [&](int64_t start, int64_t tokens) {
      after_attention(*model, layer, tokens, kept.x + start * x_row, kept.o + start * o_row, kept.x1 + start * x_row,
                      kept.gate_up + start * gate_up_row, nullptr);
    });
  }
}

void Pass::attention(const Kept& kept, const Chunk& chunk) const {
  const Shape& shape = model->shape;
  const int64_t qkv_row = stride(shape.qkv()), o_row = stride(shape.queries()), group = shape.heads / shape.kv_heads;
  const int64_t d = shape.head_dim;
  tasks(chunk.trees * shape.kv_heads, [&](int64_t task) {
    const int64_t tree = chunk.tree + task / shape.kv_heads, head = task % shape.kv_heads;
    Path path(forest, forest.trees[tree], forest.trees[tree + 1], d);
    for (int64_t index = forest.trees[tree]; index < forest.trees[tree + 1]; index++) {
      const Segment& s = forest.segments[index];
      const float* qkv = kept.qkv + s.start * qkv_row;
      const float* k = qkv + shape.queries() + head * d;
      path.add(s, k, k + shape.keys(), qkv_row);
      attend({d, group, s.length, s.path, qkv + head * group * d, qkv_row, path.keys, path.values, d},
             kept.o + s.start * o_row + head * group * d, o_row, kept.lse + s.start * shape.heads + head * group,
             shape.heads);
    }
  });
}

void Pass::attention_backward(const Kept& kept, const Chunk& chunk, const float* d_o, float* d_qkv) const {
  const Shape& shape = model->shape;
  const int64_t qkv_row = stride(shape.qkv()), o_row = stride(shape.queries()), group = shape.heads / shape.kv_heads;
  const int64_t d = shape.head_dim;
  tasks(chunk.trees * shape.kv_heads, [&](int64_t task) {
    const int64_t tree = chunk.tree + task / shape.kv_heads, head = task % shape.kv_heads;
    const int64_t q = head * group * d, k = shape.queries() + head * d;
    Path path(forest, forest.trees[tree], forest.trees[tree + 1], d);
    float* value_panels = scratch(5, path.width * d);
    float* key_rows = scratch(10, path.width * d);
    // Gradients of the keys and values on the path; later segments accumulate into earlier ones.
    float* dk = scratch(11, 2 * path.width * d);
    float* dv = dk + path.width * d;
    std::vector<int64_t> open;
    const auto close = [&](int64_t until) {
      for (; !open.empty() && forest.segments[open.back()].path >= until; open.pop_back()) {
        const Segment& s = forest.segments[open.back()];
        for (int64_t t = 0; t < s.length; t++) {
          float* out = d_qkv + (s.start - chunk.start + t) * qkv_row + k;
          std::copy_n(dk + (s.path + t) * d, d, out);
          std::copy_n(dv + (s.path + t) * d, d, out + shape.keys());
        }
      }
    };
    for (int64_t index = forest.trees[tree]; index < forest.trees[tree + 1]; index++) {
      const Segment& s = forest.segments[index];
      close(s.path);
      open.push_back(index);
      const float* qkv = kept.qkv + s.start * qkv_row;
      path.add(s, qkv + k, qkv + k + shape.keys(), qkv_row);
      pack_keys(s.path, s.length, d, qkv + k + shape.keys(), qkv_row, value_panels);
      for (int64_t t = 0; t < s.length; t++) std::copy_n(qkv + t * qkv_row + k, d, key_rows + (s.path + t) * d);
      std::fill_n(dk + s.path * d, s.length * d, 0.0f);
      std::fill_n(dv + s.path * d, s.length * d, 0.0f);
      attend_backward({d, group, s.length, s.path, qkv + q, qkv_row, path.keys, path.values, d}, key_rows, value_panels,
                      kept.o + s.start * o_row + q, d_o + (s.start - chunk.start) * o_row + q, o_row,
                      kept.lse + s.start * shape.heads + head * group, shape.heads,
                      d_qkv + (s.start - chunk.start) * qkv_row + q, qkv_row, dk, dv);
    }
    close(0);
  });
}

// Backward of the norms of query and key heads: d [tokens, stride(qkv)] in place, weight gradients
// in q_norm, k_norm.
void Pass::heads_backward(const Kept& kept, int64_t layer, int64_t start, int64_t tokens, float* d, float* q_norm,
                          float* k_norm) const {
  const Kernels& kernel = kernels();
  const Shape& shape = model->shape;
  const int64_t size = shape.head_dim, qkv_row = stride(shape.qkv()), raw_row = stride(shape.queries() + shape.keys());
  float* zero = scratch(2, size);
  std::fill_n(zero, size, 0.0f);
  std::fill_n(q_norm, size, 0.0f);
  std::fill_n(k_norm, size, 0.0f);
  for (int64_t t = 0; t < tokens; t++) {
    const float* q = kept.raw + (start + t) * raw_row;
    float* dq = d + t * qkv_row;
    kernel.rms_norm_backward(shape.heads, size, shape.eps, q, size, model->weight(layer, Q_NORM), dq, size, zero, 0, dq,
                             size, q_norm);
    const float* k = q + shape.queries();
    float* dk = dq + shape.queries();
    kernel.rms_norm_backward(shape.kv_heads, size, shape.eps, k, size, model->weight(layer, K_NORM), dk, size, zero, 0,
                             dk, size, k_norm);
  }
}

// Gives the gradients of a layer to its parameters before the rest of backward, and calls the hook.
void Pass::finish_layer(int64_t layer, std::vector<at::Tensor>& all) const {
  for (size_t place = model->place(layer, INPUT_NORM); place < model->place(layer + 1, INPUT_NORM); place++) {
    at::Tensor gradient = std::exchange(all[place], at::Tensor());
    const at::Tensor& parameter = model->parameters[place];
    if (!gradient.defined() || !parameter.requires_grad()) continue;
    if (parameter.grad().defined())
      parameter.mutable_grad().add_(gradient);
    else
      parameter.mutable_grad() = gradient;
  }
  TORCH_CHECK(layer_hook.done(layer_hook.context, layer), "the backward pass was stopped after layer ", layer);
}

std::vector<at::Tensor> Pass::gradients(const at::Tensor& d_hidden) const {
  TORCH_CHECK(weights == model->weights_version(), "the weights changed between forward and backward");
  const Kernels& kernel = kernels();
  const Shape& shape = model->shape;
  const int64_t x_row = stride(shape.hidden), qkv_row = stride(shape.qkv()), o_row = stride(shape.queries());
  const int64_t gate_up_row = stride(2 * shape.inner), inner_row = stride(shape.inner);
  const int64_t hidden = shape.hidden, d_head = shape.head_dim, head_row = stride(d_head);

  std::vector<at::Tensor> all;
  // The head of an untied model has no gradient here.
  for (size_t place = 0; place < model->parameters.size(); place++) {
    const at::Tensor& parameter = model->parameters[place];
    const bool wanted = parameter.defined() && (place == 0 || place == model->norm_place());
    all.push_back(wanted ? pooled_tensor(parameter.sizes()) : at::Tensor());
  }
  const auto gradient = [&](size_t place) { return all[place].data_ptr<float>(); };

  int64_t most = 0, most_blocks = 0;
  for (const Chunk& chunk : chunks) {
    most = std::max(most, chunk.tokens);
    most_blocks = std::max(most_blocks, parts(chunk.tokens, BLOCK));
  }
  const int64_t tokens_all = forest.tokens();
  // dx of the whole batch; other buffers are for one chunk.
  const Floats memory = pooled(tokens_all * x_row + most * (4 * x_row + o_row + qkv_row + gate_up_row + inner_row) +
                               2 * most_blocks * x_row + 2 * most_blocks * head_row + x_row);
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
  // Gradients of the norm weights are summed per block, then in block order, independent of the
  // threads.
  float* d_norm = take(most_blocks * x_row);
  float* d_norm1 = take(most_blocks * x_row);
  float* d_q_norm = take(most_blocks * head_row);
  float* d_k_norm = take(most_blocks * head_row);
  float* zero = take(x_row);
  std::fill_n(zero, x_row, 0.0f);
  const auto sum_blocks = [&](const float* partial, int64_t row, int64_t count, int64_t width, float* out, bool first) {
    if (first) std::fill_n(out, width, 0.0f);
    for (int64_t b = 0; b < count; b++) kernel.add(width, partial + b * row, out);
  };

  const at::Tensor given = d_hidden.contiguous();
  const float* d_given = given.const_data_ptr<float>();
  for (const Chunk& chunk : chunks) {
    blocks(chunk, [&](int64_t start, int64_t tokens) {
      float* partial = d_norm + (start - chunk.start) / BLOCK * x_row;
      std::fill_n(partial, x_row, 0.0f);
      for (int64_t t = start; t < start + tokens; t++) {
        float* d = dx + t * x_row;
        std::fill_n(d, hidden, 0.0f);
        for (int64_t member = forest.first[t]; member < forest.first[t + 1]; member++)
          kernel.add(hidden, d_given + forest.members[member] * hidden, d);
      }
      kernel.rms_norm_backward(tokens, hidden, shape.eps, last + start * x_row, x_row, model->norm(),
                               dx + start * x_row, x_row, zero, 0, dx + start * x_row, x_row, partial);
    });
    sum_blocks(d_norm, x_row, parts(chunk.tokens, BLOCK), hidden, gradient(model->norm_place()), chunk.tree == 0);
  }

  // The weights of a layer, for products with gradients.
  Panels qkv_rows, o_rows, gate_up_rows, down_rows;
  for (int64_t l = shape.layers - 1; l >= 0; l--) {
    if (keep == Keep::Inputs && l + 1 < shape.layers) again(l);
    for (size_t place = model->place(l, INPUT_NORM); place < model->place(l + 1, INPUT_NORM); place++)
      if (model->parameters[place].defined()) all[place] = pooled_tensor(model->parameters[place].sizes());
    const Kept& kept = layers[l];
    qkv_rows.pack(hidden, {{model->weight(l, Q), shape.queries()}, {model->weight(l, K), shape.keys()},
                           {model->weight(l, V), shape.keys()}});
    o_rows.pack(shape.queries(), {{model->weight(l, O), hidden}});
    gate_up_rows.pack(hidden, {{model->weight(l, GATE), shape.inner}, {model->weight(l, UP), shape.inner}});
    down_rows.pack(shape.inner, {{model->weight(l, DOWN), hidden}});
    const auto of = [&](Slot slot) { return gradient(model->place(l, slot)); };

    for (const Chunk& chunk : chunks) {
      const bool first = chunk.tree == 0;
      // The feed-forward block and the output projection.
      blocks(chunk, [&](int64_t start, int64_t tokens) {
        const int64_t own = start - chunk.start;
        const float* x1 = kept.x1 + start * x_row;
        multiply(tokens, dx + start * x_row, x_row, down_rows, inner + own * inner_row, inner_row, nullptr, 0);
        for (int64_t t = 0; t < tokens; t++) {
          const float* gate = kept.gate_up + (start + t) * gate_up_row;
          float* d_gate = d_gate_up + (own + t) * gate_up_row;
          kernel.swiglu_backward(shape.inner, gate, gate + shape.inner, inner + (own + t) * inner_row, d_gate,
                                 d_gate + shape.inner);
        }
        kernel.rms_norm(tokens, hidden, shape.eps, x1, x_row, model->weight(l, POST_NORM), h1 + own * x_row, x_row);
        float* d_h = scratch(1, tokens * x_row);
        multiply(tokens, d_gate_up + own * gate_up_row, gate_up_row, gate_up_rows, d_h, x_row, nullptr, 0);
        float* partial = d_norm1 + own / BLOCK * x_row;
        std::fill_n(partial, x_row, 0.0f);
        kernel.rms_norm_backward(tokens, hidden, shape.eps, x1, x_row, model->weight(l, POST_NORM), d_h, x_row,
                                 dx + start * x_row, x_row, d_x1 + own * x_row, x_row, partial);
        multiply(tokens, d_x1 + own * x_row, x_row, o_rows, d_o + own * o_row, o_row, nullptr, 0);
      });
      attention_backward(kept, chunk, d_o, d_qkv);
      blocks(chunk, [&](int64_t start, int64_t tokens) {
        const int64_t own = start - chunk.start;
        const float* x = kept.x + start * x_row;
        float* d = d_qkv + own * qkv_row;
        for (int64_t t = 0; t < tokens; t++)
          kernel.rotate(shape.heads + shape.kv_heads, shape.head_dim, d + t * qkv_row,
                        model->cosine(forest.positions[start + t]), model->sine(forest.positions[start + t]), -1.0f);
        if (kept.raw) heads_backward(kept, l, start, tokens, d, d_q_norm + own / BLOCK * head_row,
                                     d_k_norm + own / BLOCK * head_row);
        kernel.rms_norm(tokens, hidden, shape.eps, x, x_row, model->weight(l, INPUT_NORM), h + own * x_row, x_row);
        float* d_h = scratch(1, tokens * x_row);
        multiply(tokens, d, qkv_row, qkv_rows, d_h, x_row, nullptr, 0);
        float* partial = d_norm + own / BLOCK * x_row;
        std::fill_n(partial, x_row, 0.0f);
        // dx of the layer's output is needed for the weight gradients.
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
        if (!model->has(slot)) continue;
        if (first) std::fill_n(of(slot), count, 0.0f);
        for (int64_t t = 0; t < chunk.tokens; t++) kernel.add(count, d_qkv + t * qkv_row + column, of(slot));
      }
      const int64_t count = parts(chunk.tokens, BLOCK);
      sum_blocks(d_norm, x_row, count, hidden, of(INPUT_NORM), first);
      sum_blocks(d_norm1, x_row, count, hidden, of(POST_NORM), first);
      if (kept.raw) {
        sum_blocks(d_q_norm, head_row, count, d_head, of(Q_NORM), first);
        sum_blocks(d_k_norm, head_row, count, d_head, of(K_NORM), first);
      }
    }
    if (layer_hook.done) finish_layer(l, all);
  }

  // Each thread has its own columns of the embedding, so that sums have a fixed order.
  float* d_embed = gradient(0);
  constexpr int64_t columns = 64;
  tasks(parts(hidden, columns), [&](int64_t part) {
    const int64_t column = part * columns, width = std::min(columns, hidden - column);
    for (int64_t id = 0; id < shape.vocab; id++) std::fill_n(d_embed + id * hidden + column, width, 0.0f);
    for (int64_t t = 0; t < tokens_all; t++)
      kernel.add(width, dx + t * x_row + column, d_embed + forest.ids[t] * hidden + column);
  });
  std::vector<at::Tensor> own;
  for (size_t place = 0; place < all.size(); place++)
    if (model->parameters[place].defined()) own.push_back(std::move(all[place]));
  return own;
}

}  // namespace r1
