// Products of a model's weights, with packed f32 weights or bf16 weights in place.
#include "common.h"

#include <algorithm>
#include <cstring>

namespace r1 {

namespace {

const uint16_t* bits(const at::Tensor& tensor) {
  return reinterpret_cast<const uint16_t*>(tensor.const_data_ptr<at::BFloat16>());
}

void widen(int64_t count, const uint16_t* from, float* to) {
  for (int64_t i = 0; i < count; i++) {
    const uint32_t wide = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &wide, sizeof wide);
  }
}

}  // namespace

void multiply(int64_t m, int64_t k, const float* a, int64_t a_row, std::initializer_list<Rows> parts, float* c,
              int64_t c_row, const float* init, int64_t init_row) {
  const Kernels& kernel = kernels();
  const int64_t row = stride((k + 31) / 32 * 32);
  float* packed = scratch(0, m * row);
  kernel.pack_inputs(m, k, a, a_row, packed, row);
  int64_t n = 0;
  for (const Rows& part : parts) n += part.count;
  const bool small = m * n * k < (1 << 18);
  // Several pieces per thread, for load balance.
  const int64_t pieces = small ? 1 : 8 * at::get_num_threads();
  const int64_t size = std::clamp<int64_t>(n / pieces / 8 * 8, 8, 64);
  // A piece is within one part.
  int64_t total = 0;
  for (const Rows& part : parts) total += r1::parts(part.count, size);
  const auto piece = [&](int64_t index) {
    int64_t column = 0;
    for (const Rows& part : parts) {
      const int64_t own = r1::parts(part.count, size);
      if (index < own) {
        const int64_t first = index * size, at = column + first;
        kernel.dots(m, std::min(size, part.count - first), k, part.data + first * k, packed, row, c + at, c_row,
                    init ? init + at : nullptr, init_row);
        return;
      }
      index -= own;
      column += part.count;
    }
  };
  if (small) {
    for (int64_t index = 0; index < total; index++) piece(index);
  } else {
    tasks(total, piece);
  }
}

void gated(int64_t m, int64_t k, Rows gate, Rows up, const float* packed, int64_t row, float* y, int64_t y_row) {
  const Kernels& kernel = kernels();
  const int64_t n = gate.count;
  float* both = scratch(2, m * 2 * n);
  kernel.dots(m, n, k, gate.data, packed, row, both, 2 * n, nullptr, 0);
  kernel.dots(m, n, k, up.data, packed, row, both + n, 2 * n, nullptr, 0);
  for (int64_t t = 0; t < m; t++) kernel.swiglu(n, both + t * 2 * n, both + t * 2 * n + n, y + t * y_row);
}

void Model::project_gated(int64_t layer, int64_t m, const float* a, int64_t a_row, float* y, int64_t y_row) const {
  const int64_t k = shape.hidden, row = stride((k + 31) / 32 * 32);
  float* packed = scratch(0, m * row);
  kernels().pack_inputs(m, k, a, a_row, packed, row);
  const Rows gate = rows(layer, GATE), up = rows(layer, UP);
  // Blocks of rows: their results are still in the cache when they are read.
  constexpr int64_t size = 32;
  tasks(parts(shape.inner, size), [&](int64_t piece) {
    const int64_t first = piece * size, count = std::min(size, shape.inner - first);
    gated(m, k, {gate.data + first * k, count}, {up.data + first * k, count}, packed, row, y + first, y_row);
  });
}

Rows Model::rows(int64_t layer, Slot slot) const {
  const at::Tensor& weight = parameters[place(layer, slot)];
  return {bits(weight), weight.size(0)};
}

Rows Model::head_rows() const { return {bits(head()), shape.vocab}; }

void Model::project(int64_t layer, Projection projection, int64_t m, const float* a, int64_t a_row, float* c,
                    int64_t c_row, const float* init, int64_t init_row) const {
  const auto halves = [&](int64_t k, std::initializer_list<Rows> parts) {
    multiply(m, k, a, a_row, parts, c, c_row, init, init_row);
  };
  const auto packs = [&](const Panels& weight) { multiply(m, a, a_row, weight, c, c_row, init, init_row); };
  const LayerPanels& own = panels[layer];
  switch (projection) {
    case Projection::QKV:
      half() ? halves(shape.hidden, {rows(layer, Q), rows(layer, K), rows(layer, V)}) : packs(own.qkv);
      break;
    case Projection::OUT:
      half() ? halves(shape.queries(), {rows(layer, O)}) : packs(own.o);
      break;
    case Projection::GATE_UP:
      half() ? halves(shape.hidden, {rows(layer, GATE), rows(layer, UP)}) : packs(own.gate_up);
      break;
    case Projection::DOWN:
      half() ? halves(shape.inner, {rows(layer, DOWN)}) : packs(own.down);
      break;
  }
}

void Model::project_head(int64_t m, const float* a, int64_t a_row, float* c, int64_t c_row) const {
  if (half())
    multiply(m, shape.hidden, a, a_row, {head_rows()}, c, c_row, nullptr, 0);
  else
    multiply(m, a, a_row, head_panels, c, c_row, nullptr, 0);
}

void Model::embed(int64_t id, float* out) const {
  if (half())
    widen(shape.hidden, bits(parameters.front()) + id * shape.hidden, out);
  else
    std::copy_n(parameters.front().const_data_ptr<float>() + id * shape.hidden, shape.hidden, out);
}

void Model::refresh_vectors() {
  vectors.resize(parameters.size());
  for (size_t place = 0; place < parameters.size(); place++) {
    const at::Tensor& parameter = parameters[place];
    if (!parameter.defined() || parameter.dim() != 1) continue;
    vectors[place].resize(parameter.numel());
    widen(parameter.numel(), bits(parameter), vectors[place].data());
  }
  panels.resize(shape.layers);
  for (int64_t layer = 0; layer < shape.layers; layer++) refresh_biases(layer);
}

}  // namespace r1
