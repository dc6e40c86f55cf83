// Teacher: a trained network whose scores a run learns from, besides the targets (distillation;
// Hinton et al. 2015).
//
//   loss = (1 − a) · L(s, targets) + a · T² · KL(softmax(t / T) ‖ softmax(s / T))
//
// s: scores of the network that trains, t: those of the teacher for the same inputs, in evaluation
// mode and without gradients; the mean over images or tokens. T² keeps the gradient of the second
// term as large as that of the first, whatever T. Cost: a forward pass of the teacher per step,
// whose products run dense, so that nothing is measured and a run repeats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "weft/run/run_options.h"
#include "weft/torch/model.h"

namespace weft {

class Teacher {
 public:
  // network: maps the inputs of the run to scores of the same classes; it is no longer trained.
  Teacher(std::shared_ptr<Model> network, double share, double temperature);

  // loss: L(s, targets) for these scores, [samples, classes].
  torch::Tensor mixed(const torch::Tensor& loss, const torch::Tensor& scores,
                      const torch::Tensor& inputs) const;
  // Of its weights: tells runs apart.
  uint32_t checksum() const { return checksum_; }

 private:
  std::shared_ptr<Model> network_;
  double share_, temperature_;
  uint32_t checksum_ = 0;
};

// The model of the finished run options.teacher, for a run with these options; null if they name
// none. Leaves torch's random numbers as they are. Throws Error that names the folder if it has no
// model, or one that does not fit the data of the run.
std::shared_ptr<const Teacher> load_teacher(const RunOptions& options);

}  // namespace weft
