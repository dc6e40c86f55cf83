// Runs that are stopped: between micro-batches, in an evaluation, while they plan.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <csignal>
#include <fstream>

#include "tests/train/runs.h"
#include "weft/train/batch_source.h"

namespace weft::test {
namespace {

// Sets a flag when the n-th batch of training is asked for.
class StoppingSource : public BatchSource {
 public:
  StoppingSource(std::shared_ptr<BatchSource> source, int batch, std::atomic<int>& stop)
      : source_(std::move(source)), left_(batch), stop_(stop) {}
  ModelShape shape() const override { return source_->shape(); }
  int64_t train_samples() const override { return source_->train_samples(); }
  int64_t test_samples() const override { return source_->test_samples(); }
  Batch train_batch(std::span<const int64_t> samples, int64_t position) const override {
    if (--left_ == 0) stop_ = SIGTERM;
    return source_->train_batch(samples, position);
  }
  Batch test_batch(std::span<const int64_t> samples) const override {
    return source_->test_batch(samples);
  }
  std::string unit() const override { return source_->unit(); }
  int64_t units_per_sample() const override { return source_->units_per_sample(); }
  uint32_t fingerprint() const override { return source_->fingerprint(); }

 private:
  std::shared_ptr<BatchSource> source_;
  mutable int left_;
  std::atomic<int>& stop_;
};

// A step that is stopped between its micro-batches is as if it had never begun, for norms, samples
// of gradients and the order of the data, in this process and in the next.
TEST(Stop, BetweenMicroBatchesLosesNothing) {
  for (const std::string recipe : {"dense", "t-sr-ste", "lbc", "bi-mask"}) {
    RunOptions options = small_run("cnn", recipe);
    options.accumulate = 4;
    options.checkpoint_every = 0;
    const ScratchFolder scratch;
    const auto whole = scratch / "whole";
    const std::string expected = finished_model(whole, Trainer::begin(whole, make_parts(options)));
    for (const bool same_process : {true, false}) {
      std::atomic<int> stop{0};
      RunParts parts = make_parts(options);
      // One batch is for planning; 5 steps of 4 follow, and 2 of the next.
      parts.source = std::make_shared<StoppingSource>(parts.source, 1 + 5 * 4 + 2, stop);
      const auto folder = scratch / (same_process ? "same" : "next");
      {
        Trainer trainer = Trainer::begin(folder, parts);
        trainer.advance(options.steps, &stop);
        EXPECT_EQ(trainer.step(), 5) << recipe << ": the step was not finished";
        if (same_process) {
          EXPECT_EQ(finished_model(folder, std::move(trainer)), expected) << recipe;
          continue;
        }
        trainer.save_checkpoint();
      }
      EXPECT_EQ(finished_model(folder, Trainer::resume(folder, make_parts(resume_options(folder)))),
                expected)
          << recipe;
    }
  }
}

// An evaluation that is stopped is done when the run goes on, once; and so is the last one.
TEST(Stop, InAnEvaluationLosesNothing) {
  struct StopAt : TrainerListener {
    void on_evaluating(int64_t done, int64_t) override {
      if (done > 0 && --left == 0) stop = SIGTERM;
    }
    int left = 0;
    std::atomic<int> stop{0};
  };
  const auto evaluations = [](const std::filesystem::path& folder) {
    std::vector<std::pair<int64_t, double>> found;
    std::ifstream stream(folder / "metrics.jsonl");
    for (std::string line; std::getline(stream, line);) {
      const Json entry = Json::parse(line, "metrics");
      if (!entry.contains("eval_loss")) continue;
      found.emplace_back(entry["step"].get<int64_t>(), entry["eval_loss"].get<double>());
    }
    return found;
  };
  RunOptions options = small_run("mlp", "s-ste");
  options.eval_every = 4;
  const ScratchFolder scratch;
  const auto whole = scratch / "whole";
  finished_model(whole, Trainer::begin(whole, make_parts(options)));
  ASSERT_EQ(evaluations(whole).size(), 3u);  // at 4, 8 and 12
  // 20 samples in batches of 8: two calls of an evaluation are after its first batch.
  for (const int call : {1, 3, 5}) {
    const auto folder = scratch / fmt::format("stopped{}", call);
    {
      StopAt listener;
      listener.left = call;
      TrainerSetup setup;
      setup.listener = &listener;
      Trainer trainer = Trainer::begin(folder, make_parts(options), setup);
      trainer.advance(options.steps, &listener.stop);
      EXPECT_EQ(trainer.step(), 4 * ((call + 1) / 2));
      EXPECT_FALSE(trainer.finished() && trainer.finish(&listener.stop));
      EXPECT_NE(listener.stop, 0);
      trainer.save_checkpoint();
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
    EXPECT_EQ(finished_model(folder, Trainer::resume(folder, make_parts(resume_options(folder)))),
              contents(whole / "model.safetensors"));
    EXPECT_EQ(evaluations(folder), evaluations(whole)) << call;
  }
}

}  // namespace
}  // namespace weft::test
