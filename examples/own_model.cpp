// A model and data of one's own, trained by a recipe. Builds with
//
//   find_package(weft REQUIRED COMPONENTS train)
//   target_link_libraries(own_model PRIVATE weft::train)
//
// and runs as `own_model FOLDER`. The task: does a signal rise or fall?
#include <torch/torch.h>

#include <cstdio>

#include "weft/core/rng.h"
#include "weft/train/trainer.h"

namespace {

constexpr int64_t kLength = 64;

// Data: say how many samples there are, and make batches of those that are asked for. A sample is a
// pure function of its number, so nothing has to be stored.
class Signals : public weft::BatchSource {
 public:
  weft::ModelShape shape() const override { return {1, 1, kLength, 2}; }
  int64_t train_samples() const override { return 4000; }
  int64_t test_samples() const override { return 500; }
  weft::Batch train_batch(std::span<const int64_t> samples, int64_t) const override {
    return batch(samples, /*stream=*/0);
  }
  weft::Batch test_batch(std::span<const int64_t> samples) const override {
    return batch(samples, /*stream=*/1);
  }
  std::string unit() const override { return "signals"; }
  int64_t units_per_sample() const override { return 1; }
  uint32_t fingerprint() const override { return 1; }  // another number if the data changes

 private:
  static weft::Batch batch(std::span<const int64_t> samples, uint64_t stream) {
    const auto count = static_cast<int64_t>(samples.size());
    weft::Batch made{torch::empty({count, kLength}), torch::empty({count}, torch::kLong)};
    for (int64_t i = 0; i < count; ++i) {
      const auto sample = static_cast<uint64_t>(samples[static_cast<size_t>(i)]);
      const weft::Rng rng(7 + stream, sample);
      const bool rises = rng.uniform(0) < 0.5;
      made.targets[i] = rises ? 1 : 0;
      float* signal = made.inputs.data_ptr<float>() + i * kLength;
      for (int64_t t = 0; t < kLength; ++t) {
        const double slope = (rises ? 1.0 : -1.0) * (static_cast<double>(t) / kLength - 0.5);
        signal[t] = static_cast<float>(slope + 1.5 * rng.normal(static_cast<uint64_t>(t) + 2));
      }
    }
    return made;
  }
};

// A model: any torch module with one forward. Its Linear and Conv2d layers, torch's or weft's, are
// what recipes apply to.
class Network : public weft::Model {
 public:
  Network() {
    in_ = register_module("in", torch::nn::Linear(kLength, 128));
    middle_ = register_module("middle", torch::nn::Linear(128, 128));
    out_ = register_module("out", torch::nn::Linear(128, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) override {
    return out_(torch::relu(middle_(torch::relu(in_(x)))));
  }

 private:
  torch::nn::Linear in_{nullptr}, middle_{nullptr}, out_{nullptr};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: own_model FOLDER\n");
    return 2;
  }
  try {
    weft::RunParts parts;
    parts.options.recipe = "sr-ste";
    parts.options.pattern = "2:4";
    parts.options.steps = 200;
    parts.options.batch = 32;
    parts.options.learning_rate = 1e-3;
    parts.source = std::make_shared<Signals>();
    torch::manual_seed(static_cast<uint64_t>(parts.options.seed));
    parts.model = std::make_shared<Network>();

    weft::Trainer trainer = weft::Trainer::begin(argv[1], parts);
    trainer.advance(parts.options.steps);
    const weft::RunResult result = trainer.finish();
    std::printf("accuracy %.3f, density of the sparse layer %.2f\n", result.eval.accuracy,
                result.density);
    return result.eval.accuracy > 0.8 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "own_model: %s\n", error.what());
    return 1;
  }
}
