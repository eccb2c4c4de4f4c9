// C interface of the CPU kernels, with the rules of ../interface.cpp.
#include "../autograd.h"
#include "../guarded.h"
#include "learn.h"
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

const char* r1_kernels() { return r1::kernels().name; }

int64_t r1_panel() { return r1::kernels().panel; }

char* r1_model(const r1::Shape* shape, const void* frequencies, const void* const* parameters, int64_t count,
               void** out) {
  return guarded([&] {
    auto model = std::make_shared<r1::Model>();
    model->shape = *shape;
    model->frequencies = tensor(frequencies);
    TORCH_CHECK(model->frequencies.scalar_type() == at::kFloat && model->frequencies.numel() * 2 == shape->head_dim,
                "the rotary frequencies do not match the head size");
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
    TORCH_CHECK(!(*static_cast<Handle*>(model))->half(), "a bf16 model supports generation only");
    r1::Batch batch{numbers(tensor(ids)), numbers(tensor(positions)), {0}};
    for (int64_t row = 0; row < rows; row++) {
      TORCH_CHECK(lengths[row] >= 0, "a row has a negative length");
      batch.starts.push_back(batch.starts.back() + lengths[row]);
    }
    const int64_t tokens = batch.starts.back();
    TORCH_CHECK(static_cast<int64_t>(batch.ids.size()) == tokens && static_cast<int64_t>(batch.positions.size()) == tokens,
                "ids, positions and lengths have different numbers of tokens");
    *out = new at::Tensor(r1::differentiable_forward(*static_cast<Handle*>(model), batch, inputs_only));
  });
}

// Sets the hook of this thread; without a function there is none.
void r1_layer_hook(bool (*done)(void*, int64_t), void* context) { r1::layer_hook = {done, context}; }

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

// `bias` can be null.
char* r1_linear_rows(const void* x, const void* weight, const void* bias, void** out) {
  return guarded([&] {
    const at::Tensor none;
    *out = new at::Tensor(r1::linear_rows(tensor(x), tensor(weight), bias ? tensor(bias) : none));
  });
}

char* r1_gated_rows(const void* gate, const void* up, bool gelu, void** out) {
  return guarded([&] { *out = new at::Tensor(r1::gated_rows(tensor(gate), tensor(up), gelu)); });
}

char* r1_attend_rows(const void* const* qkv, const void* sinks, const void* slots, const void* positions, double scale,
                     int64_t window, void** out) {
  return guarded([&] {
    const at::Tensor own_sinks = sinks != nullptr ? tensor(sinks) : at::Tensor();
    *out = new at::Tensor(r1::attend_rows(tensor(qkv[0]), tensor(qkv[1]), tensor(qkv[2]), own_sinks, tensor(slots),
                                          tensor(positions), scale, window));
  });
}

void r1_softmax(float* row, int64_t count, float scale) { r1::kernels().softmax(count, count, scale, row); }

}  // extern "C"
