// Executes the kernels on the CPU, for tests: their source is compiled as C++ with this file in
// front. The threads of a block are fibers of one thread of the machine. A warp runs until the next
// barrier of its block before another one does, in reverse order in every second block, so that the
// result changes where a barrier is missing. A barrier that not all threads of its block or warp
// reach is an error, as is a block whose size is not a multiple of a warp.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#define R1_SHIM
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

struct Index {
  unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

static inline float __uint_as_float(unsigned bits) {
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

static inline unsigned __float_as_uint(float x) {
  unsigned out;
  std::memcpy(&out, &x, 4);
  return out;
}

static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

namespace shim {

enum class State { Ready, Block, Warp, Done };

struct Fiber {
  ucontext_t context;
  State state;
  int turn;  // of its shuffles
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current;
// Two turns, so that one barrier a shuffle is enough.
static std::vector<float> exchanged[2];
// The operands of a product, or a pair.
struct Fragment {
  unsigned a[4], b[2];
};
static std::vector<Fragment> fragments[2];
static void (*body)(void*);
static void* body_data;

static inline void wait(State state) {
  const unsigned own = current;
  fibers[own].state = state;
  swapcontext(&fibers[own].context, &scheduler);
}

static void start() {
  body(body_data);
  wait(State::Done);
}

// Runs the threads of one block; false for a barrier that not all reach.
static bool block(unsigned threads, std::vector<char>& stacks, size_t stack, bool reverse) {
  fibers.resize(threads);
  for (auto& turn : exchanged) turn.assign(threads, 0);
  for (auto& turn : fragments) turn.assign(threads, {});
  for (unsigned i = 0; i < threads; i++) {
    Fiber& fiber = fibers[i];
    fiber.state = State::Ready;
    fiber.turn = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks.data() + i * stack;
    fiber.context.uc_stack.ss_size = stack;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, start, 0);
  }
  const auto all = [&](unsigned first, unsigned last, State state) {
    for (unsigned i = first; i < last; i++)
      if (fibers[i].state != state) return false;
    return true;
  };
  const auto ready = [&](unsigned first, unsigned last) {
    for (unsigned i = first; i < last; i++) fibers[i].state = State::Ready;
  };
  const unsigned warps = threads / 32;
  for (;;) {
    bool moved = false;
    for (unsigned turn = 0; turn < warps; turn++) {
      const unsigned first = 32 * (reverse ? warps - 1 - turn : turn);
      // A warp runs as far as it can.
      for (bool again = true; again;) {
        for (unsigned lane = 0; lane < 32; lane++) {
          const unsigned i = first + (reverse ? 31 - lane : lane);
          if (fibers[i].state != State::Ready) continue;
          moved = true;
          current = i;
          threadIdx = {i, 0, 0};
          swapcontext(&scheduler, &fibers[i].context);
        }
        again = all(first, first + 32, State::Warp);
        if (again) ready(first, first + 32);
      }
    }
    if (all(0, threads, State::Done)) return true;
    if (!moved) return false;
    if (all(0, threads, State::Block)) ready(0, threads);
  }
}

template <class... A, size_t... N>
const char* run(void (*kernel)(A...), void** arguments, const unsigned* grid, unsigned threads,
                std::index_sequence<N...>) {
  if (threads == 0 || threads % 32 || threads > 1024) return "the threads of a block are not warps";
  auto call = [&] { kernel(*static_cast<A*>(arguments[N])...); };
  body = [](void* data) { (*static_cast<decltype(call)*>(data))(); };
  body_data = &call;
  blockDim = {threads, 1, 1};
  gridDim = {grid[0], grid[1], grid[2]};
  const size_t stack = 64 << 10;
  std::vector<char> stacks(threads * stack);
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        if (!block(threads, stacks, stack, (x + y + z) % 2)) return "not all threads of a block reach a barrier";
      }
  return nullptr;
}

template <class... A>
const char* run(void (*kernel)(A...), void** arguments, const unsigned* grid, unsigned threads) {
  return run(kernel, arguments, grid, threads, std::index_sequence_for<A...>{});
}

}  // namespace shim

static inline void __syncthreads() { shim::wait(shim::State::Block); }

static inline float __shfl_xor_sync(unsigned mask, float x, int distance) {
  if (mask != 0xffffffffu) return NAN;
  const unsigned own = shim::current;
  auto& exchanged = shim::exchanged[shim::fibers[own].turn ^= 1];
  exchanged[own] = x;
  shim::wait(shim::State::Warp);
  return exchanged[own ^ static_cast<unsigned>(distance)];
}

// The fragments of the threads of this warp.
static inline const shim::Fragment* shared(const shim::Fragment& own) {
  const unsigned thread = shim::current;
  auto& fragments = shim::fragments[shim::fibers[thread].turn ^= 1];
  fragments[thread] = own;
  shim::wait(shim::State::Warp);
  return &fragments[thread / 32 * 32];
}

static inline float half(unsigned pair, int place) { return __uint_as_float(pair >> (16 * place) << 16); }

// See attention.cu.
static inline void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const shim::Fragment* all = shared({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  const int lane = static_cast<int>(shim::current % 32);
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) {
      const int place = k % 8 / 2;
      c[i] += half(all[row % 8 * 4 + place].a[row / 8 + k / 8 * 2], k % 2) * half(all[column * 4 + place].b[k / 8], k % 2);
    }
  }
}

static inline unsigned transposed(unsigned x) {
  const shim::Fragment* all = shared({{x, 0, 0, 0}, {0, 0}});
  const int lane = static_cast<int>(shim::current % 32), row = lane / 4;
  const auto at = [&](int column) { return all[column * 4 + row / 2].a[0] >> (16 * (row % 2)) & 0xffffu; };
  return at(lane % 4 * 2) | at(lane % 4 * 2 + 1) << 16;
}

#define R1_EMULATED(name)                                                                              \
  extern "C" const char* emulate_##name(void** arguments, const unsigned* grid, unsigned threads) {    \
    return shim::run(&name, arguments, grid, threads);                                                 \
  }
