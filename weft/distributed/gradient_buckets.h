// GradientBuckets: gradients summed over ranks while the backward pass still runs.
//
//   parameters, the last one first:   [ head.weight head.bias | hidden1.weight ... | ... ]
//                                       bucket 0                bucket 1             ...
//
// A hook on each parameter copies its gradient into its bucket as soon as it is whole; a bucket that
// is full begins its sum, in the order of the buckets, which is the same on every rank. finish()
// waits for all of them; gradients then lie in the buckets, and are not copied back.
//
// Of a layer whose gradient is masked (recipes static, lbc) only what the mask keeps travels: every
// rank has the same mask. The gradient of scores does not travel at all: it follows from that of the
// weights. A sampled gradient (t-sr-ste, s-ste) has samples of dY, not of dW: dW itself is dense,
// and there is nothing to leave out.
//
// Memory: once more the gradients. Cost: a copy of each gradient, and a second one where a mask
// keeps some.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "weft/distributed/process_group.h"
#include "weft/torch/layer_module.h"

namespace weft {

class GradientBuckets {
 public:
  // Small buckets overlap more with the backward pass, large ones waste less on latency.
  static constexpr int64_t kBucketBytes = int64_t{4} << 20;

  struct Options {
    int64_t bucket_bytes = kBucketBytes;
    bool kept_only = true;  // false: masked gradients travel whole
    bool overlap = true;    // false: sums begin in finish()
  };
  GradientBuckets(torch::nn::Module& model, std::shared_ptr<ProcessGroup> ranks, Options options);
  GradientBuckets(torch::nn::Module& model, std::shared_ptr<ProcessGroup> ranks)
      : GradientBuckets(model, std::move(ranks), Options{}) {}
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Before the last backward pass of a step.
  void begin();
  // After it. Throws RankLost.
  void finish();

  struct Traffic {
    int64_t bytes = 0;          // of the sums of a step
    int64_t whole_bytes = 0;    // if gradients of weights and scores travelled whole
    double wait_seconds = 0.0;  // that finish() waited
  };
  const Traffic& traffic() const { return traffic_; }  // of the last step

 private:
  struct Slot;
  struct Bucket;
  struct Parts;
  void lay_out();
  void arrived(size_t slot);
  void fill(Slot& slot);
  void begin_ready_sums(bool all);
  void take_sum(Slot& slot);

  torch::nn::Module& model_;
  std::shared_ptr<ProcessGroup> ranks_;
  Options options_;
  std::unique_ptr<Parts> parts_;
  bool active_ = false;
  Traffic traffic_;
};

}  // namespace weft
