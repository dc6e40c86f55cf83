#include <torch/nn/functional/loss.h>

#include <chrono>
#include <numeric>

#include "weft/train/layers/tensor_math.h"
#include "weft/train/trainer/trainer.h"

namespace weft {

EvalReport evaluate(Model& model, const BatchSource& source, int64_t batch, int64_t samples) {
  WEFT_CHECK(batch >= 1 && samples >= 0, "evaluation of {} samples in batches of {}", samples,
             batch);
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_grad;
  const bool training = model.is_training();
  model.eval();
  EvalReport report;
  report.samples = samples == 0 ? source.test_samples() : std::min(samples, source.test_samples());
  double loss = 0.0, right = 0.0, targets = 0.0;
  std::vector<int64_t> chosen(static_cast<size_t>(batch));
  for (int64_t begin = 0; begin < report.samples; begin += batch) {
    const int64_t count = std::min(batch, report.samples - begin);
    for (int64_t i = 0; i < batch; ++i) {
      chosen[static_cast<size_t>(i)] = begin + std::min(i, count - 1);
    }
    const Batch test = source.test_batch(chosen);
    const torch::Tensor scores =
        widened(model.forward(test.inputs)).slice(0, 0, count).flatten(0, -2);
    const torch::Tensor wanted = test.targets.slice(0, 0, count).flatten();
    loss += torch::nll_loss(torch::log_softmax(scores, -1), wanted, {}, at::Reduction::Sum)
                .item<double>();
    right += scores.argmax(-1).eq(wanted).sum().item<double>();
    targets += static_cast<double>(wanted.numel());
  }
  model.train(training);
  report.loss = loss / targets;
  report.accuracy = right / targets;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace weft
