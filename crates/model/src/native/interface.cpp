// C interface for Rust. Tensors are pointers to at::Tensor, as in tch. Functions that can fail
// return null or a message for r1_free_message; no exception escapes.
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>

#include "adamw.h"
#include "arena.h"
#include "autograd.h"
#include "flash.h"
#include "guarded.h"
#include "kernels.h"
#include "operations.h"

namespace {

using r1::guarded;

const at::Tensor& tensor(const void* pointer) { return *static_cast<const at::Tensor*>(pointer); }

at::Tensor optional(const void* pointer) { return pointer ? tensor(pointer) : at::Tensor(); }

// Writes the tensors that are defined.
void give(const std::vector<at::Tensor>& tensors, void** out) {
  for (size_t i = 0; i < tensors.size(); i++)
    if (tensors[i].defined()) out[i] = new at::Tensor(tensors[i]);
}

}  // namespace

extern "C" {

void r1_free_message(char* message) { std::free(message); }

void* r1_arena() { return new r1::Arena; }

void r1_arena_free(void* arena) { delete static_cast<r1::Arena*>(arena); }

// A tensor of the type of `like`.
char* r1_arena_take(void* arena, const int64_t* shape, int64_t dimensions, const void* like, void** out) {
  return guarded([&] {
    const at::IntArrayRef sizes(shape, dimensions);
    *out = new at::Tensor(static_cast<r1::Arena*>(arena)->take(sizes, tensor(like).scalar_type()));
  });
}

// `support` and `ends` can be null; see logprobs.h.
char* r1_logprobs(void* model, const void* hidden, const void* head, const void* targets, const void* support,
                  const void* ends, double temperature, int64_t chunk, bool fused, void** out) {
  return guarded([&] {
    // Model of the CPU kernels; null for libtorch's operations.
    const auto* own = static_cast<std::shared_ptr<r1::Model>*>(model);
    r1::LogprobSettings settings{own ? *own : nullptr, temperature, std::max<int64_t>(chunk, 1), {}, {}, fused};
    if (support && ends) settings.support = tensor(support), settings.ends = tensor(ends);
    auto [logp, entropy] = r1::differentiable_logprobs(settings, tensor(hidden), tensor(head), tensor(targets));
    out[0] = new at::Tensor(std::move(logp));
    out[1] = new at::Tensor(std::move(entropy));
  });
}

// Whether libtorch has CUDA. libtorch caches the result of its first query.
bool r1_cuda_loaded() { return at::detail::getCUDAHooks().hasCUDART(); }

// Settings of libtorch's CUDA: sums of split bf16 products are in f32, and the calling thread
// computes on the GPU with this number.
char* r1_cuda_settings(int64_t index) {
  return guarded([&] {
    at::globalContext().setAllowBF16ReductionCuBLAS(false);
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    c10::impl::getDeviceGuardImpl(c10::kCUDA)->setDevice(device);
  });
}

int64_t r1_device_peak(int64_t index) {
  int64_t peak = -1;
  std::free(guarded([&] {
    const auto stats = c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(index));
    peak = stats.allocated_bytes[0].peak;  // of all pools
  }));
  return peak;
}

int64_t r1_device_free(int64_t index) {
  int64_t free_bytes = -1;
  std::free(guarded([&] {
    at::globalContext().lazyInitDevice(c10::kCUDA);
    auto* allocator = c10::getDeviceAllocator(c10::kCUDA);
    const auto device = static_cast<c10::DeviceIndex>(index);
    const auto stats = allocator->getDeviceStats(device);
    // Includes the unused part of libtorch's allocator cache.
    const int64_t kept = stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;
    free_bytes = static_cast<int64_t>(allocator->getMemoryInfo(device).first) + kept;
  }));
  return free_bytes;
}

char* r1_adamw(const void* const* tensors, int64_t count, const r1::AdamW* settings) {
  return guarded([&] {
    std::vector<at::Tensor> lists[4];
    for (int64_t i = 0; i < 4 * count; i++) lists[i / count].push_back(tensor(tensors[i]));
    r1::adamw(lists[0], lists[1], lists[2], lists[3], *settings);
  });
}

// `bias` can be null; `out` receives one tensor for each size. See autograd.h.
char* r1_stacked_linear(const void* x, const void* weight, const void* bias, const void* const* leaves,
                        int64_t leaf_count, const int64_t* sizes, int64_t size_count, void** out) {
  return guarded([&] {
    std::vector<at::Tensor> parts;
    for (int64_t i = 0; i < leaf_count; i++) parts.push_back(tensor(leaves[i]));
    const at::Tensor none;
    const r1::Stack stack{tensor(weight), bias ? tensor(bias) : none, {sizes, sizes + size_count}};
    const std::vector<at::Tensor> all = r1::differentiable_stacked_linear(tensor(x), stack, parts);
    for (size_t i = 0; i < all.size(); i++) out[i] = new at::Tensor(all[i]);
  });
}

char* r1_grouped_linear(const void* x, const void* weight, const void* ends, const void* const* leaves,
                        int64_t leaf_count, void** out) {
  return guarded([&] {
    std::vector<at::Tensor> parts;
    for (int64_t i = 0; i < leaf_count; i++) parts.push_back(tensor(leaves[i]));
    *out = new at::Tensor(r1::differentiable_grouped_linear(tensor(x), {tensor(weight), tensor(ends)}, parts));
  });
}

char* r1_forget_gradients(const void* const* tensors, int64_t count) {
  return guarded([&] {
    for (int64_t i = 0; i < count; i++) tensor(tensors[i]).mutable_grad() = at::Tensor();
  });
}

char* r1_flash(const void* const* qkv, const void* const* sequences, int64_t most_queries, int64_t most_keys,
               double scale, int64_t window, void** out) {
  return guarded([&] {
    const at::Tensor none;
    const r1::Sequences where{tensor(sequences[0]), tensor(sequences[1]), sequences[2] ? tensor(sequences[2]) : none,
                              most_queries, most_keys};
    *out = new at::Tensor(r1::flash(tensor(qkv[0]), tensor(qkv[1]), tensor(qkv[2]), where, scale, window));
  });
}

void r1_kernels_launcher(r1::Launcher launcher) { r1::set_launcher(launcher); }

// `out` receives the norm and the sum; `delta` can be null. See kernels.h for these functions.
char* r1_kernel_add_norm(const void* x, const void* delta, const void* weight, double eps, double offset, void** out) {
  return guarded([&] {
    give(r1::differentiable_add_norm(tensor(x), optional(delta), tensor(weight), eps, offset), out);
  });
}

char* r1_kernel_gated(const void* gate, const void* up, bool gelu, void** out) {
  return guarded([&] { give({r1::differentiable_gated(tensor(gate), tensor(up), gelu)}, out); });
}

// `parts`: projections, biases and norms of heads (null: none), cosines and sines (null: none);
// `places`: null, or keys, values, slots and positions.
char* r1_kernel_heads(const void* const* parts, const void* const* places, double eps, double offset, int64_t dim,
                      void** out) {
  return guarded([&] {
    r1::Heads heads;
    for (int i = 0; i < 3; i++) heads.parts[i] = tensor(parts[i]), heads.biases[i] = optional(parts[3 + i]);
    for (int i = 0; i < 2; i++) heads.norms[i] = optional(parts[6 + i]);
    heads.cosines = optional(parts[8]), heads.sines = optional(parts[9]);
    heads.eps = eps, heads.offset = offset, heads.dim = dim;
    r1::Places own;
    if (places) own = {tensor(places[0]), tensor(places[1]), tensor(places[2]), tensor(places[3])};
    give(r1::differentiable_rotated_heads(heads, own), out);
  });
}

// `tensors`: queries, keys, values, offsets, lengths.
char* r1_kernel_attention(const void* const* tensors, int64_t most_keys, double scale, int64_t window, void** out) {
  return guarded([&] {
    const auto at = [&](int i) -> const at::Tensor& { return tensor(tensors[i]); };
    give({r1::decode_attention(at(0), at(1), at(2), at(3), at(4), most_keys, scale, window)}, out);
  });
}

// Counts the operations of this thread from now on; see operations.h.
char* r1_count_operations(void** out) {
  return guarded([&] { *out = new r1::Operations; });
}

// Ends counting. `each` receives every name with its count.
void r1_counted_operations(void* operations, void (*each)(void*, const char*, int64_t), void* target) {
  auto* counted = static_cast<r1::Operations*>(operations);
  for (const auto& [name, count] : counted->finish()) each(target, name.c_str(), count);
  delete counted;
}

}  // extern "C"
