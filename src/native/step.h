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

}  // namespace r1
