// AdamW of libtorch, with parameters whose second moment is frozen (moment=frozen; STEP, Lu et al.
// 2023). The gradients of masked weights make a poor second moment, so it is learned while the
// layer is dense, and kept:
//
//   m ← β1 m + (1 − β1) g,   v stays
//   w ← w − lr · wd · w − lr · m̂ / (√v̂ + ε),   m̂ = m / (1 − β1^t),   v̂ = v / (1 − β2^t0)
//
// t: the steps of the parameter, with this one; t0: those in which v was learned. weft::step freezes
// and unfreezes what recipes say (step.h). The state is that of torch::optim::AdamW, and is saved
// as such: what is frozen is a function of the recipe and the step.
#pragma once

#include <torch/optim/adamw.h>

#include <map>

namespace weft {

class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;

  // For the steps to come. learned: t0. Throws Error if the parameter has no second moment yet.
  void freeze_second_moment(const torch::Tensor& parameter, int64_t learned);
  void unfreeze_second_moment(const torch::Tensor& parameter);

  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  torch::optim::AdamWParamState* state_of(const torch::Tensor& parameter);
  void frozen_step(torch::Tensor& parameter, const torch::optim::AdamWOptions& options,
                   int64_t learned);

  std::map<const void*, int64_t> frozen_;  // t0 by parameter
};

}  // namespace weft
