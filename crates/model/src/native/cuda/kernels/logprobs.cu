// The log-softmax at the sampled ids and the entropy of logits [rows, vocab] divided by the
// temperature, in one pass (online softmax, arXiv:1805.02867), and its backward pass. A block
// computes a row. LOGITS_F32: logits are f32 also if the gradient is bf16.

#ifdef LOGITS_F32
using logit = float;
#else
using logit = element;
#endif

// Of some numbers z with maximum m: the sums of exp(z - m) and of exp(z - m) (z - m).
struct Sums {
  float max, sum, weighted;
};

__device__ inline Sums joined(Sums a, Sums b) {
  const float max = fmaxf(a.max, b.max), by_a = expf(a.max - max), by_b = expf(b.max - max);
  return {max, a.sum * by_a + b.sum * by_b,
          by_a * (a.weighted + (a.max - max) * a.sum) + by_b * (b.weighted + (b.max - max) * b.sum)};
}

__device__ inline Sums across_warp(Sums own) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const Sums other = {__shfl_xor_sync(0xffffffffu, own.max, distance), __shfl_xor_sync(0xffffffffu, own.sum, distance),
                        __shfl_xor_sync(0xffffffffu, own.weighted, distance)};
    own = joined(own, other);
  }
  return own;
}

extern "C" __global__ void __launch_bounds__(1024)
    logprobs_forward(const logit* logits, const i64* targets, float* logp, float* entropy,
                                            float* lse, int vocab, float inverse_temperature) {
  __shared__ Sums parts[32];
  const logit* z = logits + static_cast<i64>(blockIdx.x) * vocab;
  // A finite number, so that differences of maxima are finite.
  Sums own = {-1e30f, 0, 0};
  for (int i = threadIdx.x * PACK; i < vocab; i += blockDim.x * PACK) {
    float some[PACK], max = own.max;
    load<PACK>(z + i, some);
    for (int j = 0; j < PACK; j++) max = fmaxf(max, some[j] *= inverse_temperature);
    if (max > own.max) {
      const float by = expf(own.max - max);
      own = {max, own.sum * by, by * (own.weighted + (own.max - max) * own.sum)};
    }
    for (int j = 0; j < PACK; j++) {
      const float share = expf(some[j] - max);
      own.sum += share;
      own.weighted += share * (some[j] - max);
    }
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  own = across_warp(own);
  if (lane == 0) parts[warp] = own;
  __syncthreads();
  if (warp > 0) return;
  own = across_warp(lane < warps ? parts[lane] : Sums{-1e30f, 0, 0});
  if (lane > 0) return;
  const float total = own.max + logf(own.sum);
  lse[blockIdx.x] = total;
  logp[blockIdx.x] = wide(z[targets[blockIdx.x]]) * inverse_temperature - total;
  entropy[blockIdx.x] = logf(own.sum) - own.weighted / own.sum;
}
KERNEL(logprobs_forward)

// Blocks are (row, columns). `d_logits` receives the gradient with respect to the logits before the
// division by the temperature.
extern "C" __global__ void logprobs_backward(const logit* logits, const i64* targets, const float* lse,
                                             const float* entropy, const float* d_logp, const float* d_entropy,
                                             element* d_logits, int vocab, float inverse_temperature) {
  const i64 row = blockIdx.x;
  const int i = (blockIdx.y * blockDim.x + threadIdx.x) * PACK;
  if (i >= vocab) return;
  const float by_logp = d_logp[row], by_entropy = d_entropy[row];
  const int target = static_cast<int>(targets[row]) - i;
  float z[PACK];
  load<PACK>(logits + row * vocab + i, z);
  for (int j = 0; j < PACK; j++) {
    const float logp = z[j] * inverse_temperature - lse[row];
    const float d = -expf(logp) * ((logp + entropy[row]) * by_entropy + by_logp);
    z[j] = (j == target ? d + by_logp : d) * inverse_temperature;
  }
  store<PACK>(z, d_logits + row * vocab + i);
}
KERNEL(logprobs_backward)
