// What Rust calls. Tensors are pointers to at::Tensor, as tch holds them. A function that can fail returns null, or a
// message for r1_free_message; no exception gets out.
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstdlib>

#include "adamw.h"
#include "arena.h"
#include "autograd.h"
#include "flash.h"
#include "guarded.h"
#include "rowwise.h"
#include "step.h"

namespace {

using Handle = std::shared_ptr<r1::Model>;
using r1::guarded;

const at::Tensor& tensor(const void* pointer) { return *static_cast<const at::Tensor*>(pointer); }

std::vector<int64_t> numbers(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 1 && x.scalar_type() == at::kLong && x.device().is_cpu(), "expected a vector of i64");
  const at::Tensor flat = x.contiguous();
  return std::vector<int64_t>(flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel());
}

struct SpanView {
  int64_t slot, start, count;
  const uint32_t* ids;
};

}  // namespace

extern "C" {

void r1_free_message(char* message) { std::free(message); }

const char* r1_kernels() { return r1::kernels().name; }

int64_t r1_panel() { return r1::kernels().panel; }

void* r1_arena() { return new r1::Arena; }

void r1_arena_free(void* arena) { delete static_cast<r1::Arena*>(arena); }

// A tensor of the type of `like`.
char* r1_arena_take(void* arena, const int64_t* shape, int64_t dimensions, const void* like, void** out) {
  return guarded([&] {
    const at::IntArrayRef sizes(shape, dimensions);
    *out = new at::Tensor(static_cast<r1::Arena*>(arena)->take(sizes, tensor(like).scalar_type()));
  });
}

char* r1_model(const r1::Shape* shape, const void* frequencies, const void* const* parameters, int64_t count,
               void** out) {
  return guarded([&] {
    auto model = std::make_shared<r1::Model>();
    model->shape = *shape;
    model->frequencies = tensor(frequencies);
    TORCH_CHECK(model->frequencies.scalar_type() == at::kFloat && model->frequencies.numel() * 2 == shape->head_dim,
                "the rotary frequencies are not those of a head");
    for (int64_t i = 0; i < count; i++) {
      if (!parameters[i]) {
        model->parameters.emplace_back();
        continue;
      }
      const at::Tensor& parameter = tensor(parameters[i]);
      const at::ScalarType kind = tensor(parameters[0]).scalar_type();
      TORCH_CHECK(parameter.is_contiguous() && parameter.scalar_type() == kind && parameter.device().is_cpu() &&
                      (kind == at::kFloat || kind == at::kBFloat16),
                  "parameter ", i, " is not a contiguous tensor on the CPU in f32, or bf16 as all others");
      model->parameters.push_back(parameter);
    }
    *out = new Handle(std::move(model));
  });
}

void r1_model_free(void* model) { delete static_cast<Handle*>(model); }

char* r1_forward(void* model, const void* ids, const void* positions, const int64_t* lengths, int64_t rows,
                 bool inputs_only, void** out) {
  return guarded([&] {
    TORCH_CHECK(!(*static_cast<Handle*>(model))->half(), "a model in bf16 serves generation alone");
    r1::Batch batch{numbers(tensor(ids)), numbers(tensor(positions)), {0}};
    for (int64_t row = 0; row < rows; row++) {
      TORCH_CHECK(lengths[row] >= 0, "a row has a negative length");
      batch.starts.push_back(batch.starts.back() + lengths[row]);
    }
    const int64_t tokens = batch.starts.back();
    TORCH_CHECK(static_cast<int64_t>(batch.ids.size()) == tokens && static_cast<int64_t>(batch.positions.size()) == tokens,
                "ids, positions and lengths disagree about the number of tokens");
    *out = new at::Tensor(r1::differentiable_forward(*static_cast<Handle*>(model), batch, inputs_only));
  });
}

char* r1_step(void* model, const void* const* keys, const void* const* values, int64_t capacity, const SpanView* spans,
              int64_t count, bool (*stop)(const void*), const void* context, void** out) {
  return guarded([&] {
    r1::Model& owner = **static_cast<Handle*>(model);
    r1::Cache cache;
    cache.capacity = capacity;
    const int64_t slots = tensor(keys[0]).size(0);
    const int64_t room = slots * owner.shape.keys() * capacity;
    TORCH_CHECK(capacity % r1::kernels().panel == 0, "the cache's capacity is not a whole number of panels");
    for (int64_t l = 0; l < owner.shape.layers; l++) {
      TORCH_CHECK(tensor(keys[l]).numel() == room && tensor(values[l]).numel() == room, "the cache has another shape");
      cache.key_layers.push_back(tensor(keys[l]).mutable_data_ptr<float>());
      cache.value_layers.push_back(tensor(values[l]).mutable_data_ptr<float>());
    }
    std::vector<r1::Piece> pieces;
    for (int64_t i = 0; i < count; i++) {
      const SpanView& span = spans[i];
      TORCH_CHECK(span.slot >= 0 && span.slot < slots && span.count > 0 && span.start >= 0 &&
                      span.start + span.count <= capacity,
                  "a span is outside the cache");
      for (int64_t t = 0; t < span.count; t++)
        TORCH_CHECK(span.ids[t] < owner.shape.vocab, "token id ", span.ids[t], " is outside the vocabulary");
      pieces.push_back({span.slot, span.start, span.count, span.ids});
    }
    at::Tensor logits = r1::step(owner, cache, pieces, {stop, context});
    if (logits.defined()) *out = new at::Tensor(std::move(logits));
  });
}

// `support` and `ends` are null, or what positions choose among; see logprobs.h.
char* r1_logprobs(void* model, const void* hidden, const void* head, const void* targets, const void* support,
                  const void* ends, double temperature, int64_t chunk, void** out) {
  return guarded([&] {
    TORCH_CHECK(!model || !(*static_cast<Handle*>(model))->half(), "a model in bf16 serves generation alone");
    r1::Question question{model ? *static_cast<Handle*>(model) : nullptr, temperature, std::max<int64_t>(chunk, 1), {}, {}};
    if (support && ends) question.support = tensor(support), question.ends = tensor(ends);
    auto [logp, entropy] = r1::differentiable_logprobs(question, tensor(hidden), tensor(head), tensor(targets));
    out[0] = new at::Tensor(std::move(logp));
    out[1] = new at::Tensor(std::move(entropy));
  });
}

// Whether libtorch has found the CUDA torch. What it finds when first asked, here or elsewhere, it keeps.
bool r1_cuda_loaded() { return at::detail::getCUDAHooks().hasCUDART(); }

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
    // What it keeps for later and nobody uses can be had as well.
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

// `bias` is null where there is none.
char* r1_linear_rows(const void* x, const void* weight, const void* bias, void** out) {
  return guarded([&] {
    const at::Tensor none;
    *out = new at::Tensor(r1::linear_rows(tensor(x), tensor(weight), bias ? tensor(bias) : none));
  });
}

char* r1_gated_rows(const void* gate, const void* up, bool gelu, void** out) {
  return guarded([&] { *out = new at::Tensor(r1::gated_rows(tensor(gate), tensor(up), gelu)); });
}

char* r1_attend_rows(const void* const* qkv, const void* slots, const void* positions, double scale, int64_t window,
                     void** out) {
  return guarded([&] {
    *out = new at::Tensor(
        r1::attend_rows(tensor(qkv[0]), tensor(qkv[1]), tensor(qkv[2]), tensor(slots), tensor(positions), scale, window));
  });
}

void r1_softmax(float* row, int64_t count, float scale) { r1::kernels().softmax(count, count, scale, row); }

}  // extern "C"
