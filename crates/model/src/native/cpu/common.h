// Shared parts of the CPU kernels: matrix products, and a model with its weights.
#pragma once
#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "../memory.h"
#include "kernels.h"

namespace r1 {

// Tokens per block of a thread: enough to reuse weights, few enough for the cache.
constexpr int64_t BLOCK = 96;

// Polled between the layers; true cancels the computation.
struct Stop {
  bool (*poll)(const void* context) = nullptr;
  const void* context = nullptr;
  bool operator()() const { return poll && poll(context); }
};

// A matrix [k, n] packed in panels.
struct Panels {
  int64_t k = 0, n = 0;
  Floats data;
  int64_t count() const { return parts(n, kernels().panel); }
  const float* panel(int64_t p) const { return data.get() + p * k * kernels().panel; }
  // Columns are the given rows of k floats (a weight [n, k] of a linear layer).
  void pack_transposed(int64_t k, const std::vector<const float*>& rows);
  // Rows are the rows of the matrices (first float, number of rows), with n floats each.
  void pack(int64_t n, const std::vector<std::pair<const float*, int64_t>>& matrices);

 private:
  void resize(int64_t k, int64_t n);
};

// Contiguous rows of a bf16 weight, which give `count` columns of a product.
struct Rows {
  const uint16_t* data;
  int64_t count;
};

// c[m, n] = init + a[m, k] w^T, where w are the rows of all parts, n in total.
void multiply(int64_t m, int64_t k, const float* a, int64_t a_row, std::initializer_list<Rows> parts, float* c,
              int64_t c_row, const float* init, int64_t init_row);
// y[m, count] = silu(a gate^T) * (a up^T) for equally many rows of both weights and packed
// activations; on this thread.
void gated(int64_t m, int64_t k, Rows gate, Rows up, const float* packed, int64_t row, float* y, int64_t y_row);
// c[m, n] = init + a[m, k] b. With few rows the panels are distributed over the threads.
void multiply(int64_t m, const float* a, int64_t a_row, const Panels& b, float* c, int64_t c_row, const float* init,
              int64_t init_row);
// c[m, n] = a[m, k] b, where b is k rows of n floats anywhere; on this thread.
void multiply_rows(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, const float* const* b, float* c,
                   int64_t c_row);

// c[m, n] (+)= the sum over tokens of a[t, m] b[t, n]: the gradient of a weight.
struct Outer {
  int64_t m, n;
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_row;
  float* c;
};
void accumulate(int64_t tokens, const std::vector<Outer>& products, bool first);

struct Shape {
  int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim;
  double eps;
  double magnitude;  // cosines and sines of the rotary embedding are multiplied by this
  int64_t queries() const { return heads * head_dim; }
  int64_t keys() const { return kv_heads * head_dim; }
  int64_t qkv() const { return queries() + 2 * keys(); }
};

// Indices of a layer's parameters, after the embedding; the final norm and, if not tied, the head
// follow. Biases and the norms of query and key heads are undefined in models without them.
enum Slot { INPUT_NORM, Q, Q_BIAS, K, K_BIAS, V, V_BIAS, Q_NORM, K_NORM, O, GATE, UP, DOWN, POST_NORM, LAYER_SLOTS };

// The products of a layer.
enum class Projection { QKV, OUT, GATE_UP, DOWN };

struct Model {
  Shape shape;
  std::vector<at::Tensor> parameters;  // all f32, or all bf16 (generation only)
  at::Tensor frequencies;  // [D / 2], of the rotary embedding

  bool half() const { return parameters.front().scalar_type() == at::kBFloat16; }
  // Writes the embedding [E] of an id.
  void embed(int64_t id, float* out) const;
  size_t place(int64_t layer, Slot slot) const { return 1 + layer * LAYER_SLOTS + slot; }
  bool has(Slot slot) const { return parameters[place(0, slot)].defined(); }
  // In bf16 there are the vectors (biases, norms) only.
  const float* weight(int64_t layer, Slot slot) const { return values(place(layer, slot)); }
  size_t norm_place() const { return 1 + shape.layers * LAYER_SLOTS; }
  const float* norm() const { return values(norm_place()); }
  // The output projection [V, E]: the embedding when tied.
  const at::Tensor& head() const { return parameters.size() > norm_place() + 1 ? parameters.back() : parameters.front(); }

  // c = init + a times the weights of a layer's projection, for m rows.
  void project(int64_t layer, Projection projection, int64_t m, const float* a, int64_t a_row, float* c, int64_t c_row,
               const float* init, int64_t init_row) const;
  // y = silu(gate) * up of m rows, in bf16 only.
  void project_gated(int64_t layer, int64_t m, const float* a, int64_t a_row, float* y, int64_t y_row) const;
  // Logits [m, V] of hidden states.
  void project_head(int64_t m, const float* a, int64_t a_row, float* c, int64_t c_row) const;

  // Must be called before any computation: packs the weights again if they changed since the last
  // call. bf16 matrices are not packed; their vectors are converted on every call. Returns false if
  // stopped; nothing may be computed then.
  bool refresh(const Stop& stop = {});
  // Version of the weights: a hash of their addresses and libtorch's version counters, which every
  // in-place operation increments (including the loader), and the optimiser explicitly.
  uint64_t weights_version() const;
  struct LayerPanels {
    Panels qkv, o, gate_up, down;
    std::vector<float> qkv_bias;
  };
  std::vector<LayerPanels> panels;
  Panels head_panels;
  // Returns the packed head to the pool until its next use. With a large vocabulary it is most of a
  // model.
  void release_head();

  // Cosines and sines [P, D / 2] for positions below `count`.
  void reserve_positions(int64_t count);
  const float* cosine(int64_t position) const { return cosines.const_data_ptr<float>() + position * shape.head_dim / 2; }
  const float* sine(int64_t position) const { return sines.const_data_ptr<float>() + position * shape.head_dim / 2; }

  // The weights of one layer, or of the head, in bf16.
  Rows rows(int64_t layer, Slot slot) const;
  Rows head_rows() const;

 private:
  const float* values(size_t place) const {
    return half() ? vectors[place].data() : parameters[place].const_data_ptr<float>();
  }
  void refresh_vectors();
  void refresh_biases(int64_t layer);

  std::vector<std::vector<float>> vectors;  // f32 copies of the vectors of a bf16 model, by parameter index
  uint64_t packed = 0;
  int64_t positions = 0;
  at::Tensor cosines, sines;
};

// The part of a layer before attention, for some tokens: qkv [tokens, stride(qkv)] of x [tokens,
// stride(E)]. Queries and keys before their norms are saved in `raw` [tokens, stride(queries +
// keys)], if given.
void before_attention(const Model& model, int64_t layer, int64_t tokens, const int64_t* positions, const float* x,
                      float* qkv, float* raw);
// The part after it: x1 = x + o's projection, next = x1 + the feed-forward block. `gate_up`
// [tokens, stride(2 * inner)] is saved if given; x, x1 and next may be the same. Without `next` the
// block ends after gate and up.
void after_attention(const Model& model, int64_t layer, int64_t tokens, const float* x, const float* o, float* x1,
                     float* gate_up, float* next);

// One key/value head of one sequence: its query heads, D apart, attend to keys 0..first+i for query
// i.
struct Attention {
  int64_t head_dim, heads, queries, first;
  const float* q;
  int64_t q_row;
  const float* key_panels;  // [panels, D, panel]
  const float* v;
  int64_t v_row;
};
void attend(const Attention& a, float* out, int64_t out_row, float* lse, int64_t lse_row);
// Keys (rows of D floats, `row` apart) into the panels of a sequence, from position `start` on.
void pack_keys(int64_t start, int64_t count, int64_t head_dim, const float* k, int64_t row, float* panels);
// Gradients of attend. `keys` are rows of D floats; keys and values start at the first one. dq is
// overwritten; dk and dv (rows of D floats) are accumulated over the query heads.
void attend_backward(const Attention& a, const float* keys, const float* value_panels, const float* out,
                     const float* d_out, int64_t out_row, const float* lse, int64_t lse_row, float* dq, int64_t dq_row,
                     float* dk, float* dv);

}  // namespace r1
