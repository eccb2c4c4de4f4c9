// Products and weights; see common.h.
#include "common.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/outer.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace r1 {

const Kernels& kernels() {
  static const Kernels& picked = []() -> const Kernels& {
#if defined(__x86_64__)
    const char* wish = std::getenv("R1_KERNELS");
    const std::string most = wish ? wish : "avx512bf16";
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    if (avx512 && __builtin_cpu_supports("avx512bf16") && most == "avx512bf16") return kernels_avx512bf16;
    if (avx512 && most.rfind("avx512", 0) == 0) return kernels_avx512;
    if (avx2 && most != "base") return kernels_avx2;
#endif
    return kernels_base;
  }();
  return picked;
}

void Panels::resize(int64_t depth, int64_t width) {
  if (data && k == depth && n == width) return;
  k = depth;
  n = width;
  const int64_t size = k * kernels().panel;
  data = pooled(count() * size);
  // Columns past the end of the last panel.
  if (count() > 0) std::fill_n(data.get() + (count() - 1) * size, size, 0.0f);
}

void Panels::pack_transposed(int64_t depth, const std::vector<const float*>& rows) {
  const Kernels& kernel = kernels();
  resize(depth, static_cast<int64_t>(rows.size()));
  tasks(count(), [&](int64_t p) {
    const int64_t start = p * kernel.panel;
    kernel.pack_transposed(k, std::min(kernel.panel, n - start), rows.data() + start,
                           data.get() + p * k * kernel.panel);
  });
}

void Panels::pack(int64_t width, const std::vector<std::pair<const float*, int64_t>>& matrices) {
  const Kernels& kernel = kernels();
  std::vector<const float*> rows;
  for (const auto& [matrix, count] : matrices)
    for (int64_t i = 0; i < count; i++) rows.push_back(matrix + i * width);
  resize(static_cast<int64_t>(rows.size()), width);
  tasks(count(), [&](int64_t p) {
    const int64_t column = p * kernel.panel;
    kernel.pack(k, std::min(kernel.panel, n - column), rows.data(), column, data.get() + p * k * kernel.panel);
  });
}

// Rows of a panel per block: at most 192 KiB, which fit in the L2 cache with the other operands.
constexpr int64_t DEPTH = 768;

void multiply(int64_t m, const float* a, int64_t a_row, const Panels& b, float* c, int64_t c_row, const float* init,
              int64_t init_row) {
  const Kernels& kernel = kernels();
  // Minimum work per thread; starting a thread for less costs more than it saves.
  const bool alone = m * b.n * b.k < (1 << 18);
  // The panel that this thread probably computes next: with few rows, reading weights takes most of
  // the time.
  const int64_t next = alone || single_thread || at::in_parallel_region() ? 1 : at::get_num_threads();
  const auto panel = [&](int64_t p) {
    const int64_t column = p * kernel.panel, n = std::min(kernel.panel, b.n - column);
    for (int64_t k = 0; k < b.k; k += DEPTH) {
      const float* start = k > 0 ? c + column : init ? init + column : nullptr;
      const float* ahead = p + next < b.count() ? b.panel(p + next) + k * kernel.panel : nullptr;
      kernel.product(m, n, std::min(DEPTH, b.k - k), a + k, a_row, 1, b.panel(p) + k * kernel.panel, kernel.panel,
                     c + column, c_row, start, k > 0 ? c_row : init_row, ahead);
    }
  };
  if (alone) {
    for (int64_t p = 0; p < b.count(); p++) panel(p);
  } else {
    tasks(b.count(), panel);
  }
}

void multiply_rows(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, const float* const* b, float* c,
                   int64_t c_row) {
  const Kernels& kernel = kernels();
  constexpr int64_t depth = 256;
  float* packed = scratch(0, depth * kernel.panel);
  for (int64_t p = 0; p < k; p += depth) {
    for (int64_t column = 0; column < n; column += kernel.panel) {
      const int64_t rows = std::min(depth, k - p), width = std::min(kernel.panel, n - column);
      kernel.pack(rows, width, b + p, column, packed);
      kernel.product(m, width, rows, a + p, a_row, 1, packed, kernel.panel, c + column, c_row,
                     p > 0 ? c + column : nullptr, c_row, nullptr);
    }
  }
}

void accumulate(int64_t tokens, const std::vector<Outer>& products, bool first) {
  const Kernels& kernel = kernels();
  // A block of `a` has `rows` columns and `depth` tokens: 384 KiB, in an L2 cache of 1 MiB.
  constexpr int64_t rows = 384, depth = 256;
  struct Task {
    const Outer* outer;
    int64_t row, column;
  };
  std::vector<Task> all;
  for (const Outer& outer : products)
    for (int64_t row = 0; row < outer.m; row += rows)
      for (int64_t column = 0; column < outer.n; column += kernel.panel) all.push_back({&outer, row, column});
  tasks(static_cast<int64_t>(all.size()), [&](int64_t index) {
    const auto& [outer, row, column] = all[index];
    const int64_t m = std::min(rows, outer->m - row), n = std::min(kernel.panel, outer->n - column);
    float* packed = scratch(0, depth * kernel.panel);
    float* c = outer->c + row * outer->n + column;
    const float* lines[depth];
    for (int64_t t = 0; t < tokens; t += depth) {
      const int64_t k = std::min(depth, tokens - t);
      for (int64_t i = 0; i < k; i++) lines[i] = outer->b + (t + i) * outer->b_row;
      kernel.pack(k, n, lines, column, packed);
      kernel.product(m, n, k, outer->a + t * outer->a_row + row, 1, outer->a_row, packed, kernel.panel, c, outer->n,
                     first && t == 0 ? nullptr : c, outer->n, nullptr);
    }
  });
}

uint64_t Model::weights_version() const {
  uint64_t hash = 1469598103934665603u;
  const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  for (const at::Tensor& tensor : parameters) {
    if (!tensor.defined()) continue;
    mix(tensor._version());
    mix(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()));
  }
  return hash | 1;  // 0 means that the weights are not packed
}

bool Model::refresh(const Stop& stop) {
  if (half()) {
    refresh_vectors();
    return true;
  }
  const uint64_t now = weights_version();
  if (now == packed && head_panels.data) return true;
  const bool changed = now != packed;
  packed = 0;
  const auto rows = [](std::vector<const float*>& all, const float* weight, int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; i++) all.push_back(weight + i * width);
  };
  panels.resize(shape.layers);
  for (int64_t l = 0; changed && l < shape.layers; l++) {
    if (stop()) return false;
    LayerPanels& layer = panels[l];
    std::vector<const float*> qkv, o, gate_up, down;
    refresh_biases(l);
    rows(qkv, weight(l, Q), shape.queries(), shape.hidden);
    rows(qkv, weight(l, K), shape.keys(), shape.hidden);
    rows(qkv, weight(l, V), shape.keys(), shape.hidden);
    rows(o, weight(l, O), shape.hidden, shape.queries());
    rows(gate_up, weight(l, GATE), shape.inner, shape.hidden);
    rows(gate_up, weight(l, UP), shape.inner, shape.hidden);
    rows(down, weight(l, DOWN), shape.hidden, shape.inner);
    layer.qkv.pack_transposed(shape.hidden, qkv);
    layer.o.pack_transposed(shape.queries(), o);
    layer.gate_up.pack_transposed(shape.hidden, gate_up);
    layer.down.pack_transposed(shape.inner, down);
  }
  std::vector<const float*> all;
  rows(all, head().const_data_ptr<float>(), shape.vocab, shape.hidden);
  head_panels.pack_transposed(shape.hidden, all);
  packed = now;
  return true;
}

void Model::release_head() { head_panels = {}; }

void Model::refresh_biases(int64_t layer) {
  std::vector<float>& all = panels[layer].qkv_bias;
  all.clear();
  for (auto [bias, count] : {std::make_pair(Q_BIAS, shape.queries()), std::make_pair(K_BIAS, shape.keys()),
                             std::make_pair(V_BIAS, shape.keys())})
    if (has(bias)) all.insert(all.end(), weight(layer, bias), weight(layer, bias) + count);
}

void Model::reserve_positions(int64_t count) {
  if (count <= positions) return;
  positions = std::max<int64_t>(2 * positions, (count + 255) / 256 * 256);
  // The f32 operations of the plain path and of transformers, so that angles are bitwise equal.
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor angles = at::outer(at::arange(0, positions, options), frequencies);
  cosines = angles.cos().contiguous();
  sines = angles.sin().contiguous();
  if (shape.magnitude != 1.0) {
    cosines = cosines.mul(shape.magnitude);
    sines = sines.mul(shape.magnitude);
  }
}

void before_attention(const Model& model, int64_t layer, int64_t tokens, const int64_t* positions, const float* x,
                      float* qkv, float* raw) {
  const Kernels& kernel = kernels();
  const Shape& shape = model.shape;
  const int64_t x_row = stride(shape.hidden), qkv_row = stride(shape.qkv());
  float* h = scratch(1, tokens * x_row);
  kernel.rms_norm(tokens, shape.hidden, shape.eps, x, x_row, model.weight(layer, INPUT_NORM), h, x_row);
  const std::vector<float>& bias = model.panels[layer].qkv_bias;
  model.project(layer, Projection::QKV, tokens, h, x_row, qkv, qkv_row, bias.empty() ? nullptr : bias.data(), 0);
  if (model.has(Q_NORM)) {
    const int64_t d = shape.head_dim, normed = shape.queries() + shape.keys();
    for (int64_t t = 0; t < tokens; t++) {
      float* q = qkv + t * qkv_row;
      float* k = q + shape.queries();
      if (raw) std::copy_n(q, normed, raw + t * stride(normed));
      kernel.rms_norm(shape.heads, d, shape.eps, q, d, model.weight(layer, Q_NORM), q, d);
      kernel.rms_norm(shape.kv_heads, d, shape.eps, k, d, model.weight(layer, K_NORM), k, d);
    }
  }
  for (int64_t t = 0; t < tokens; t++)
    kernel.rotate(shape.heads + shape.kv_heads, shape.head_dim, qkv + t * qkv_row, model.cosine(positions[t]),
                  model.sine(positions[t]), 1.0f);
}

void after_attention(const Model& model, int64_t layer, int64_t tokens, const float* x, const float* o, float* x1,
                     float* gate_up, float* next) {
  const Kernels& kernel = kernels();
  const Shape& shape = model.shape;
  const int64_t x_row = stride(shape.hidden), o_row = stride(shape.queries());
  const int64_t inner_row = stride(shape.inner), gate_up_row = stride(2 * shape.inner);
  model.project(layer, Projection::OUT, tokens, o, o_row, x1, x_row, x, x_row);
  float* h = scratch(1, tokens * x_row);
  kernel.rms_norm(tokens, shape.hidden, shape.eps, x1, x_row, model.weight(layer, POST_NORM), h, x_row);
  float* inner = next ? scratch(3, tokens * inner_row) : nullptr;
  if (model.half() && !gate_up) {
    model.project_gated(layer, tokens, h, x_row, inner, inner_row);
  } else {
    if (!gate_up) gate_up = scratch(2, tokens * gate_up_row);
    model.project(layer, Projection::GATE_UP, tokens, h, x_row, gate_up, gate_up_row, nullptr, 0);
    if (!next) return;
    for (int64_t t = 0; t < tokens; t++)
      kernel.swiglu(shape.inner, gate_up + t * gate_up_row, gate_up + t * gate_up_row + shape.inner,
                    inner + t * inner_row);
  }
  model.project(layer, Projection::DOWN, tokens, inner, inner_row, next, x_row, x1, x_row);
}

}  // namespace r1
