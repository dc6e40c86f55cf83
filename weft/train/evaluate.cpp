#include <torch/nn/functional/loss.h>

#include <chrono>

#include "weft/data/sample_order.h"
#include "weft/torch/tensor_math.h"
#include "weft/train/model_mode.h"
#include "weft/train/trainer.h"

namespace weft {

std::optional<EvalReport> evaluate(Model& model, const BatchSource& source,
                                   const EvalOptions& options) {
  const int64_t all = source.test_samples(), batch = options.batch;
  WEFT_CHECK(batch >= 1 && options.samples >= 0, "evaluation of {} samples in batches of {}",
             options.samples, batch);
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_grad;
  const ModelMode evaluating(model, /*training=*/false);
  EvalReport report;
  report.samples = options.samples == 0 ? all : std::min(options.samples, all);
  double loss = 0.0, right = 0.0, targets = 0.0;
  std::vector<int64_t> chosen(static_cast<size_t>(batch));
  for (int64_t begin = 0; begin < report.samples; begin += batch) {
    if (options.stop != nullptr && *options.stop != 0) return std::nullopt;
    if (options.progress) options.progress(begin, report.samples);
    const int64_t count = std::min(batch, report.samples - begin);
    for (int64_t i = 0; i < batch; ++i) {
      chosen[static_cast<size_t>(i)] =
          spread_sample(begin + std::min(i, count - 1), report.samples, all);
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
  report.loss = loss / targets;
  report.accuracy = right / targets;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

EvalReport evaluate(Model& model, const BatchSource& source, int64_t batch, int64_t samples) {
  return *evaluate(model, source, EvalOptions{batch, samples});
}

}  // namespace weft
