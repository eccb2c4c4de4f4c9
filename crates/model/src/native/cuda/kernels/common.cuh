// Shared by the kernels: element types, loads of several elements, sums over a block. It precedes
// each kernel's source. Definitions of a compilation: ELEMENT_BF16 (otherwise f32) and PACK, the
// number of elements of one load, to which pointers and row lengths are aligned.
#ifdef R1_SHIM
#define KERNEL(name) R1_EMULATED(name)
#else
#define KERNEL(name)
#endif

using i64 = long long;

struct bf16 {
  unsigned short bits;
};

#ifdef ELEMENT_BF16
using element = bf16;
#else
using element = float;
#endif

#ifndef PACK
#define PACK 1
#endif

__device__ inline float wide(float x) { return x; }
__device__ inline float wide(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

__device__ inline void narrow(float x, float& out) { out = x; }
// To the nearest, ties to even, as libtorch rounds. A NaN stays one.
__device__ inline void narrow(float x, bf16& out) {
  const unsigned bits = __float_as_uint(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out.bits = static_cast<unsigned short>(nan ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The value of x after rounding to the element type.
template <class T>
__device__ inline float rounded(float x) {
  T out;
  narrow(x, out);
  return wide(out);
}

template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <int N, class T>
__device__ inline void load(const T* from, float* to) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int j = 0; j < N; j++) to[j] = wide(pack.at[j]);
}

template <int N, class T>
__device__ inline void store(const float* from, T* to) {
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; j++) narrow(from[j], pack.at[j]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

__device__ inline float warp_sum(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// The sum over a block of at most 1,024 threads, in every thread and in a fixed order.
__device__ inline float block_sum(float x) {
  __shared__ float parts[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  x = warp_sum(x);
  __syncthreads();  // the parts of an earlier sum have been read
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? parts[lane] : 0.0f);
}
