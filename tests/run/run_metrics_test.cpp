// metrics.jsonl as it is read, and the command that repeats a run.
#include "weft/run/run_metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/run/repeat_command.h"

namespace weft::test {
namespace {

TEST(RunMetrics, StepsWithoutALineTakeTheTimeOfTheNext) {
  const ScratchFolder folder;
  put(folder / "metrics.jsonl",
      "{\"step\": 1, \"step_ms\": 5, \"loss\": 2.5}\n"
      "{\"step\": 4, \"step_ms\": 10, \"loss\": null, \"measuring\": true}\n"
      "{\"step\": 4, \"eval_loss\": 1.5, \"eval_accuracy\": 0.5, \"eval_samples\": 7}\n");
  std::vector<StepMetrics> steps;
  std::vector<double> eval_seconds;
  read_metrics(folder / "metrics.jsonl", {[&](const StepMetrics& s) { steps.push_back(s); },
                                          [&](const EvalReport& e, double seconds) {
                                            EXPECT_EQ(e.loss, 1.5);
                                            EXPECT_EQ(e.samples, 7);
                                            EXPECT_TRUE(std::isnan(e.seconds));
                                            eval_seconds.push_back(seconds);
                                          }});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_NEAR(steps[0].train_seconds, 0.005, 1e-12);
  EXPECT_NEAR(steps[1].train_seconds, 0.035, 1e-12);
  EXPECT_EQ(steps[0].loss, 2.5);
  EXPECT_TRUE(std::isnan(steps[1].loss));
  EXPECT_FALSE(steps[0].measuring);
  EXPECT_TRUE(steps[1].measuring);
  ASSERT_EQ(eval_seconds.size(), 1u);
  EXPECT_NEAR(eval_seconds[0], 0.035, 1e-12);
}

TEST(RunMetrics, MeansAreOverTheLayersThatHaveTheFigure) {
  const Json layers = Json::parse(
      R"({"a": {"retained": 0.5}, "b": {"retained": 0.7}, "c": {"density": 1}})", "test");
  EXPECT_NEAR(mean_over_layers(layers, "retained"), 0.6, 1e-12);
  EXPECT_TRUE(std::isnan(mean_over_layers(layers, "cosine")));
  EXPECT_TRUE(std::isnan(mean_over_layers(Json::object(), "retained")));
}

TEST(RepeatCommand, NamesWhatIsNotTheDefault) {
  RunOptions options;
  options.model = "mlp";
  options.seed = 5;
  options = options.resolved();  // as in run.json
  EXPECT_EQ(
      repeat_command("runs/a b/", options),
      "weft train --model mlp --recipe s-ste --pattern 2:4 --seed 5 --plan 'runs/a b/run.json' "
      "--out 'runs/a b-again'");
  options.rules = {"x.*=dense", "it's=ste@1:4"};
  options.sparse_ends = true;
  options.plan = "sparse";
  options.learning_rate = 0.1 + 0.2;
  EXPECT_EQ(repeat_command("r", options),
            "weft train --model mlp --recipe s-ste --pattern 2:4 --rule 'x.*=dense' "
            "--rule 'it'\\''s=ste@1:4' --sparse-ends --learning-rate 0.30000000000000004 --seed 5 "
            "--plan sparse --out r-again");
}

TEST(RepeatCommand, WordsAreThoseOfAShell) {
  EXPECT_EQ(shell_word("a-b/c_d.e,f:1=2@3+4%"), "a-b/c_d.e,f:1=2@3+4%");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("$(x) `y`"), "'$(x) `y`'");
  EXPECT_EQ(shell_word("a'b"), "'a'\\''b'");
}

}  // namespace
}  // namespace weft::test
