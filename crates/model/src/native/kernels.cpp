// The kernels as functions of tensors: shapes, memory, grids and arguments; see kernels.h.
#include "kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <string>

namespace r1 {

namespace {

std::atomic<Launcher> launcher{nullptr};

// Packs of a thread in norm.cu.
constexpr int64_t KEEP = 4;
// Blocks of kernels that loop over rows, and of an attention step: a few for each processor of a
// large GPU, so that the order of sums does not depend on the device.
constexpr int64_t BLOCKS = 512;
// Keys of a tile and threads in attention.cu.
constexpr int64_t TILE = 64, ATTENTION_THREADS = 128;
// Columns of a product of the matrix units: query heads of a block.
constexpr int64_t MOST_GROUP = 8;

int64_t divided(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Threads for `count` pieces of work: warps, at most `limit`.
int64_t threads_for(int64_t count, int64_t limit) { return std::clamp<int64_t>(divided(count, 32) * 32, 32, limit); }

std::string define(const char* name, int64_t value) { return " -D" + std::string(name) + "=" + std::to_string(value); }

std::string element(const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, "kernels compute in f32 and bf16, not ",
              x.scalar_type());
  return x.scalar_type() == at::kBFloat16 ? "-DELEMENT_BF16" : "";
}

// Elements of one load: `pack` if the tensors and sizes are aligned to it, otherwise 1.
int64_t pack_of(std::initializer_list<const at::Tensor*> tensors, std::initializer_list<int64_t> sizes, int64_t pack) {
  for (const int64_t size : sizes)
    if (size % pack != 0) return 1;
  for (const at::Tensor* x : tensors) {
    if (!x->defined()) continue;
    if (reinterpret_cast<uintptr_t>(x->const_data_ptr()) % (pack * x->element_size()) != 0) return 1;
  }
  return pack;
}

int64_t full_pack(const at::Tensor& x) { return 16 / x.element_size(); }

const void* read(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
void* write(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }

// The arguments have the types of the kernel's parameters.
template <class... A>
void launch(const at::Tensor& on, const char* source, const std::string& definitions, const char* name,
            std::array<int64_t, 3> grid, int64_t threads, A... arguments) {
  const Launcher start = launcher.load();
  TORCH_CHECK(start, "the kernels have no launcher");
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return;
  TORCH_CHECK(grid[0] < (int64_t{1} << 31) && grid[1] < 65536 && grid[2] < 65536, name, " has too many blocks");
  at::RecordFunction counted(at::RecordScope::FUNCTION);
  if (counted.isActive()) counted.before("r1::" + std::string(name));
  void* pointers[] = {static_cast<void*>(&arguments)...};
  const uint32_t blocks[] = {static_cast<uint32_t>(grid[0]), static_cast<uint32_t>(grid[1]),
                             static_cast<uint32_t>(grid[2])};
  const int64_t device = on.is_cuda() ? on.get_device() : -1;
  char* message = start(device, source, definitions.c_str(), name, blocks, static_cast<uint32_t>(threads), pointers);
  if (!message) return;
  const std::string text = message;
  std::free(message);
  TORCH_CHECK(false, text);
}

void check_like(const at::Tensor& x, const at::Tensor& like) {
  TORCH_CHECK(!x.defined() || (x.device() == like.device() && x.scalar_type() == like.scalar_type()),
              "the tensors of a kernel have different types or devices");
}

// x as rows of `width`, whose elements are side by side.
at::Tensor rows_of(const at::Tensor& x, int64_t width) {
  const at::Tensor rows = x.dim() == 2 && x.size(1) == width ? x : x.reshape({-1, width});
  return rows.stride(1) == 1 || width == 1 ? rows : rows.contiguous();
}

int64_t norm_threads(int64_t width, int64_t pack) {
  const int64_t threads = threads_for(divided(width, pack), 1024);
  TORCH_CHECK(threads * pack * KEEP >= width, "a norm over ", width, " numbers is too wide for the kernel");
  return threads;
}

}  // namespace

void set_launcher(Launcher own) { launcher.store(own); }

Normed add_norm(const at::Tensor& given, const at::Tensor& added, const at::Tensor& weight, double eps, double offset) {
  const int64_t width = weight.numel();
  const at::Tensor x = rows_of(given, width), delta = added.defined() ? rows_of(added, width).contiguous() : added;
  check_like(weight, x);
  check_like(delta, x);
  TORCH_CHECK(!delta.defined() || delta.sizes() == x.sizes(), "a residual has another shape");
  const int64_t rows = x.size(0);
  const auto sizes = given.sizes();
  const Normed normed{delta.defined() ? at::empty(x.sizes(), x.options()) : x, at::empty(x.sizes(), x.options()),
                      at::empty({rows}, x.options().dtype(at::kFloat))};
  const int64_t pack = pack_of({&x, &delta, &weight}, {width, x.stride(0)}, full_pack(x));
  launch(x, "norm", element(x) + define("PACK", pack), "norm_forward", {rows, 1, 1}, norm_threads(width, pack), read(x),
         read(delta), read(weight), delta.defined() ? write(normed.sum) : nullptr, write(normed.out),
         write(normed.scale), x.stride(0), static_cast<int32_t>(width), static_cast<float>(eps),
         static_cast<float>(offset));
  return {delta.defined() ? normed.sum.view(sizes) : given, normed.out.view(sizes), normed.scale};
}

std::pair<at::Tensor, at::Tensor> add_norm_backward(const at::Tensor& given, const at::Tensor& weight,
                                                    const at::Tensor& scale, const at::Tensor& d_given,
                                                    const at::Tensor& d_added, double offset, bool weight_wanted) {
  const int64_t width = weight.numel();
  const at::Tensor sum = rows_of(given, width), d_out = rows_of(d_given, width).contiguous();
  const at::Tensor d_sum = d_added.defined() ? rows_of(d_added, width).contiguous() : d_added;
  check_like(d_out, sum);
  check_like(d_sum, sum);
  const int64_t rows = sum.size(0), blocks = std::min(rows, BLOCKS);
  const at::Tensor d_x = at::empty(sum.sizes(), sum.options());
  at::Tensor parts, d_weight;
  if (weight_wanted) parts = at::empty({blocks, width}, sum.options().dtype(at::kFloat));
  const int64_t pack = pack_of({&sum, &d_out, &d_sum, &weight}, {width, sum.stride(0)}, full_pack(sum));
  launch(sum, "norm", element(sum) + define("PACK", pack), "norm_backward", {blocks, 1, 1}, norm_threads(width, pack),
         read(sum), read(weight), read(scale), read(d_out), read(d_sum), write(d_x), write(parts), rows, sum.stride(0),
         static_cast<int32_t>(width), static_cast<float>(offset));
  if (weight_wanted) {
    d_weight = at::empty(weight.sizes(), weight.options());
    launch(sum, "norm", element(sum) + define("PACK", pack), "column_sums", {divided(width, 32), 1, 1}, 256, read(parts),
           write(d_weight), static_cast<int32_t>(blocks), static_cast<int32_t>(width));
  }
  return {d_x.view(given.sizes()), d_weight};
}

namespace {

// Arguments of both kernels of gated.cu.
struct Gated {
  at::Tensor gate, up;
  int64_t rows, width, pack, threads;
  std::string definitions;
  std::array<int64_t, 3> grid;

  Gated(const at::Tensor& gate_given, const at::Tensor& up_given, const at::Tensor& other)
      : gate(rows_of(gate_given, gate_given.size(-1))), up(rows_of(up_given, up_given.size(-1))) {
    TORCH_CHECK(gate.sizes() == up.sizes(), "gate and up have different shapes");
    check_like(up, gate);
    check_like(other, gate);
    rows = gate.size(0);
    width = gate.size(1);
    pack = pack_of({&gate, &up, &other}, {width, gate.stride(0), up.stride(0)}, full_pack(gate));
    threads = threads_for(divided(width, pack), 256);
    definitions = element(gate) + define("PACK", pack);
    grid = {rows, divided(width, pack * threads), 1};
  }
};

}  // namespace

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, bool gelu) {
  const at::Tensor out = at::empty(gate.sizes(), gate.options());
  const Gated own(gate, up, out);
  launch(out, "gated", own.definitions, "gated_forward", own.grid, own.threads, read(own.gate), read(own.up), write(out),
         own.gate.stride(0), own.up.stride(0), static_cast<int32_t>(own.width), static_cast<int32_t>(gelu));
  return out;
}

at::Tensor gated_backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& d_given, bool gelu) {
  const at::Tensor d_out = d_given.contiguous();
  const Gated own(gate, up, d_out);
  const at::Tensor both = at::empty({own.rows, 2 * own.width}, gate.options());
  launch(d_out, "gated", own.definitions, "gated_backward", own.grid, own.threads, read(own.gate), read(own.up),
         read(d_out), write(both), own.gate.stride(0), own.up.stride(0), static_cast<int32_t>(own.width),
         static_cast<int32_t>(gelu));
  return both;
}

namespace {

// The structure of rope.cu.
struct Part {
  const void* x;
  const void* bias;
  int64_t stride;
};

int64_t half_pack(std::initializer_list<const at::Tensor*> tensors, int64_t dim) { return pack_of(tensors, {dim / 2}, 2); }

// A warp a head.
int64_t head_threads(int64_t heads) { return std::min<int64_t>(heads, 32) * 32; }

}  // namespace

std::vector<at::Tensor> rotated_heads(const Heads& heads, const Places& places) {
  const int64_t dim = heads.dim;
  Part parts[3];
  at::Tensor own[3];
  TORCH_CHECK(dim > 0 && dim % 2 == 0, "a head of ", dim, " numbers has no halves");
  for (int i = 0; i < 3; i++) {
    own[i] = rows_of(heads.parts[i], heads.parts[i].size(-1));
    check_like(own[i], own[0]);
    check_like(heads.biases[i], own[0]);
    TORCH_CHECK(own[i].size(1) % dim == 0 && own[i].size(0) == own[0].size(0), "a projection has another shape");
    TORCH_CHECK(!heads.biases[i].defined() || heads.biases[i].numel() == own[i].size(1), "a bias has another shape");
    parts[i] = {read(own[i]), read(heads.biases[i]), own[i].stride(0)};
  }
  const int64_t rows = own[0].size(0), queries = own[0].size(1) / dim, keys = own[1].size(1) / dim;
  TORCH_CHECK(own[2].size(1) == own[1].size(1), "keys and values have different sizes");
  const at::Tensor cosines = heads.cosines.defined() ? heads.cosines.contiguous() : heads.cosines;
  const at::Tensor sines = heads.sines.defined() ? heads.sines.contiguous() : heads.sines;
  for (const at::Tensor* angle : {&cosines, &sines}) {
    check_like(*angle, own[0]);
    TORCH_CHECK(!angle->defined() || (angle->size(0) == rows && angle->size(1) == dim), "angles have another shape");
  }
  for (const at::Tensor& norm : heads.norms) check_like(norm, own[0]);
  const bool cached = places.keys.defined();
  int64_t capacity = 0;
  if (cached) {
    for (const at::Tensor* cache : {&places.keys, &places.values}) {
      check_like(*cache, own[0]);
      TORCH_CHECK(cache->dim() == 4 && cache->is_contiguous() && cache->size(2) == keys && cache->size(3) == dim,
                  "the cache has another shape");
    }
    for (const at::Tensor* place : {&places.slots, &places.positions})
      TORCH_CHECK(place->scalar_type() == at::kLong && place->is_contiguous() && place->numel() == rows,
                  "the places of tokens are lists of i64");
    capacity = places.keys.size(1);
  }
  const auto options = own[0].options();
  const at::Tensor q = at::empty({rows, queries, dim}, options);
  const at::Tensor k = cached ? places.keys : at::empty({rows, keys, dim}, options);
  const at::Tensor v = cached ? places.values : at::empty({rows, keys, dim}, options);
  int64_t pack = half_pack({&own[0], &own[1], &own[2], &heads.biases[0], &heads.biases[1], &heads.biases[2],
                            &heads.norms[0], &heads.norms[1], &cosines, &sines, &k, &v},
                           dim);
  for (const at::Tensor& part : own)
    if (part.stride(0) % pack != 0) pack = 1;
  launch(q, "rope", element(q) + define("PACK", pack), "rope_forward", {rows, 1, 1}, head_threads(queries + 2 * keys),
         parts[0], parts[1], parts[2], read(heads.norms[0]), read(heads.norms[1]), static_cast<float>(heads.eps),
         static_cast<float>(heads.offset), read(cosines), read(sines), write(q), write(k), write(v), read(places.slots),
         read(places.positions), capacity, static_cast<int32_t>(queries), static_cast<int32_t>(keys),
         static_cast<int32_t>(dim));
  if (cached) return {q, at::Tensor(), at::Tensor()};
  return {q, k, v};
}

at::Tensor rotated_heads_backward(const at::Tensor& q_given, const at::Tensor& k_given, const at::Tensor& v_given,
                                  const at::Tensor& cosines, const at::Tensor& sines) {
  const at::Tensor d_q = q_given.contiguous(), d_k = k_given.contiguous(), d_v = v_given.contiguous();
  const int64_t rows = d_q.size(0), queries = d_q.size(1), keys = d_k.size(1), dim = d_q.size(2);
  check_like(d_k, d_q);
  check_like(d_v, d_q);
  const at::Tensor all = at::empty({rows, (queries + 2 * keys) * dim}, d_q.options());
  const int64_t pack = half_pack({&d_q, &d_k, &d_v, &cosines, &sines, &all}, dim);
  launch(all, "rope", element(all) + define("PACK", pack), "rope_backward", {rows, 1, 1},
         head_threads(queries + 2 * keys), read(d_q), read(d_k), read(d_v), read(cosines), read(sines), write(all),
         static_cast<int32_t>(queries), static_cast<int32_t>(keys), static_cast<int32_t>(dim));
  return all;
}

namespace {

std::string logits_definitions(const at::Tensor& logits, at::ScalarType type, int64_t pack) {
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16, "kernels compute in f32 and bf16, not ", type);
  const std::string wide = logits.scalar_type() == at::kFloat ? " -DLOGITS_F32" : "";
  return (type == at::kBFloat16 ? "-DELEMENT_BF16" : "") + wide + define("PACK", pack);
}

void check_logits(const at::Tensor& logits, const at::Tensor& targets) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous(), "logits must be [N, V]");
  TORCH_CHECK(targets.scalar_type() == at::kLong && targets.is_contiguous() && targets.numel() == logits.size(0),
              "targets must be [N] i64");
}

}  // namespace

void sampled_logprobs(const at::Tensor& logits, const at::Tensor& targets, double temperature, at::Tensor logp,
                      at::Tensor entropy, at::Tensor lse) {
  check_logits(logits, targets);
  const int64_t vocab = logits.size(1), pack = pack_of({&logits}, {vocab}, full_pack(logits));
  launch(logits, "logprobs", logits_definitions(logits, logits.scalar_type(), pack), "logprobs_forward",
         {logits.size(0), 1, 1}, threads_for(divided(vocab, pack), 1024), read(logits), read(targets), write(logp),
         write(entropy), write(lse), static_cast<int32_t>(vocab), static_cast<float>(1 / temperature));
}

at::Tensor sampled_logprobs_backward(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                                     const at::Tensor& lse, const at::Tensor& entropy, const at::Tensor& d_logp,
                                     const at::Tensor& d_entropy, at::ScalarType type) {
  check_logits(logits, targets);
  const at::Tensor d = at::empty(logits.sizes(), logits.options().dtype(type));
  const int64_t vocab = logits.size(1), pack = pack_of({&logits, &d}, {vocab}, full_pack(logits));
  const int64_t threads = threads_for(divided(vocab, pack), 256);
  launch(logits, "logprobs", logits_definitions(logits, type, pack), "logprobs_backward",
         {logits.size(0), divided(vocab, pack * threads), 1}, threads, read(logits), read(targets), read(lse),
         read(entropy), read(d_logp), read(d_entropy), write(d), static_cast<int32_t>(vocab),
         static_cast<float>(1 / temperature));
  return d;
}

at::Tensor decode_attention(const at::Tensor& given, const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& first_key, const at::Tensor& lengths, int64_t most_keys, double scale,
                            int64_t window) {
  const at::Tensor q = given.contiguous();
  check_like(keys, q);
  check_like(values, q);
  TORCH_CHECK(q.dim() == 3 && keys.dim() == 3 && values.sizes() == keys.sizes() && keys.size(2) == q.size(2),
              "queries must be [B, H, D], keys and values [N, Hkv, D]");
  TORCH_CHECK(keys.is_contiguous() && values.is_contiguous(), "keys and values must be contiguous");
  const int64_t count = q.size(0), heads = q.size(1), kv_heads = keys.size(1), dim = q.size(2);
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 && heads % kv_heads == 0 && dim % 8 == 0 && dim <= 256, "no kernel for ",
              heads, " query heads, ", kv_heads, " key heads of ", dim, " in ", q.scalar_type());
  for (const at::Tensor* numbers : {&first_key, &lengths})
    TORCH_CHECK(numbers->scalar_type() == at::kInt && numbers->is_contiguous() && numbers->numel() >= count,
                "offsets and lengths are lists of i32");
  // Query heads of a block.
  int64_t group = heads / kv_heads;
  while (group > MOST_GROUP || heads / kv_heads % group != 0) group--;
  const int64_t groups = heads / kv_heads / group;
  const int64_t visible = window > 0 ? std::min(window, most_keys) : most_keys;
  const int64_t splits = std::clamp<int64_t>(BLOCKS / std::max<int64_t>(count * kv_heads * groups, 1), 1,
                                             std::max<int64_t>(divided(visible, TILE), 1));
  const at::Tensor out = at::empty(q.sizes(), q.options());
  at::Tensor sums, stats;
  if (splits > 1) {
    sums = at::empty({count, heads, splits, dim}, q.options().dtype(at::kFloat));
    stats = at::empty({count, heads, splits, 2}, q.options().dtype(at::kFloat));
  }
  const std::string definitions = element(q) + define("HEAD", dim) + define("GROUP", group);
  const auto limit = static_cast<int32_t>(window);
  launch(q, "attention", definitions, "attention_parts", {splits, kv_heads * groups, count}, ATTENTION_THREADS, read(q),
         read(keys), read(values), read(first_key), read(lengths), write(out), write(sums), write(stats),
         static_cast<int32_t>(groups), limit, static_cast<float>(scale));
  if (splits > 1)
    launch(q, "attention", definitions, "attention_join", {heads, count, 1}, ATTENTION_THREADS, read(sums), read(stats),
           read(lengths), write(out), static_cast<int32_t>(splits), limit);
  return out;
}

}  // namespace r1
