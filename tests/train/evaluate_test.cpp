// Evaluation: which samples, how many, and how it is stopped.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>

#include "tests/train/runs.h"

namespace weft::test {
namespace {

TEST(Evaluate, CountsEverySampleOnce) {
  RunParts parts = make_parts(small_run("cnn", "dense"));
  const EvalReport whole = evaluate(*parts.model, *parts.source, 20, 0);
  const EvalReport pieces = evaluate(*parts.model, *parts.source, 7, 0);
  EXPECT_EQ(whole.samples, 20);
  EXPECT_EQ(pieces.samples, 20);
  EXPECT_NEAR(whole.loss, pieces.loss, 1e-5);
  EXPECT_EQ(whole.accuracy, pieces.accuracy);
  EXPECT_EQ(evaluate(*parts.model, *parts.source, 8, 5).samples, 5);
  EXPECT_TRUE(parts.model->is_training()) << "as it was";
}

// Loss of these test samples, one by one.
double loss_of_samples(Model& model, const BatchSource& source, const std::vector<int64_t>& all) {
  const torch::NoGradGuard no_grad;
  model.eval();
  double sum = 0.0;
  for (const int64_t sample : all) {
    const Batch one = source.test_batch(std::vector<int64_t>{sample});
    sum += torch::nn::functional::cross_entropy(model.forward(one.inputs).flatten(0, -2),
                                                one.targets.flatten())
               .item<double>();
  }
  model.train();
  return sum / static_cast<double>(all.size());
}

TEST(Evaluate, SpreadsItsSamplesOverAll) {
  RunParts parts = make_parts(small_run("cnn", "dense"));  // 20 test images
  EXPECT_NEAR(evaluate(*parts.model, *parts.source, 3, 5).loss,
              loss_of_samples(*parts.model, *parts.source, {0, 4, 8, 12, 16}), 1e-5);
  EXPECT_NEAR(evaluate(*parts.model, *parts.source, 8, 3).loss,
              loss_of_samples(*parts.model, *parts.source, {0, 6, 13}), 1e-5);
}

TEST(Evaluate, TakesASensibleNumberByDefault) {
  RunOptions options;
  EXPECT_EQ(options.resolved().eval_samples, 10000) << "images: all of most test sets";
  options.model = "gpt";
  EXPECT_EQ(options.resolved().eval_samples, 1024) << "windows of 128 bytes";
  options.context = 1024;
  EXPECT_EQ(options.resolved().eval_samples, 128);
  options.context = 1 << 20;
  EXPECT_EQ(options.resolved().eval_samples, 1);
  options.eval_samples = 0;
  EXPECT_EQ(options.resolved().eval_samples, 0) << "all";
}

TEST(Evaluate, SaysHowFarItIsAndStops) {
  RunParts parts = make_parts(small_run("mlp", "dense"));
  std::vector<int64_t> done;
  std::atomic<int> stop{0};
  EvalOptions options{6, 0, &stop, [&](int64_t now, int64_t all) {
                        EXPECT_EQ(all, 20);
                        done.push_back(now);
                      }};
  EXPECT_TRUE(evaluate(*parts.model, *parts.source, options));
  EXPECT_EQ(done, (std::vector<int64_t>{0, 6, 12, 18}));
  done.clear();
  options.progress = [&](int64_t now, int64_t) {
    done.push_back(now);
    if (now == 6) stop = 1;
  };
  EXPECT_FALSE(evaluate(*parts.model, *parts.source, options));
  EXPECT_EQ(done, (std::vector<int64_t>{0, 6}));
  EXPECT_TRUE(parts.model->is_training()) << "as it was";
}

}  // namespace
}  // namespace weft::test
