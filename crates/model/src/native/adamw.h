// libtorch's fused AdamW; see adamw.cpp.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace r1 {

// The same fields as `AdamW` in mod.rs.
struct AdamW {
  double lr, beta1, beta2, eps, weight_decay;
  double scale;  // of the gradients
  int64_t step;  // this update's number, from 1
};

// One in-place update of `weights` and their moments; gradients are scaled in place.
void adamw(std::vector<at::Tensor>& weights, std::vector<at::Tensor>& gradients, std::vector<at::Tensor>& averages,
           std::vector<at::Tensor>& squares, const AdamW& settings);

}  // namespace r1
