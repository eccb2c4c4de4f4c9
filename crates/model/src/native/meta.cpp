// libtorch's meta device for tests; see device.rs. Its tensors have no numbers: every operation
// that needs them, and so waits for a GPU, fails.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "guarded.h"

// GCC 12 warns about c10::IValue's header.
#pragma GCC diagnostic ignored "-Wstringop-overflow"

namespace {

at::Tensor like(const at::Tensor& x, c10::DeviceType device) {
  return at::empty_strided(x.sizes(), x.strides(), x.options().device(device));
}

// Computes an operation that the meta device lacks with zeros on the CPU. Its results are tensors,
// or its first argument for one in place.
void with_zeros(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  const size_t first = stack->size() - schema.arguments().size();
  const at::Tensor changed = (*stack)[first].toTensor();
  for (size_t i = first; i < stack->size(); i++)
    if (const c10::IValue value = (*stack)[i]; value.isTensor() && value.toTensor().defined())
      (*stack)[i] = like(value.toTensor(), c10::kCPU).zero_();
  operation.callBoxed(*stack);
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++)
    (*stack)[i] = schema.is_mutable() ? changed : like((*stack)[i].toTensor(), c10::kMeta);
}

// tch has no name for the meta device, and takes it for MPS: new tensors there are of meta.
at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                 std::optional<c10::Device>, std::optional<bool> pinned, std::optional<c10::MemoryFormat> format) {
  return at::empty_symint(sizes, type, layout, c10::Device(c10::kMeta), pinned, format);
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, std::optional<c10::ScalarType> type,
                         std::optional<c10::Layout> layout, std::optional<c10::Device>, std::optional<bool> pinned) {
  return at::empty_strided_symint(sizes, strides, type, layout, c10::Device(c10::kMeta), pinned);
}

}  // namespace

extern "C" {

// A tensor of the same shape, strides and type without numbers.
char* r1_without_numbers(const void* of, void** out) {
  return r1::guarded([&] { *out = new at::Tensor(like(*static_cast<const at::Tensor*>(of), c10::kMeta)); });
}

// Adds operations to the meta device whose kernels for CUDA do not wait.
char* r1_add_meta_operations() {
  return r1::guarded([&] {
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    static torch::Library creation(torch::Library::IMPL, "aten", c10::DispatchKey::MPS, __FILE__, __LINE__);
    static const bool added = [&] {
      creation.impl("empty.memory_format", TORCH_FN(empty));
      creation.impl("empty_strided", TORCH_FN(empty_strided));
      for (const char* name : {"abs", "embedding_dense_backward", "index_select", "logical_and", "logical_and_",
                               "logical_not", "logical_or", "max", "min", "native_layer_norm", "where.self"})
        library.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_zeros>());
      return true;
    }();
    (void)added;
  });
}

}  // extern "C"
