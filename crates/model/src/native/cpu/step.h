// Generation; see step.cpp.
#pragma once
#include "common.h"

namespace r1 {

// `count` new ids of one sequence, at positions start.. of its slot.
struct Piece {
  int64_t slot, start, count;
  const uint32_t* ids;
};

// Keys [slots, Hkv, capacity / panel, D, panel] and values [slots, Hkv, capacity, D] of every
// layer.
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

// Logits [pieces, V] of each piece's last token; undefined if stopped.
at::Tensor step(Model& model, const Cache& cache, const std::vector<Piece>& pieces, const Stop& stop);

// Maximum number of tokens for the shared decode step (decode.cpp).
constexpr int64_t FEW = 32;

// State of a step.
struct Step {
  Model& model;
  const Cache& cache;
  const std::vector<Piece>& pieces;
  std::vector<int64_t> starts, positions;  // token offsets of the pieces, with the end; position of every token
  // [tokens, stride(E)], [tokens, stride(qkv)], [tokens, stride(queries)], [pieces, V].
  float *x, *qkv, *o, *logits;
  const Stop& stop;

  // Computes pieces first..end through the whole network, in parallel when called outside a
  // parallel region. Only there it can be stopped and then returns false.
  bool run(int64_t first, int64_t end) const;
  // Computes all pieces, a few tokens, through a large bf16 network with shared products;
  // decode.cpp.
  bool together() const;

  // x of tokens start..start + count.
  void embed(int64_t start, int64_t count) const;
  // Attention of a piece for one head, after writing its keys and values.
  void attend_head(int64_t layer, int64_t index, int64_t head) const;
};

}  // namespace r1
