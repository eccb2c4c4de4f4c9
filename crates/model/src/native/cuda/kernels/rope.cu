// Queries, keys and values of projections: bias, RMSNorm of heads, rotary embedding
// (arXiv:2104.09864), and their places in the key-value cache. A block computes a row, a warp a
// head. PACK divides half of a head.

// Rows of x [rows, heads * dim] are `stride` elements apart.
struct Part {
  const element* x;
  const element* bias;  // null: none
  i64 stride;
};

// `cosines` and `sines` [rows, dim] are null without a rotation; the first half of the sines is
// negated. The weights of heads' norms are null without norms. Keys and values of row t are written
// at place slots[t] * capacity + positions[t], or at place t if `slots` is null.
extern "C" __global__ void rope_forward(Part q, Part k, Part v, const element* q_norm, const element* k_norm, float eps,
                                        float offset, const element* cosines, const element* sines, element* q_out,
                                        element* k_out, element* v_out, const i64* slots, const i64* positions,
                                        i64 capacity, int heads, int kv_heads, int dim) {
  const i64 row = blockIdx.x;
  const i64 place = slots ? slots[row] * capacity + positions[row] : row;
  const int lane = threadIdx.x % 32, half = dim / 2;
  for (int head = threadIdx.x / 32; head < heads + 2 * kv_heads; head += blockDim.x / 32) {
    const bool query = head < heads, value = head >= heads + kv_heads;
    const int own = query ? head : value ? head - heads - kv_heads : head - heads;
    const Part part = query ? q : value ? v : k;
    const element* norm = query ? q_norm : value ? nullptr : k_norm;
    const element *x = part.x + row * part.stride + own * dim, *bias = part.bias ? part.bias + own * dim : nullptr;
    element* out = query ? q_out + (row * heads + own) * dim : (value ? v_out : k_out) + (place * kv_heads + own) * dim;
    float factor = 1;
    if (norm) {
      float squares = 0;
      for (int i = lane; i < dim; i += 32) {
        const float one = rounded<element>(wide(x[i]) + (bias ? wide(bias[i]) : 0.0f));
        squares += one * one;
      }
      factor = rsqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
    }
    const bool turned = cosines && !value;
    for (int i = lane * PACK; i < half; i += 32 * PACK) {
      float low[PACK], high[PACK], more[PACK];
      load<PACK>(x + i, low);
      load<PACK>(x + half + i, high);
      if (bias) {
        load<PACK>(bias + i, more);
        for (int j = 0; j < PACK; j++) low[j] = rounded<element>(low[j] + more[j]);
        load<PACK>(bias + half + i, more);
        for (int j = 0; j < PACK; j++) high[j] = rounded<element>(high[j] + more[j]);
      }
      if (norm) {
        load<PACK>(norm + i, more);
        for (int j = 0; j < PACK; j++) low[j] = rounded<element>(low[j] * factor * (more[j] + offset));
        load<PACK>(norm + half + i, more);
        for (int j = 0; j < PACK; j++) high[j] = rounded<element>(high[j] * factor * (more[j] + offset));
      }
      if (turned) {
        float cos_low[PACK], cos_high[PACK], sin_low[PACK], sin_high[PACK];
        load<PACK>(cosines + row * dim + i, cos_low);
        load<PACK>(cosines + row * dim + half + i, cos_high);
        load<PACK>(sines + row * dim + i, sin_low);
        load<PACK>(sines + row * dim + half + i, sin_high);
        for (int j = 0; j < PACK; j++) {
          const float first = low[j], second = high[j];
          low[j] = first * cos_low[j] + second * sin_low[j];
          high[j] = second * cos_high[j] + first * sin_high[j];
        }
      }
      store<PACK>(low, out + i);
      store<PACK>(high, out + half + i);
    }
  }
}
KERNEL(rope_forward)

// `d_all` [rows, (heads + 2 * kv_heads) * dim] receives the gradients of the three projections side
// by side, from the gradients of queries, keys and values. No biases and no norms.
extern "C" __global__ void rope_backward(const element* d_q, const element* d_k, const element* d_v,
                                         const element* cosines, const element* sines, element* d_all, int heads,
                                         int kv_heads, int dim) {
  const i64 row = blockIdx.x;
  const int lane = threadIdx.x % 32, half = dim / 2, all = heads + 2 * kv_heads;
  for (int head = threadIdx.x / 32; head < all; head += blockDim.x / 32) {
    const bool query = head < heads, value = head >= heads + kv_heads;
    const int own = query ? head : value ? head - heads - kv_heads : head - heads;
    const element* d = (query ? d_q : value ? d_v : d_k) + (row * (query ? heads : kv_heads) + own) * dim;
    element* out = d_all + (row * all + head) * dim;
    for (int i = lane * PACK; i < half; i += 32 * PACK) {
      float low[PACK], high[PACK];
      load<PACK>(d + i, low);
      load<PACK>(d + half + i, high);
      if (cosines && !value) {
        float cos_low[PACK], cos_high[PACK], sin_low[PACK], sin_high[PACK];
        load<PACK>(cosines + row * dim + i, cos_low);
        load<PACK>(cosines + row * dim + half + i, cos_high);
        load<PACK>(sines + row * dim + i, sin_low);
        load<PACK>(sines + row * dim + half + i, sin_high);
        for (int j = 0; j < PACK; j++) {
          const float first = low[j], second = high[j];
          low[j] = first * cos_low[j] + second * sin_high[j];
          high[j] = second * cos_high[j] + first * sin_low[j];
        }
      }
      store<PACK>(low, out + i);
      store<PACK>(high, out + half + i);
    }
  }
}
KERNEL(rope_backward)
