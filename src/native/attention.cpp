// Causal attention of one key/value head of one sequence, and its gradient. Scores of a block of queries are kept
// whole; nothing of size [L, L] ever is.
#include <cmath>

#include "common.h"

namespace r1 {

namespace {

// Queries at once. More would compute more of the scores that the causal mask throws away.
constexpr int64_t QUERIES = 24;

int64_t whole_vectors(int64_t n) { return (n + kernels().width - 1) / kernels().width * kernels().width; }

// out[m, keys] = x[m, D] times the panels; columns past `keys` up to a whole vector are written too.
void scores(int64_t m, int64_t keys, int64_t head_dim, const float* x, int64_t row, const float* panels, float* out,
            int64_t out_row) {
  const Kernels& kernel = kernels();
  for (int64_t start = 0; start < keys; start += kernel.panel)
    kernel.product(m, std::min(kernel.panel, whole_vectors(keys - start)), head_dim, x, row, 1,
                   panels + start * head_dim, kernel.panel, out + start, out_row, nullptr, 0);
}

// c[m, D] = init + a[m, k] b[k, D]
void gather(int64_t m, int64_t head_dim, int64_t k, const float* a, int64_t a_row, int64_t a_step, const float* b,
            int64_t b_row, float* c, int64_t c_row, bool add) {
  const Kernels& kernel = kernels();
  for (int64_t column = 0; column < head_dim; column += kernel.panel)
    kernel.product(m, std::min(kernel.panel, head_dim - column), k, a, a_row, a_step, b + column, b_row, c + column,
                   c_row, add ? c + column : nullptr, c_row);
}

}  // namespace

void pack_keys(int64_t count, int64_t head_dim, const float* k, int64_t row, float* out) {
  const Kernels& kernel = kernels();
  const float* rows[64];
  for (int64_t start = 0; start < count; start += kernel.panel) {
    const int64_t n = std::min(kernel.panel, count - start);
    for (int64_t i = 0; i < n; i++) rows[i] = k + (start + i) * row;
    kernel.pack_transposed(head_dim, n, rows, out + start * head_dim);
  }
}

void attend(const Attention& a, float* out, int64_t out_row, float* lse, int64_t lse_row) {
  const Kernels& kernel = kernels();
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  const int64_t s_row = stride(a.first + a.queries);
  if (a.queries == 1) {
    // Decoding: the query heads are the rows.
    const int64_t keys = a.first + 1;
    float* s = scratch(4, a.heads * s_row);
    scores(a.heads, keys, a.head_dim, a.q, a.head_dim, a.key_panels, s, s_row);
    for (int64_t h = 0; h < a.heads; h++) {
      const float sum = kernel.softmax(keys, keys, scale, s + h * s_row);
      if (lse) lse[h] = sum;
    }
    gather(a.heads, a.head_dim, keys, s, s_row, 1, a.v, a.v_row, out, a.head_dim, false);
    return;
  }
  float* s = scratch(4, QUERIES * s_row);
  for (int64_t h = 0; h < a.heads; h++) {
    const int64_t head = h * a.head_dim;
    for (int64_t start = 0; start < a.queries; start += QUERIES) {
      const int64_t m = std::min(QUERIES, a.queries - start), keys = a.first + start + m;
      scores(m, keys, a.head_dim, a.q + head + start * a.q_row, a.q_row, a.key_panels, s, s_row);
      for (int64_t i = 0; i < m; i++) {
        const float sum = kernel.softmax(a.first + start + i + 1, keys, scale, s + i * s_row);
        if (lse) lse[(start + i) * lse_row + h] = sum;
      }
      gather(m, a.head_dim, keys, s, s_row, 1, a.v, a.v_row, out + head + start * out_row, out_row, false);
    }
  }
}

void attend_backward(const Attention& a, const float* k, int64_t k_row, const float* out, const float* d_out,
                     int64_t out_row, const float* lse, int64_t lse_row, float* dq, float* dk, float* dv,
                     int64_t d_row) {
  const Kernels& kernel = kernels();
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  const int64_t s_row = stride(a.queries);
  const int64_t packed = parts(a.queries, kernel.panel) * kernel.panel * a.head_dim;
  float* value_panels = scratch(5, packed);
  pack_keys(a.queries, a.head_dim, a.v, a.v_row, value_panels);
  float* p = scratch(6, QUERIES * s_row);
  float* dp = scratch(7, QUERIES * s_row);
  for (int64_t i = 0; i < a.queries; i++)
    for (int64_t j = 0; j < a.head_dim; j++) dk[i * d_row + j] = dv[i * d_row + j] = 0.0f;
  for (int64_t h = 0; h < a.heads; h++) {
    const int64_t head = h * a.head_dim;
    for (int64_t start = 0; start < a.queries; start += QUERIES) {
      const int64_t m = std::min(QUERIES, a.queries - start), keys = start + m;
      const float* q = a.q + head + start * a.q_row;
      const float* d = d_out + head + start * out_row;
      scores(m, keys, a.head_dim, q, a.q_row, a.key_panels, p, s_row);
      scores(m, keys, a.head_dim, d, out_row, value_panels, dp, s_row);
      for (int64_t i = 0; i < m; i++) {
        const float delta = kernel.dot(a.head_dim, d + i * out_row, out + head + (start + i) * out_row);
        kernel.softmax_backward(start + i + 1, keys, scale, lse[(start + i) * lse_row + h], delta, p + i * s_row,
                                dp + i * s_row);
      }
      gather(m, a.head_dim, keys, dp, s_row, 1, k, k_row, dq + head + start * d_row, d_row, false);
      gather(keys, a.head_dim, m, dp, 1, s_row, q, a.q_row, dk, d_row, true);
      gather(keys, a.head_dim, m, p, 1, s_row, d, out_row, dv, d_row, true);
    }
  }
}

}  // namespace r1
