// Inner loops over f32 rows (and bf16 weights), compiled for each instruction set and selected at
// run time.
//
// Every function works on plain pointers and on the calling thread. A "panel" is a block of up to
// `panel` columns stored row by row, `panel` floats per row; weights are packed in panels so that a
// product reads them sequentially.
#pragma once
#include <cstdint>

namespace r1 {

struct Kernels {
  const char* name;
  // Floats in a vector, and columns in a panel (a multiple of it).
  int64_t width;
  int64_t panel;

  // c[m, n] = init + a[m, k] b[k, n], with n <= panel. Element (i, p) of a is a[i * a_row + p *
  // a_step]. `init` is [m, n] with rows init_row apart (0 repeats one row, as for a bias; c itself
  // accumulates), or null for zero. Every sum runs over k in order, so the result does not depend
  // on m, n or the number of threads. `ahead`, if any, is a panel of k rows to prefetch.
  void (*product)(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_step, const float* b,
                  int64_t b_row, float* c, int64_t c_row, const float* init, int64_t init_row, const float* ahead);
  // out[k, panel] = columns 0..n of the k rows; the rest of the panel is zero.
  void (*pack)(int64_t k, int64_t n, const float* const* rows, int64_t column, float* out);
  // Columns 0..n of out[k, panel] = the n rows.
  void (*pack_transposed)(int64_t k, int64_t n, const float* const* rows, float* out);

  // y = x / rms(x) * w for `rows` rows of e floats.
  void (*rms_norm)(int64_t rows, int64_t e, float eps, const float* x, int64_t x_row, const float* w, float* y,
                   int64_t y_row);
  // dx = residual + the gradient of rms_norm for dy; dw += its gradient for the weight.
  void (*rms_norm_backward)(int64_t rows, int64_t e, float eps, const float* x, int64_t x_row, const float* w,
                            const float* dy, int64_t dy_row, const float* residual, int64_t residual_row, float* dx,
                            int64_t dx_row, float* dw);
  // Rotates `heads` heads of d floats in place; cos and sin have d / 2 entries; sign is -1 for the
  // gradient.
  void (*rotate)(int64_t heads, int64_t d, float* x, const float* cos, const float* sin, float sign);
  // y[n] = silu(gate[n]) * up[n].
  void (*swiglu)(int64_t n, const float* gate, const float* up, float* y);
  // y[n] = gelu(gate[n]) * up[n], with the tanh approximation of gelu.
  void (*geglu)(int64_t n, const float* gate, const float* up, float* y);
  // Reads the gradient of y from `dy` and replaces it with y; writes the gradients of gate and up.
  void (*swiglu_backward)(int64_t n, const float* gate, const float* up, float* dy, float* d_gate, float* d_up);

  // s[0..n) becomes softmax(s * scale), s[n..total) zero; returns the log of the sum of
  // exponentials.
  float (*softmax)(int64_t n, int64_t total, float scale, float* s);
  // s[0..n) becomes p = exp(s * scale - lse) and dp becomes p * (dp - delta) * scale; the rest up
  // to total zero.
  void (*softmax_backward)(int64_t n, int64_t total, float scale, float lse, float delta, float* s, float* dp);
  float (*dot)(int64_t n, const float* a, const float* b);
  // out[n] += x[n].
  void (*add)(int64_t n, const float* x, float* out);

  // Log of the sum of exponentials and entropy of softmax(z * scale).
  void (*distribution)(int64_t n, float scale, const float* z, float* lse, float* entropy);
  // z becomes the gradient of g_logp * logp(target) + g_entropy * entropy with respect to z.
  void (*distribution_backward)(int64_t n, float scale, float lse, float entropy, int64_t target, float g_logp,
                                float g_entropy, float* z);

  // Packs rows of k floats for `dots`: at most k rounded up to 32 floats each.
  void (*pack_inputs)(int64_t m, int64_t k, const float* x, int64_t x_row, float* out, int64_t out_row);
  // c[m, n] = init + a[m, k] w[n, k]^T for contiguous rows of bf16 weights and packed rows a.
  // `init` as above. The order of a sum depends on k only. On processors with bf16 products, a is
  // rounded to bf16.
  void (*dots)(int64_t m, int64_t n, int64_t k, const uint16_t* w, const float* a, int64_t a_row, float* c,
               int64_t c_row, const float* init, int64_t init_row);
};

extern const Kernels kernels_base;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512bf16;
#endif

// The best instruction set of this processor; the environment variable R1_KERNELS (base, avx2,
// avx512, avx512bf16) limits it.
const Kernels& kernels();

}  // namespace r1
