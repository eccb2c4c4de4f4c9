// The training pass; see learn.cpp.
#pragma once
#include "common.h"
#include "prefix.h"

namespace r1 {

// Activations that a pass keeps: none (no backward), all, or only the inputs of the layers, from
// which backward recomputes the rest with bitwise equal results.
enum class Keep { Nothing, All, Inputs };

// Called in a backward pass of this thread after the gradients of each layer are in its parameters,
// from the last layer to the first. False stops the pass.
struct LayerHook {
  bool (*done)(void* context, int64_t layer);
  void* context;
};
extern thread_local LayerHook layer_hook;

// One forward pass: the batch and the state of backward.
class Pass {
 public:
  // Throws for ids and positions out of range.
  Pass(std::shared_ptr<Model> model, const Batch& batch, Keep keep);
  // T: tokens of the batch, including copies of shared prefixes.
  int64_t tokens() const { return static_cast<int64_t>(forest.place.size()); }
  int64_t width() const { return model->shape.hidden; }
  // Hidden states [T, E] after the final norm.
  void run(float* hidden);
  // Gradients of all parameters of the model, in order; undefined for an untied head.
  std::vector<at::Tensor> gradients(const at::Tensor& d_hidden) const;

 private:
  // Activations of one layer, one row per distinct token of the batch.
  struct Kept {
    float *x, *qkv, *o, *lse, *x1, *gate_up, *raw;
  };
  // Prefix trees that are processed together.
  struct Chunk {
    int64_t tree, trees, start, tokens;
  };

  std::shared_ptr<Model> model;
  Keep keep;
  Forest forest;
  std::vector<Chunk> chunks;
  std::vector<Kept> layers;
  float* last = nullptr;  // input of the final norm
  Floats memory;
  uint64_t weights = 0;

  template <class F>
  static void blocks(const Chunk& chunk, F f);
  void queries_and_keys(int64_t layer, int64_t start, int64_t tokens) const;
  void attention(const Kept& kept, const Chunk& chunk) const;
  void again(int64_t layer) const;
  void attention_backward(const Kept& kept, const Chunk& chunk, const float* d_o, float* d_qkv) const;
  void heads_backward(const Kept& kept, int64_t layer, int64_t start, int64_t tokens, float* d, float* q_norm,
                      float* k_norm) const;
  void finish_layer(int64_t layer, std::vector<at::Tensor>& all) const;
  void check(const Batch& batch) const;
};

}  // namespace r1
