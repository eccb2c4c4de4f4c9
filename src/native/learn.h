// The training pass; see learn.cpp.
#pragma once
#include "common.h"

namespace r1 {

// Rows laid end to end.
struct Batch {
  std::vector<int64_t> ids, positions;
  std::vector<int64_t> starts;  // of the rows, then the number of tokens
};

// One forward pass: the batch and what backward needs.
class Pass {
 public:
  // Throws for ids and positions out of range. Without `keep` there is no backward.
  Pass(std::shared_ptr<Model> model, Batch batch, bool keep);
  int64_t tokens() const { return batch.starts.back(); }
  int64_t width() const { return model->shape.hidden; }
  // Hidden states [T, E] after the final norm.
  void run(float* hidden);
  // Gradients of all parameters but an untied head, in their order.
  std::vector<at::Tensor> gradients(const at::Tensor& d_hidden) const;

 private:
  // Rows of one layer's activations, all tokens of the batch.
  struct Kept {
    float *x, *qkv, *o, *lse, *x1, *gate_up;
  };
  // Whole rows that are taken through the layers together.
  struct Chunk {
    int64_t row, rows, start, tokens;
  };

  std::shared_ptr<Model> model;
  Batch batch;
  std::vector<Chunk> chunks;
  std::vector<Kept> layers;
  float* last = nullptr;  // what the final norm is given
  Floats memory;
  uint64_t weights = 0;

  template <class F>
  static void blocks(const Chunk& chunk, F f);
  void attention(const Kept& kept, const Chunk& chunk) const;
  int64_t starts(int64_t row) const { return batch.starts[row]; }
};

}  // namespace r1
