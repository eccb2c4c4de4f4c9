// A decode step of a few tokens in bf16, which is bound by the memory bandwidth of reading the
// weights.
//
// All threads compute the layers together (thread_pool.h). Each thread computes small operations
// such as norms itself instead of waiting. Sums are bitwise equal to the sums in step.cpp.
#include <algorithm>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "thread_pool.h"
#include "step.h"

namespace r1 {

namespace {

// A product of a layer, split into pieces of several weight rows.
struct Product {
  int64_t index;  // among the products of a step
  int64_t k;
  std::array<Rows, 3> parts;
  // The first two parts are interleaved: a piece has rows of each.
  bool paired = false;

  // About 64 KiB: an imbalance of one piece costs microseconds.
  int64_t size() const { return std::max<int64_t>((int64_t{1} << 15) / k / 8 * 8, 8); }
  int64_t count() const {
    int64_t total = 0;
    for (const Rows& part : parts) total += r1::parts(part.count, size());
    return paired ? r1::parts(parts[0].count, size()) : total;
  }
  // Calls f(weight rows, count, first column in the result) for each part of piece `at`.
  template <class F>
  void piece(int64_t at, F f) const {
    int64_t column = 0;
    for (const Rows& part : parts) {
      const int64_t own = r1::parts(part.count, size()), first = at * size();
      if (at >= 0 && at < own) f(part.data + first * k, std::min(size(), part.count - first), column + first);
      column += part.count;
      if (!paired) at -= own;
    }
  }
};

constexpr int64_t OF_A_LAYER = 4;

struct Walk {
  const Step& step;
  ThreadPool& pool;
  float* inner;  // [tokens, stride(inner)]
  std::atomic<bool>& stopped;

  const Model& model = step.model;
  const Shape& shape = model.shape;
  const Kernels& kernel = kernels();
  const int64_t tokens = step.starts.back(), count = static_cast<int64_t>(step.pieces.size());
  const int64_t x_row = stride(shape.hidden), qkv_row = stride(shape.qkv()), o_row = stride(shape.queries());
  const int64_t inner_row = stride(shape.inner);

  // The product after the last layer is the head's.
  Product product(int64_t layer, Projection projection) const {
    const int64_t index = OF_A_LAYER * layer + static_cast<int64_t>(projection);
    if (layer == shape.layers) return {index, shape.hidden, {model.head_rows()}};
    const auto rows = [&](Slot slot) { return model.rows(layer, slot); };
    switch (projection) {
      case Projection::QKV: return {index, shape.hidden, {rows(Q), rows(K), rows(V)}};
      case Projection::OUT: return {index, shape.queries(), {rows(O)}};
      case Projection::GATE_UP: return {index, shape.hidden, {rows(GATE), rows(UP)}, true};
      default: return {index, shape.inner, {rows(DOWN)}};
    }
  }

  // Barrier; `soon` is the next product, to prefetch.
  void meet(int64_t thread, const Product& soon) const {
    Next next;
    size_t place = 0;
    soon.piece(pool.begin(thread, soon.count()), [&](const uint16_t* weights, int64_t rows, int64_t) {
      next[place++] = {reinterpret_cast<const char*>(weights), rows * soon.k * static_cast<int64_t>(sizeof *weights)};
    });
    pool.meet(next);
  }

  // Activations packed for the kernels, in this thread's memory.
  const float* packed(int64_t m, int64_t k, const float* a, int64_t a_row, int64_t row) const {
    float* out = scratch(0, m * row);
    kernel.pack_inputs(m, k, a, a_row, out, row);
    return out;
  }

  // This thread's share of c[m, n] = init + a[m, k] w^T.
  void multiply(int64_t thread, const Product& product, int64_t m, const float* a, int64_t a_row, float* c, int64_t c_row,
                const float* init, int64_t init_row) const {
    const int64_t k = product.k, row = stride((k + 31) / 32 * 32);
    const float* x = packed(m, k, a, a_row, row);
    pool.share(product.index, thread, product.count(), [&](int64_t piece) {
      product.piece(piece, [&](const uint16_t* weights, int64_t rows, int64_t at) {
        kernel.dots(m, rows, k, weights, x, row, c + at, c_row, init ? init + at : nullptr, init_row);
      });
    });
  }

  // Norms and rotary embeddings of a key head and its query heads, then attention.
  void attention(int64_t layer, int64_t index, int64_t head) const {
    const int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads;
    for (int64_t t = step.starts[index]; t < step.starts[index + 1]; t++) {
      float* q = step.qkv + t * qkv_row + head * group * d;
      float* k = step.qkv + t * qkv_row + shape.queries() + head * d;
      if (model.has(Q_NORM)) {
        kernel.rms_norm(group, d, shape.eps, q, d, model.weight(layer, Q_NORM), q, d);
        kernel.rms_norm(1, d, shape.eps, k, d, model.weight(layer, K_NORM), k, d);
      }
      const float *cosine = model.cosine(step.positions[t]), *sine = model.sine(step.positions[t]);
      kernel.rotate(group, d, q, cosine, sine, 1.0f);
      kernel.rotate(1, d, k, cosine, sine, 1.0f);
    }
    step.attend_head(layer, index, head);
  }

  // This thread's share of the gated activations, from the normed x.
  void gate_up(int64_t thread, const Product& product, const float* h) const {
    const int64_t k = product.k, row = stride((k + 31) / 32 * 32);
    const float* x = packed(tokens, k, h, x_row, row);
    pool.share(product.index, thread, product.count(), [&](int64_t piece) {
      Rows both[2];
      int64_t part = 0;
      product.piece(piece, [&](const uint16_t* weights, int64_t rows, int64_t) { both[part++] = {weights, rows}; });
      gated(tokens, k, both[0], both[1], x, row, inner + piece * product.size(), inner_row);
    });
  }

  void run(int64_t thread) const {
    float* h = scratch(1, std::max(tokens, count) * x_row);
    const auto norm = [&](int64_t layer, Slot slot) {
      kernel.rms_norm(tokens, shape.hidden, shape.eps, step.x, x_row, model.weight(layer, slot), h, x_row);
    };
    for (int64_t l = 0; l < shape.layers; l++) {
      if (stopped.load(std::memory_order_relaxed)) return;
      const std::vector<float>& bias = model.panels[l].qkv_bias;
      norm(l, INPUT_NORM);
      multiply(thread, product(l, Projection::QKV), tokens, h, x_row, step.qkv, qkv_row,
               bias.empty() ? nullptr : bias.data(), 0);
      meet(thread, product(l, Projection::OUT));
      // Work counters of attention follow the counters of all products.
      pool.share(OF_A_LAYER * (shape.layers + 1) + l, thread, count * shape.kv_heads,
                 [&](int64_t task) { attention(l, task / shape.kv_heads, task % shape.kv_heads); });
      meet(thread, product(l, Projection::OUT));
      multiply(thread, product(l, Projection::OUT), tokens, step.o, o_row, step.x, x_row, step.x, x_row);
      meet(thread, product(l, Projection::GATE_UP));
      norm(l, POST_NORM);
      gate_up(thread, product(l, Projection::GATE_UP), h);
      meet(thread, product(l, Projection::DOWN));
      multiply(thread, product(l, Projection::DOWN), tokens, inner, inner_row, step.x, x_row, step.x, x_row);
      if (thread == 0 && step.stop()) stopped.store(true, std::memory_order_relaxed);
      meet(thread, product(l + 1, Projection::QKV));
    }
    if (stopped.load(std::memory_order_relaxed)) return;
    for (int64_t i = 0; i < count; i++)
      kernel.rms_norm(1, shape.hidden, shape.eps, step.x + (step.starts[i + 1] - 1) * x_row, x_row, model.norm(),
                      h + i * x_row, x_row);
    multiply(thread, product(shape.layers, Projection::QKV), count, h, x_row, step.logits, shape.vocab, nullptr, 0);
  }
};

}  // namespace

bool Step::together() const {
  if (stop()) return false;
  embed(0, starts.back());
  const Shape& shape = model.shape;
  const Floats inner = pooled(starts.back() * stride(shape.inner));
  std::atomic<bool> stopped{false};
  const auto walk = [&](int64_t thread, ThreadPool& pool) { Walk{*this, pool, inner.get(), stopped}.run(thread); };
  const int64_t products = OF_A_LAYER * (shape.layers + 1) + shape.layers;
#if defined(_OPENMP)
  std::unique_ptr<ThreadPool> pool;
#pragma omp parallel num_threads(at::get_num_threads())
  {
    // The actual number of threads, which wait for each other.
#pragma omp single
    pool = std::make_unique<ThreadPool>(omp_get_num_threads(), products);
    walk(omp_get_thread_num(), *pool);
  }
#else
  ThreadPool pool(1, products);
  walk(0, pool);
#endif
  return !stopped.load();
}

}  // namespace r1
