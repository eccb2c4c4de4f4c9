// Causal attention of one key/value head of one sequence, and its gradient. Only the scores of a
// block of queries are materialised, never [L, L].
#include <cmath>

#include "common.h"

namespace r1 {

namespace {

// Block size of queries. Larger blocks compute more scores that the causal mask discards.
constexpr int64_t QUERIES = 24;

int64_t whole_vectors(int64_t n) { return (n + kernels().width - 1) / kernels().width * kernels().width; }

// out[m, keys] = x[m, D] times the panels; columns past `keys` up to a whole vector are written
// too.
void scores(int64_t m, int64_t keys, int64_t head_dim, const float* x, int64_t row, const float* panels, float* out,
            int64_t out_row) {
  const Kernels& kernel = kernels();
  for (int64_t start = 0; start < keys; start += kernel.panel)
    kernel.product(m, std::min(kernel.panel, whole_vectors(keys - start)), head_dim, x, row, 1,
                   panels + start * head_dim, kernel.panel, out + start, out_row, nullptr, 0, nullptr);
}

// c[m, D] = init + a[m, k] b[k, D]
void gather(int64_t m, int64_t head_dim, int64_t k, const float* a, int64_t a_row, int64_t a_step, const float* b,
            int64_t b_row, float* c, int64_t c_row, bool add) {
  const Kernels& kernel = kernels();
  for (int64_t column = 0; column < head_dim; column += kernel.panel)
    kernel.product(m, std::min(kernel.panel, head_dim - column), k, a, a_row, a_step, b + column, b_row, c + column,
                   c_row, add ? c + column : nullptr, c_row, nullptr);
}

}  // namespace

void pack_keys(int64_t start, int64_t count, int64_t head_dim, const float* k, int64_t row, float* panels) {
  const Kernels& kernel = kernels();
  const float* rows[64];
  for (int64_t at = start; at < start + count;) {
    const int64_t column = at % kernel.panel, n = std::min(kernel.panel - column, start + count - at);
    float* panel = panels + (at - column) * head_dim;
    for (int64_t i = 0; i < n; i++) rows[i] = k + (at - start + i) * row;
    kernel.pack_transposed(head_dim, n, rows, panel + column);
    at += n;
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

void attend_backward(const Attention& a, const float* keys_of, const float* value_panels, const float* out,
                     const float* d_out, int64_t out_row, const float* lse, int64_t lse_row, float* dq, int64_t dq_row,
                     float* dk, float* dv) {
  const Kernels& kernel = kernels();
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  const int64_t d = a.head_dim, s_row = stride(a.first + a.queries);
  float* p = scratch(6, QUERIES * s_row);
  float* dp = scratch(7, QUERIES * s_row);
  for (int64_t h = 0; h < a.heads; h++) {
    for (int64_t start = 0; start < a.queries; start += QUERIES) {
      const int64_t m = std::min(QUERIES, a.queries - start), keys = a.first + start + m;
      const float* q = a.q + h * d + start * a.q_row;
      const float* o = out + h * d + start * out_row;
      const float* d_o = d_out + h * d + start * out_row;
      scores(m, keys, d, q, a.q_row, a.key_panels, p, s_row);
      scores(m, keys, d, d_o, out_row, value_panels, dp, s_row);
      for (int64_t i = 0; i < m; i++)
        kernel.softmax_backward(a.first + start + i + 1, keys, scale, lse[(start + i) * lse_row + h],
                                kernel.dot(d, d_o + i * out_row, o + i * out_row), p + i * s_row, dp + i * s_row);
      gather(m, d, keys, dp, s_row, 1, keys_of, d, dq + h * d + start * dq_row, dq_row, false);
      gather(keys, d, m, dp, 1, s_row, q, a.q_row, dk, d, true);
      gather(keys, d, m, p, 1, s_row, d_o, out_row, dv, d, true);
    }
  }
}

}  // namespace r1
