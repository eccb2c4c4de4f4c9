// The activation of `gate` times `up`: SiLU, or GELU in its approximation by tanh. Blocks are (row,
// columns); rows of gate and up are `stride` elements apart, rows of the other tensors `width`.

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

constexpr float ROOT = 0.7978845608028654f, CUBE = 0.044715f;  // sqrt(2 / pi)

extern "C" __global__ void gated_forward(const element* gate, const element* up, element* out, i64 gate_stride,
                                         i64 up_stride, int width, int gelu) {
  const i64 row = blockIdx.x;
  const int i = (blockIdx.y * blockDim.x + threadIdx.x) * PACK;
  if (i >= width) return;
  float g[PACK], u[PACK];
  load<PACK>(gate + row * gate_stride + i, g);
  load<PACK>(up + row * up_stride + i, u);
  for (int j = 0; j < PACK; j++) {
    const float x = g[j];
    const float activated = gelu ? 0.5f * x * (1.0f + tanhf(ROOT * (x + CUBE * x * x * x))) : x * sigmoid(x);
    u[j] *= activated;
  }
  store<PACK>(u, out + row * width + i);
}
KERNEL(gated_forward)

// `d_both` [rows, 2 * width] receives the gradient of gate, then the gradient of up.
extern "C" __global__ void gated_backward(const element* gate, const element* up, const element* d_out, element* d_both,
                                          i64 gate_stride, i64 up_stride, int width, int gelu) {
  const i64 row = blockIdx.x;
  const int i = (blockIdx.y * blockDim.x + threadIdx.x) * PACK;
  if (i >= width) return;
  float g[PACK], u[PACK], d[PACK];
  load<PACK>(gate + row * gate_stride + i, g);
  load<PACK>(up + row * up_stride + i, u);
  load<PACK>(d_out + row * width + i, d);
  for (int j = 0; j < PACK; j++) {
    const float x = g[j];
    float activated, slope;
    if (gelu) {
      const float bent = tanhf(ROOT * (x + CUBE * x * x * x));
      activated = 0.5f * x * (1.0f + bent);
      slope = 0.5f * (1.0f + bent) + 0.5f * x * (1.0f - bent * bent) * ROOT * (1.0f + 3.0f * CUBE * x * x);
    } else {
      const float share = sigmoid(x);
      activated = x * share;
      slope = share * (1.0f + x * (1.0f - share));
    }
    g[j] = d[j] * u[j] * slope;
    u[j] = d[j] * activated;
  }
  store<PACK>(g, d_both + row * 2 * width + i);
  store<PACK>(u, d_both + row * 2 * width + width + i);
}
KERNEL(gated_backward)
