// Attention of one query per sequence over the key-value cache. A block reads a part of the keys
// and values of one key head once, for the GROUP query heads that share it; a second kernel joins
// the parts (Flash-Decoding: split keys, arXiv:2205.14135). HEAD is the dimension of a head, PACK
// the number of elements in 16 bytes.

constexpr int THREADS = 128, TILE = 64;
constexpr int PIECES = HEAD / PACK;       // loads of a key
constexpr int LANES = 4;                  // threads that compute the scores of one key
constexpr int ROWS = THREADS / PIECES;    // values that are added at the same time
constexpr float FLOOR = -1e30f;           // the score of no key

static_assert(HEAD % PACK == 0 && PIECES <= THREADS, "the head size");

// The keys of part `split` of sequence `length`: from begin to end.
struct Range {
  int begin, end;
};

__device__ inline int part_length(int count, int splits) {
  const int each = (count + splits - 1) / splits;
  return (each + TILE - 1) / TILE * TILE;
}

__device__ inline int first_visible(int length, int window) {
  return window > 0 && length > window ? length - window : 0;
}

__device__ inline Range part_of(int length, int window, int split, int splits) {
  const int first = first_visible(length, window), each = part_length(length - first, splits);
  const int begin = first + split * each;
  return {begin < length ? begin : length, begin + each < length ? begin + each : length};
}

// Blocks are (part, key head, sequence). `queries` [B, heads, HEAD]; keys and values of sequence b
// are the `lengths`[b] rows [kv_heads, HEAD] from row `first_key`[b] on, and the query is at the
// last of them. `window` > 0: only the last `window` keys. With one part, `out` [B, heads, HEAD] is
// the result; otherwise `sums` [B, heads, splits, HEAD] are sums of values, and `stats` [B, heads,
// splits, 2] the maximum of the scores and the sum of their exponentials (base 2).
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_parts(const element* queries, const element* keys, const element* values, const int* first_key,
                    const int* lengths, element* out, float* sums, float* stats, int kv_heads, int window,
                    float scale) {
  __shared__ float query[GROUP * HEAD], scores[GROUP][TILE], factors[GROUP], totals[GROUP], maxima[GROUP];
  const int split = blockIdx.x, splits = gridDim.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  const int heads = kv_heads * GROUP, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const Range range = part_of(lengths[sequence], window, split, splits);
  if (range.begin >= range.end) return;  // the whole block
  const i64 head = static_cast<i64>(sequence) * heads + kv_head * GROUP, row = static_cast<i64>(kv_heads) * HEAD;
  const i64 base = first_key[sequence] * row + kv_head * HEAD;
  // Exponentials are powers of 2.
  for (int i = thread; i < GROUP * HEAD; i += THREADS)
    query[i] = wide(queries[head * HEAD + i]) * scale * 1.4426950408889634f;
  if (thread < GROUP) {
    totals[thread] = 0;
    maxima[thread] = FLOOR;
  }
  float own[GROUP][PACK];
  for (int g = 0; g < GROUP; g++)
    for (int j = 0; j < PACK; j++) own[g][j] = 0;
  const int piece = thread % PIECES, group_row = thread / PIECES;
  __syncthreads();
  for (int tile = range.begin; tile < range.end; tile += TILE) {
    const int count = range.end - tile < TILE ? range.end - tile : TILE;
    // Scores: LANES threads a key.
    for (int k = thread / LANES; k < TILE; k += THREADS / LANES) {
      float dots[GROUP];
      for (int g = 0; g < GROUP; g++) dots[g] = 0;
      if (k < count) {
        const element* key = keys + base + (tile + k) * row;
#pragma unroll
        for (int p = thread % LANES; p < PIECES; p += LANES) {
          float some[PACK];
          load<PACK>(key + p * PACK, some);
#pragma unroll
          for (int g = 0; g < GROUP; g++)
            for (int j = 0; j < PACK; j++) dots[g] += some[j] * query[g * HEAD + p * PACK + j];
        }
      }
#pragma unroll
      for (int g = 0; g < GROUP; g++) {
        for (int distance = LANES / 2; distance > 0; distance /= 2)
          dots[g] += __shfl_xor_sync(0xffffffffu, dots[g], distance);
        if (thread % LANES == 0) scores[g][k] = k < count ? dots[g] : FLOOR;
      }
    }
    __syncthreads();
    // Weights: a warp a query head.
    for (int g = warp; g < GROUP; g += THREADS / 32) {
      const float first = scores[g][lane], second = scores[g][lane + 32], before = maxima[g];
      const float max = fmaxf(before, warp_max(fmaxf(first, second)));
      const float by_first = exp2f(first - max), by_second = exp2f(second - max);
      const float sum = warp_sum(by_first + by_second);
      scores[g][lane] = by_first;
      scores[g][lane + 32] = by_second;
      if (lane == 0) {
        const float factor = exp2f(before - max);
        factors[g] = factor;
        totals[g] = totals[g] * factor + sum;
        maxima[g] = max;
      }
    }
    __syncthreads();
    // Weighted values: a thread adds PACK dimensions of every ROWS-th key.
    if (group_row < ROWS) {
      for (int g = 0; g < GROUP; g++)
        for (int j = 0; j < PACK; j++) own[g][j] *= factors[g];
      for (int k = group_row; k < count; k += ROWS) {
        float some[PACK];
        load<PACK>(values + base + (tile + k) * row + piece * PACK, some);
#pragma unroll
        for (int g = 0; g < GROUP; g++)
          for (int j = 0; j < PACK; j++) own[g][j] += scores[g][k] * some[j];
      }
    }
    __syncthreads();
  }
  // The sum over the ROWS threads of each dimension, in order, in the place of the queries.
  for (int turn = 0; turn < ROWS; turn++) {
    if (group_row == turn) {
      for (int g = 0; g < GROUP; g++)
        for (int j = 0; j < PACK; j++) {
          float& sum = query[g * HEAD + piece * PACK + j];
          sum = turn == 0 ? own[g][j] : sum + own[g][j];
        }
    }
    __syncthreads();
  }
  for (int i = thread; i < GROUP * HEAD; i += THREADS) {
    const int g = i / HEAD;
    if (splits == 1)
      narrow(query[i] / totals[g], out[head * HEAD + i]);
    else
      sums[((head + g) * splits + split) * HEAD + i % HEAD] = query[i];
  }
  if (splits > 1 && thread < GROUP) {
    stats[((head + thread) * splits + split) * 2] = maxima[thread];
    stats[((head + thread) * splits + split) * 2 + 1] = totals[thread];
  }
}
KERNEL(attention_parts)

// Joins the parts of a query head; blocks are (query head, sequence).
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_join(const float* sums, const float* stats, const int* lengths, element* out, int splits, int window) {
  const int heads = gridDim.x, sequence = blockIdx.y, length = lengths[sequence];
  const i64 head = static_cast<i64>(sequence) * heads + blockIdx.x;
  const int count = length - first_visible(length, window);
  // Parts without keys were not written.
  const int each = part_length(count, splits), parts = count > 0 ? (count + each - 1) / each : 0;
  const float* own = stats + head * splits * 2;
  float max = FLOOR, total = 0;
  for (int part = 0; part < parts; part++) max = fmaxf(max, own[2 * part]);
  for (int part = 0; part < parts; part++) total += own[2 * part + 1] * exp2f(own[2 * part] - max);
  for (int i = threadIdx.x; i < HEAD; i += THREADS) {
    float sum = 0;
    for (int part = 0; part < parts; part++)
      sum += sums[(head * splits + part) * HEAD + i] * exp2f(own[2 * part] - max);
    narrow(parts > 0 ? sum / total : 0.0f, out[head * HEAD + i]);
  }
}
KERNEL(attention_join)
