// Residual add and RMSNorm (arXiv:1910.07467): sum = x + delta, out = sum / rms(sum) * weight.
// A block computes a row of `width` elements; a thread keeps up to KEEP packs of it in registers.

constexpr int KEEP = 4;

// `delta` can be null: the norm of x, and `sum` is not written. `weight` is added to `offset`.
// `scale` [rows] receives 1 / rms, for the backward pass; null without one.
extern "C" __global__ void __launch_bounds__(1024)
    norm_forward(const element* x, const element* delta, const element* weight, element* sum,
                                        element* out, float* scale, i64 stride, int width, float eps, float offset) {
  const i64 row = blockIdx.x;
  float kept[KEEP][PACK], squares = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    const int i = (k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * PACK;
    if (i >= width) continue;
    load<PACK>(x + row * stride + i, kept[k]);
    if (delta) {
      float added[PACK];
      load<PACK>(delta + row * width + i, added);
      for (int j = 0; j < PACK; j++) kept[k][j] = rounded<element>(kept[k][j] + added[j]);
      store<PACK>(kept[k], sum + row * width + i);
    }
    for (int j = 0; j < PACK; j++) squares += kept[k][j] * kept[k][j];
  }
  const float factor = rsqrtf(block_sum(squares) / static_cast<float>(width) + eps);
  if (scale && threadIdx.x == 0) scale[row] = factor;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    const int i = (k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * PACK;
    if (i >= width) continue;
    float weights[PACK];
    load<PACK>(weight + i, weights);
    for (int j = 0; j < PACK; j++) weights[j] = kept[k][j] * factor * (weights[j] + offset);
    store<PACK>(weights, out + row * width + i);
  }
}
KERNEL(norm_forward)

// Gradient of x and of delta, which are equal: the gradient of the norm plus `d_sum` (null: none).
// A block computes every gridDim.x-th row. `d_weight` [gridDim.x, width] receives its sums; null
// without.
extern "C" __global__ void __launch_bounds__(1024)
    norm_backward(const element* sum, const element* weight, const float* scale,
                                         const element* d_out, const element* d_sum, element* d_x, float* d_weight,
                                         i64 rows, i64 stride, int width, float offset) {
  float own[KEEP][PACK];
  for (int k = 0; k < KEEP; k++)
    for (int j = 0; j < PACK; j++) own[k][j] = 0;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float factor = scale[row];
    float x[PACK], d[PACK], weights[PACK], dot = 0;
    for (int i = threadIdx.x * PACK; i < width; i += blockDim.x * PACK) {
      load<PACK>(sum + row * stride + i, x);
      load<PACK>(d_out + row * width + i, d);
      load<PACK>(weight + i, weights);
      for (int j = 0; j < PACK; j++) dot += d[j] * (weights[j] + offset) * x[j];
    }
    const float along = block_sum(dot) * factor * factor / static_cast<float>(width);
#pragma unroll
    for (int k = 0; k < KEEP; k++) {
      const int i = (k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * PACK;
      if (i >= width) continue;
      load<PACK>(sum + row * stride + i, x);
      load<PACK>(d_out + row * width + i, d);
      load<PACK>(weight + i, weights);
      for (int j = 0; j < PACK; j++) {
        own[k][j] += d[j] * x[j] * factor;
        d[j] = factor * (d[j] * (weights[j] + offset) - x[j] * along);
      }
      if (d_sum) {
        load<PACK>(d_sum + row * width + i, x);
        for (int j = 0; j < PACK; j++) d[j] += x[j];
      }
      store<PACK>(d, d_x + row * width + i);
    }
  }
  if (!d_weight) return;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    const int i = (k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * PACK;
    if (i >= width) continue;
    for (int j = 0; j < PACK; j++) d_weight[static_cast<i64>(blockIdx.x) * width + i + j] = own[k][j];
  }
}
KERNEL(norm_backward)

// Sums over the rows of `parts` [rows, width]; 32 columns a block of 256 threads.
extern "C" __global__ void column_sums(const float* parts, element* out, int rows, int width) {
  __shared__ float sums[8][32];
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
  float own = 0;
  if (column < width)
    for (int row = group; row < rows; row += 8) own += parts[static_cast<i64>(row) * width + column];
  sums[group][lane] = own;
  __syncthreads();
  if (group > 0 || column >= width) return;
  for (int other = 1; other < 8; other++) own += sums[other][lane];
  narrow(own, out[column]);
}
KERNEL(column_sums)
