// The gradients of one optimiser step:
//
//   dL/dw = mean over micro-batches of dL_i/dw,  then times clip / norm if norm > clip
//
// Of several ranks each has a part of every micro-batch: sum over ranks of (part / whole) · dL/dw.
//
// where norm is that of all gradients together. Gradients lie in the parameters, as backward()
// leaves them. A loss or a norm that is not finite is an Error that names the layer or parameter
// where it starts.
#pragma once

#include <torch/optim/optimizer.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "weft/core/error.h"
#include "weft/data/sample_order.h"
#include "weft/distributed/gradient_buckets.h"
#include "weft/distributed/process_group.h"
#include "weft/run/run_options.h"
#include "weft/run/run_position.h"
#include "weft/torch/batch_share.h"
#include "weft/torch/layer_module.h"
#include "weft/torch/model.h"
#include "weft/train/batch_source.h"
#include "weft/train/teacher.h"

namespace weft {

// A loss or a gradient is not finite.
class Diverged : public Error {
 public:
  using Error::Error;
};

using StepClock = std::chrono::steady_clock;
inline double seconds_since(StepClock::time_point start) {
  return std::chrono::duration<double>(StepClock::now() - start).count();
}

// Where the time of a step goes, in seconds. What is within forward, backward and step, layer by
// layer, is in the telemetry.
struct StepSplit {
  double data = 0.0, forward = 0.0, backward = 0.0, clip = 0.0, step = 0.0;
  double reduce = 0.0;  // waiting for other ranks after the backward pass
};

// Which samples of a micro-batch are this process's.
struct BatchPart {
  int64_t offset = 0, samples = 0, all = 0;

  // While what it returns lives, the model knows of the other ranks' parts.
  std::optional<BatchShare> scope(ProcessGroup* ranks) const;
};
// All without ranks; else they have as many each. Throws Error if they cannot.
BatchPart batch_part(const RunOptions& options, const ProcessGroup* ranks);

// What a step computes its gradients with. Owns nothing.
struct GradientInputs {
  const RunOptions& options;
  const BatchSource& source;
  SampleOrder& order;
  Model& model;
  torch::optim::Optimizer& optimizer;
  const std::atomic<int>* stop;  // looked at between micro-batches; may be null
  // With other ranks: the buckets that sum gradients begin with the last micro-batch, and
  // `loss_known` is called with this rank's part of the loss before its backward pass.
  ProcessGroup* ranks = nullptr;
  GradientBuckets* buckets = nullptr;
  std::function<void(double loss)> loss_known = {};
  const Teacher* teacher = nullptr;  // null: none
};

// The mean loss of the micro-batches, of several ranks this one's part of it; moves
// position.data_position past their samples. Nothing if it was stopped between two of them: then
// model, random numbers and position are as before.
// Throws Error if a loss is not finite.
std::optional<double> accumulate_gradients(const GradientInputs& inputs, RunPosition& position,
                                           StepSplit& split);

// Returns the norm before clipping; clip = 0 does not clip. The norm is that of the model's own
// parameters: the scores of lbc are bookkeeping of the recipe, and must not shrink the step of the
// weights. Their gradients are linear in those of the weights, and scaled with them, as a smaller
// loss would. Throws Error if the norm is not finite; `step` is for its message.
double clip_gradients(Model& model,
                      const std::map<std::string, std::shared_ptr<LayerModule>>& layers,
                      double clip, int64_t step);

// For messages: the first parameter that is not finite, or that there is none.
std::string parameter_not_finite(const Model& model);

}  // namespace weft
