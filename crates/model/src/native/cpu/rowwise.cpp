#include "rowwise.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "common.h"

namespace r1 {

namespace {

void check(const at::Tensor& x, const char* what) {
  TORCH_CHECK(x.scalar_type() == at::kFloat && x.device().is_cpu() && x.is_contiguous(), what,
              " is not a contiguous f32 tensor on the CPU");
}

}  // namespace

at::Tensor linear_rows(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor x = input.contiguous();
  check(x, "the input");
  check(weight, "the weight");
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1), "the shapes do not match for a product");
  const int64_t m = x.size(0), k = x.size(1), n = weight.size(0);
  at::Tensor out = at::empty({m, n}, x.options());
  const float* added = nullptr;
  if (bias.defined()) {
    check(bias, "the bias");
    TORCH_CHECK(bias.numel() == n, "the bias has another length than the rows of its weight");
    added = bias.const_data_ptr<float>();
  }
  const Kernels& kernel = kernels();
  const int64_t panel = kernel.panel;
  const float* from = x.const_data_ptr<float>();
  const float* w = weight.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  // Tokens are the lanes of whole vectors, so that the weights are read sequentially in place and
  // every sum has the same order.
  constexpr int64_t PIECE = 48;
  std::vector<const float*> rows;
  for (int64_t first = 0; first < m; first += panel) {
    const int64_t count = std::min(panel, m - first);
    const int64_t columns = parts(count, kernel.width) * kernel.width;
    float* packed = scratch(0, k * panel);
    std::fill_n(packed, k * panel, 0.0f);
    rows.clear();
    for (int64_t t = 0; t < count; t++) rows.push_back(from + (first + t) * k);
    kernel.pack_transposed(k, count, rows.data(), packed);
    tasks(parts(n, PIECE), [&](int64_t piece) {
      const int64_t begin = piece * PIECE, size = std::min(PIECE, n - begin);
      float* part = scratch(1, PIECE * panel);
      kernel.product(size, columns, k, w + begin * k, k, 1, packed, panel, part, panel, nullptr, 0, nullptr);
      for (int64_t t = 0; t < count; t++) {
        float* own = to + (first + t) * n + begin;
        for (int64_t r = 0; r < size; r++) own[r] = part[r * panel + t] + (added ? added[begin + r] : 0.0f);
      }
    });
  }
  return out;
}

at::Tensor gated_rows(const at::Tensor& gate, const at::Tensor& up, bool gelu) {
  check(gate, "the gate");
  check(up, "the input of the gate");
  TORCH_CHECK(gate.dim() == 2 && gate.sizes() == up.sizes(), "a gate has another shape than its input");
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  const int64_t m = gate.size(0), n = gate.size(1);
  const Kernels& kernel = kernels();
  const float *g = gate.const_data_ptr<float>(), *u = up.const_data_ptr<float>();
  float* y = out.mutable_data_ptr<float>();
  tasks(m, [&](int64_t t) { (gelu ? kernel.geglu : kernel.swiglu)(n, g + t * n, u + t * n, y + t * n); });
  return out;
}

at::Tensor attend_rows(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                       const at::Tensor& sinks, const at::Tensor& slots, const at::Tensor& positions, double scale,
                       int64_t window) {
  const at::Tensor q = query.contiguous();
  check(q, "the queries");
  check(keys, "the keys");
  check(values, "the values");
  TORCH_CHECK(q.dim() == 3 && keys.dim() == 4 && keys.sizes() == values.sizes() && q.size(2) == keys.size(3) &&
                  q.size(1) % keys.size(2) == 0,
              "queries, keys and values do not fit each other");
  const int64_t tokens = q.size(0), heads = q.size(1), d = q.size(2);
  const int64_t capacity = keys.size(1), kv_heads = keys.size(2), group = heads / kv_heads, row = kv_heads * d;
  TORCH_CHECK(slots.scalar_type() == at::kLong && positions.scalar_type() == at::kLong && slots.is_contiguous() &&
                  positions.is_contiguous() && slots.numel() == tokens && positions.numel() == tokens,
              "slots and positions are not i64 vectors with an element for each query");
  const int64_t *slot = slots.const_data_ptr<int64_t>(), *position = positions.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < tokens; t++)
    TORCH_CHECK(slot[t] >= 0 && slot[t] < keys.size(0) && position[t] >= 0 && position[t] < capacity,
                "a query is outside the cache");
  const float* sink = nullptr;
  if (sinks.defined()) {
    check(sinks, "the sinks");
    TORCH_CHECK(sinks.numel() == heads && scale > 0, "sinks do not fit the heads");
    sink = sinks.const_data_ptr<float>();
  }
  at::Tensor out = at::empty(q.sizes(), q.options());
  const Kernels& kernel = kernels();
  const float *from = q.const_data_ptr<float>(), *k = keys.const_data_ptr<float>(), *v = values.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  tasks(tokens * kv_heads, [&](int64_t task) {
    const int64_t t = task / kv_heads, own = task % kv_heads;
    const int64_t first = window > 0 ? std::max<int64_t>(0, position[t] + 1 - window) : 0;
    const int64_t count = position[t] + 1 - first;
    const int64_t start = (slot[t] * capacity + first) * row + own * d;
    const int64_t scores = count + (sink != nullptr ? 1 : 0);
    float* weights = scratch(0, scores);
    for (int64_t h = own * group; h < (own + 1) * group; h++) {
      const float* head = from + (t * heads + h) * d;
      for (int64_t j = 0; j < count; j++) weights[j] = kernel.dot(d, head, k + start + j * row);
      if (sink != nullptr) weights[count] = sink[h] / static_cast<float>(scale);
      kernel.softmax(scores, scores, static_cast<float>(scale), weights);
      for (int64_t c = 0; c < d; c += kernel.panel)
        kernel.product(1, std::min(kernel.panel, d - c), count, weights, count, 1, v + start + c, row,
                       to + (t * heads + h) * d + c, d, nullptr, 0, nullptr);
    }
  });
  return out;
}

}  // namespace r1
