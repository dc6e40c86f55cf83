// BatchShare: which samples of the whole batch a forward pass runs on, of a data-parallel run.
//
//   rank 0   [ 0 .. 7 | . . . . ]        first = 0, samples = 8, all = 16
//   rank 1   [ . . . . | 8 .. 15 ]       first = 8, samples = 8, all = 16
//
// While one is in scope (of this thread), what depends on the batch as a whole is that of all ranks:
// samples of gradients are drawn by the numbers that their tokens have in the whole batch, and batch
// normalisation takes the statistics of all. Without one, a batch is whole.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>

namespace weft {

class BatchShare {
 public:
  int64_t first = 0, samples = 0, all = 0;
  // Adds up a tensor over the ranks, in place. Called in the same order on all of them.
  std::function<void(const torch::Tensor&)> sum;

  BatchShare(int64_t first, int64_t samples, int64_t all,
             std::function<void(const torch::Tensor&)> sum)
      : first(first), samples(samples), all(all), sum(std::move(sum)), before_(current_) {
    current_ = this;
  }
  ~BatchShare() { current_ = before_; }
  BatchShare(const BatchShare&) = delete;
  BatchShare& operator=(const BatchShare&) = delete;

  static const BatchShare* current() { return current_; }  // null: none

 private:
  inline static thread_local const BatchShare* current_ = nullptr;
  const BatchShare* before_;
};

}  // namespace weft
