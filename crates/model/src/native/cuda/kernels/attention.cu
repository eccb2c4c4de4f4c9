// Attention of one query per sequence over the key-value cache, in bf16 with the matrix units of a
// GPU. A block reads a part of the keys and values of one key head once, for GROUP of the query heads
// that share it; a second kernel joins the parts (Flash-Decoding: split keys, arXiv:2205.14135). HEAD
// is the dimension of a head, a multiple of 8; GROUP is at most 8.
//
// A warp takes SLICE keys at a time. Scores [keys, query heads] and sums of values [dimensions, query
// heads] are fragments of the 16 x 8 results of mma.m16n8k16 (PTX ISA, "Matrix Fragments"). The order
// of the dimensions within a product is free, so that each thread loads 16 bytes at once.

constexpr int WARPS = 4, THREADS = 32 * WARPS, SLICE = 16, TILE = WARPS * SLICE;
constexpr int PIECES = HEAD / 8;            // 16-byte loads of a key
constexpr int CHUNKS = (PIECES + 3) / 4;    // of 4 pieces, for the scores
constexpr int SETS = (PIECES + 7) / 8;      // of 8 pieces, for the values
constexpr float FLOOR = -1e30f;             // the score of no key

static_assert(sizeof(element) == 2 && HEAD % 8 == 0 && GROUP <= 8, "the sizes");

struct alignas(16) Piece {
  unsigned words[4];
};

__device__ inline Piece piece_of(const element* row, int piece, bool present) {
  return present && piece < PIECES ? *reinterpret_cast<const Piece*>(row + piece * 8) : Piece{};
}

// The first and the second numbers of two pairs.
__device__ inline unsigned firsts(unsigned a, unsigned b) { return (a & 0xffffu) | b << 16; }
__device__ inline unsigned seconds(unsigned a, unsigned b) { return a >> 16 | (b & 0xffff0000u); }

__device__ inline unsigned pair(float x, float y) {
  element first, second;
  narrow(x, first);
  narrow(y, second);
  return first.bits | static_cast<unsigned>(second.bits) << 16;
}

#ifndef R1_SHIM
// c [16, 8] += a [16, 16] b [16, 8], over the threads of a warp.
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The transpose of a matrix [8, 8] over the threads of a warp.
__device__ inline unsigned transposed(unsigned x) {
  unsigned out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(x));
  return out;
}
#endif

// Over the threads that have the same query heads.
__device__ inline float max_over_keys(float x) {
  for (int distance = 4; distance < 32; distance *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

__device__ inline float sum_over_keys(float x) {
  for (int distance = 4; distance < 32; distance *= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

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

// Blocks are (part, group of query heads, sequence). `queries` [B, heads, HEAD]; keys and values of
// sequence b are the `lengths`[b] rows [kv_heads, HEAD] from row `first_key`[b] on, and the query is
// at the last of them. `groups` groups of query heads share a key head. `window` > 0: only the last
// `window` keys. With one part, `out` [B, heads, HEAD] is the result; otherwise `sums` [B, heads,
// splits, HEAD] are sums of values, and `stats` [B, heads, splits, 2] the maximum of the scores and
// the sum of their exponentials (base 2).
extern "C" __global__ void __launch_bounds__(THREADS, HEAD <= 128 ? 3 : 2)
    attention_parts(const element* queries, const element* keys, const element* values, const int* first_key,
                    const int* lengths, element* out, float* sums, float* stats, int groups, int window,
                    float scale) {
  // Rows are 4 numbers longer, so that query heads are in other banks.
  __shared__ float joined[WARPS][GROUP][HEAD + 4], maxima[WARPS][8], totals[WARPS][8];
  const int split = blockIdx.x, splits = gridDim.x, sequence = blockIdx.z, kv_heads = gridDim.y / groups;
  const int heads = gridDim.y * GROUP, thread = threadIdx.x, warp = thread / 32;
  const int eighth = thread % 32 / 4, quarter = thread % 4;
  const Range range = part_of(lengths[sequence], window, split, splits);
  if (range.begin >= range.end) return;  // the whole block
  const i64 head = static_cast<i64>(sequence) * heads + blockIdx.y * GROUP, row = static_cast<i64>(kv_heads) * HEAD;
  const i64 base = first_key[sequence] * row + blockIdx.y / groups * HEAD;
  // Of query head `eighth`.
  Piece query[CHUNKS];
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) query[c] = piece_of(queries + (head + eighth) * HEAD, c * 4 + quarter, eighth < GROUP);
  // Of query heads 2 quarter and 2 quarter + 1.
  float own[SETS][4][4], maximum[2] = {FLOOR, FLOOR}, total[2] = {0, 0};
#pragma unroll
  for (int s = 0; s < SETS; s++)
    for (int t = 0; t < 4; t++)
      for (int i = 0; i < 4; i++) own[s][t][i] = 0;
#pragma unroll 1
  for (int slice = range.begin + warp * SLICE; slice < range.end; slice += TILE) {
    Piece key[CHUNKS][2], value[SETS][4];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int place = slice + eighth + 8 * r;
        key[c][r] = piece_of(keys + base + place * row, c * 4 + quarter, place < range.end);
      }
#pragma unroll
    for (int s = 0; s < SETS; s++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int place = slice + 2 * quarter + r % 2 + 8 * (r / 2);
        value[s][r] = piece_of(values + base + place * row, s * 8 + eighth, place < range.end);
      }
    float score[4] = {0, 0, 0, 0};
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        const Piece &one = key[c][0], &other = key[c][1];
        const unsigned a[4] = {one.words[half], other.words[half], one.words[half + 1], other.words[half + 1]};
        const unsigned b[2] = {query[c].words[half], query[c].words[half + 1]};
        multiply(score, a, b);
      }
    // Exponentials are powers of 2.
    float factor[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
      score[i] = slice + eighth + 8 * (i / 2) < range.end ? score[i] * (scale * 1.4426950408889634f) : FLOOR;
#pragma unroll
    for (int side = 0; side < 2; side++) {
      const float max = fmaxf(maximum[side], max_over_keys(fmaxf(score[side], score[side + 2])));
      factor[side] = exp2f(maximum[side] - max);
      maximum[side] = max;
      score[side] = exp2f(score[side] - max);
      score[side + 2] = exp2f(score[side + 2] - max);
      total[side] = total[side] * factor[side] + score[side] + score[side + 2];
    }
    const unsigned weights[2] = {transposed(pair(score[0], score[1])), transposed(pair(score[2], score[3]))};
#pragma unroll
    for (int s = 0; s < SETS; s++)
#pragma unroll
      for (int t = 0; t < 4; t++) {
        const Piece(&v)[4] = value[s];
        const unsigned a[4] = {firsts(v[0].words[t], v[1].words[t]), seconds(v[0].words[t], v[1].words[t]),
                               firsts(v[2].words[t], v[3].words[t]), seconds(v[2].words[t], v[3].words[t])};
        for (int i = 0; i < 4; i++) own[s][t][i] *= factor[i % 2];
        multiply(own[s][t], a, weights);
      }
  }
#pragma unroll
  for (int side = 0; side < 2; side++) {
    const float sum = sum_over_keys(total[side]);
    if (eighth > 0) continue;
    maxima[warp][2 * quarter + side] = maximum[side];
    totals[warp][2 * quarter + side] = sum;
  }
#pragma unroll
  for (int s = 0; s < SETS; s++)
    for (int t = 0; t < 4; t++)
      for (int i = 0; i < 4; i++) {
        const int g = 2 * quarter + i % 2, piece = s * 8 + eighth;
        if (g < GROUP && piece < PIECES) joined[warp][g][piece * 8 + 2 * t + i / 2] = own[s][t][i];
      }
  __syncthreads();
  for (int i = thread; i < GROUP * HEAD; i += THREADS) {
    const int g = i / HEAD, d = i % HEAD;
    float max = FLOOR, sum = 0, all = 0;
    for (int w = 0; w < WARPS; w++) max = fmaxf(max, maxima[w][g]);
    for (int w = 0; w < WARPS; w++) {
      const float share = exp2f(maxima[w][g] - max);
      sum += joined[w][g][d] * share;
      all += totals[w][g] * share;
    }
    if (splits == 1) {
      narrow(sum / all, out[head * HEAD + i]);
      continue;
    }
    const i64 part = (head + g) * splits + split;
    sums[part * HEAD + d] = sum;
    if (d == 0) {
      stats[part * 2] = max;
      stats[part * 2 + 1] = all;
    }
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
#pragma unroll 4
    for (int part = 0; part < parts; part++)
      sum += sums[(head * splits + part) * HEAD + i] * exp2f(own[2 * part] - max);
    narrow(parts > 0 ? sum / total : 0.0f, out[head * HEAD + i]);
  }
}
KERNEL(attention_join)
