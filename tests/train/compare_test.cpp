// Comparisons of recipes: the same start, turns with a dense run, and runs that go on.
#include "weft/train/compare.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <csignal>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/run/run_result.h"

namespace weft::test {
namespace {

double median_step_ms(const std::filesystem::path& folder) {
  std::vector<double> all;
  for (const Json& line : step_lines(folder)) all.push_back(line["step_ms"].get<double>());
  std::ranges::sort(all);
  return all.size() % 2 == 1 ? all[all.size() / 2]
                             : 0.5 * (all[all.size() / 2 - 1] + all[all.size() / 2]);
}

TEST(Compare, BeginsAlikeAndGoesOnWhereItWasStopped) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = small_run("mlp");
  options.recipes = {"dense", "sr-ste", "t-sr-ste@1:4"};
  options.patterns = {"2:4"};
  options.seeds = 2;
  std::atomic<int> stop{0};
  const auto nothing = compare(scratch / "a", options, &stop, [&](double done) {
    if (done > 0.3) stop = 1;
  });
  EXPECT_FALSE(nothing);
  double done = 0;
  const auto result = compare(scratch / "a", options, nullptr, [&](double now) { done = now; });
  ASSERT_TRUE(result);
  EXPECT_EQ(done, 1.0);
  const auto whole = compare(scratch / "b", options, nullptr, [](double) {});
  ASSERT_EQ(result->rows.size(), 3u);
  EXPECT_EQ(result->metric, "eval_accuracy");
  EXPECT_EQ(result->rows[0].recipe, "dense");
  EXPECT_EQ(result->rows[1].check, "ok");
  EXPECT_EQ(result->rows[2].pattern, "1:4");
  EXPECT_EQ(result->rows[2].check, "dense by design");
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result->rows[i].metrics, whole->rows[i].metrics) << "stopped or not";
    EXPECT_EQ(result->rows[i].metrics.size(), 2u);
    double ratio = 0.0;  // the mean over both seeds
    for (const int64_t seed : {1, 2}) {
      const auto own = run_folder_name(result->rows[i].recipe, result->rows[i].pattern, seed);
      ratio += 0.5 * median_step_ms(scratch / "a" / fmt::format("dense-seed{}", seed)) /
               median_step_ms(scratch / "a" / own);
    }
    EXPECT_NEAR(result->rows[i].step_ratio, ratio, 1e-9) << result->rows[i].recipe;
  }
  // Done already: nothing is trained again. Other options: refused.
  EXPECT_TRUE(compare(scratch / "a", options, nullptr, [](double) { FAIL(); }));
  options.run.steps = 13;
  EXPECT_TRUE(contains(message_of([&] { compare(scratch / "a", options, nullptr, [](double) {}); }),
                       "has a run with steps 12, not 13"));
}

// What is added to a finished comparison is timed against a dense run that takes turns with it.
TEST(Compare, AnAddedRecipeTakesTurnsWithADenseRunOfItsOwn) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = small_run("mlp");
  options.run.dense_flips = true;
  options.recipes = {"sr-ste", "lbc"};
  options.patterns = {"2:4"};
  options.seeds = 1;
  const auto folder = scratch / "a";
  const auto first = compare(folder, options, nullptr, [](double) {});
  ASSERT_TRUE(first);
  const std::string before = contents(folder / "dense-seed1" / "metrics.jsonl");
  EXPECT_FALSE(std::filesystem::exists(folder / "dense-seed1-turns2"));
  options.recipes = {"sr-ste", "lbc", "transposable+mask_every=1"};

  // Stopped and gone on with, they still are a pair.
  std::atomic<int> stop{0};
  EXPECT_FALSE(compare(folder, options, &stop, [&](double) { stop = 1; }));
  const std::string added = run_folder_name("transposable+mask_every=1", "2:4", 1);
  const size_t dense_steps = step_lines(folder / "dense-seed1-turns2").size();
  EXPECT_EQ(dense_steps, 5u) << "turns of five steps";
  const auto result = compare(folder, options, nullptr, [](double) {});
  ASSERT_TRUE(result);
  EXPECT_FALSE(std::filesystem::exists(folder / "dense-seed1-turns3"));
  EXPECT_EQ(contents(folder / "dense-seed1" / "metrics.jsonl"), before) << "it is done";
  EXPECT_EQ(contents(folder / "dense-seed1-turns2" / "model.safetensors"),
            contents(folder / "dense-seed1" / "model.safetensors"));
  ASSERT_EQ(result->rows.size(), 4u);
  EXPECT_EQ(result->rows[1].step_ratio, first->rows[1].step_ratio);
  EXPECT_NEAR(result->rows[3].step_ratio,
              median_step_ms(folder / "dense-seed1-turns2") / median_step_ms(folder / added), 1e-9);

  // Flips of the dense run, by the masks of each.
  EXPECT_FALSE(result->rows[0].dense_flips);
  EXPECT_FALSE(result->rows[2].dense_flips) << "lbc";
  ASSERT_TRUE(result->rows[1].dense_flips && result->rows[3].dense_flips);
  RunOptions alone = options.run;
  alone.recipe = "dense";
  alone.dense_flips = false;
  alone.flips_of = {"transposable+mask_every=1@2:4", "sr-ste@2:4"};
  finished_model(scratch / "alone", Trainer::begin(scratch / "alone", make_parts(alone)));
  const auto counted = read_run_result(scratch / "alone").dense_flips;
  EXPECT_EQ(*result->rows[1].dense_flips, counted.at("sr-ste@2:4"));
  EXPECT_EQ(*result->rows[3].dense_flips, counted.at("transposable+mask_every=1@2:4"));
}

// A comparison that is stopped before its first run has begun leaves it at that.
TEST(Compare, StopsBeforeItBeginsAndWhileItEvaluates) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = small_run("mlp");
  options.run.plan = "auto";
  options.recipes = {"sr-ste"};
  options.patterns = {"2:4"};
  options.seeds = 1;
  const std::string before = std::getenv("XDG_CACHE_HOME") ? std::getenv("XDG_CACHE_HOME") : "";
  ::setenv("XDG_CACHE_HOME", (scratch / "cache").c_str(), 1);
  std::atomic<int> stop{SIGTERM};
  EXPECT_FALSE(compare(scratch / "a", options, &stop, [](double) { FAIL(); }));
  EXPECT_FALSE(std::filesystem::exists(scratch / "a" / "sr-ste-2of4-seed1"));

  struct StopInEvaluation : TrainerListener {
    explicit StopInEvaluation(std::atomic<int>& stop) : stop(stop) {}
    void on_evaluating(int64_t, int64_t) override { stop = SIGTERM; }
    std::atomic<int>& stop;
  } listener(stop);
  stop = 0;
  EXPECT_FALSE(compare(
      scratch / "a", options, &stop, [](double) {}, &listener));
  EXPECT_EQ(step_lines(scratch / "a" / "sr-ste-2of4-seed1").size(), 12u);
  EXPECT_TRUE(compare(scratch / "a", options, nullptr, [](double) {}));
  before.empty() ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
}

// The same first weights and data: the first loss is that of the same numbers, dense or not.
TEST(Compare, GivesEveryRunTheSameStart) {
  const ScratchFolder scratch;
  std::vector<double> first;
  for (const std::string recipe : {"dense", "lbc"}) {  // lbc begins dense
    Notes notes;
    Trainer trainer =
        Trainer::begin(scratch / recipe, make_parts(small_run("mlp", recipe)), listening(notes));
    trainer.advance(1);
    first.push_back(notes.losses[0]);
  }
  EXPECT_EQ(first[0], first[1]);
}

// Its runs keep their options, or they could not be compared.
TEST(Compare, DoesNotAdviseToChangeOneRunThatDiverged) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = small_run("mlp");
  options.run.optimizer = "sgd";
  options.run.clip = 0;
  options.run.warmup = 1.0;
  options.run.learning_rate = 1e6;
  options.run.checkpoint_every = 1;
  options.recipes = {"ste"};
  options.patterns = {"2:4"};
  options.seeds = 1;
  const std::string message =
      message_of([&] { compare(scratch / "a", options, nullptr, [](double) {}); });
  EXPECT_TRUE(contains(message, "a comparison with a lower --learning-rate needs another folder"))
      << message;
  EXPECT_FALSE(contains(message, "--resume")) << message;
}

}  // namespace
}  // namespace weft::test
