// Generation; see step.cpp.
#pragma once
#include "common.h"

namespace r1 {

// `count` new ids of one sequence, at positions start.. of its slot.
struct Piece {
  int64_t slot, start, count;
  const uint32_t* ids;
};

// Keys [slots, Hkv, capacity / panel, D, panel] and values [slots, Hkv, capacity, D] of every layer.
struct Cache {
  std::vector<float*> key_layers, value_layers;
  int64_t capacity;
  float* keys(const Shape& shape, int64_t layer, int64_t slot, int64_t head) const {
    return key_layers[layer] + (slot * shape.kv_heads + head) * capacity * shape.head_dim;
  }
  float* values(const Shape& shape, int64_t layer, int64_t slot, int64_t head) const {
    return value_layers[layer] + (slot * shape.kv_heads + head) * capacity * shape.head_dim;
  }
};

// Logits [pieces, V] of each piece's last token; undefined if it was stopped.
at::Tensor step(Model& model, const Cache& cache, const std::vector<Piece>& pieces, const Stop& stop);

// Tokens that the threads take through the layers side by side.
constexpr int64_t FEW = 32;

// A step under way.
struct Step {
  Model& model;
  const Cache& cache;
  const std::vector<Piece>& pieces;
  std::vector<int64_t> starts, positions;  // of the pieces' tokens, the end included; of every token
  // [tokens, stride(E)], [tokens, stride(qkv)], [tokens, stride(queries)], [pieces, V].
  float *x, *qkv, *o, *logits;
  const Stop& stop;

  // Pieces first..end through the whole network; shared out among the threads when called outside a parallel region,
  // where alone it can be stopped: false, then.
  bool run(int64_t first, int64_t end) const;
  // All pieces, a few tokens in all, through a large network in bf16, by threads that stay side by side; decode.cpp.
  bool together() const;

  // x of tokens start..start + count.
  void embed(int64_t start, int64_t count) const;
  // Attention of a piece to one head, whose keys and values are written first.
  void attend_head(int64_t layer, int64_t index, int64_t head) const;
};

}  // namespace r1
