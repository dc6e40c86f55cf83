// Runs that go on with other options: moved data, more steps, a lower rate; and the best model.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/run/run_result.h"
#include "weft/torch/tensor_file.h"
#include "weft/train/load_model.h"

namespace weft::test {
namespace {

TEST(Extend, EveryRecipeTakesMoreStepsAfterItsEnd) {
  for (const Recipe& recipe : recipes()) {
    const ScratchFolder scratch;
    const auto folder = scratch / "run";
    finished_model(folder, Trainer::begin(folder, make_parts(small_run("mlp", recipe.name))));
    RunOptions more = resume_options(folder);
    more.steps = 18;
    {
      Trainer trainer = resumed(folder, more);
      EXPECT_EQ(trainer.step(), 12) << recipe.name;
      trainer.save_checkpoint();  // of a state whose phase may be that of the shorter run
    }
    finished_model(folder, resumed(folder, resume_options(folder)));
    EXPECT_EQ(read_run_result(folder).eval.step, 18) << recipe.name;
    EXPECT_EQ(step_lines(folder).size(), 18u) << recipe.name;
    EXPECT_EQ(resume_options(folder).steps, 18) << recipe.name;
  }
}

TEST(Extend, AnUnfinishedRunWithMoreStepsIsARunOfThatManyFromThereOn) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  { Trainer::begin(folder, make_parts(small_run("mlp", "sr-ste"))).advance(5); }  // saved after 4
  RunOptions other = resume_options(folder);
  other.steps = 3;
  const std::string problem = message_of([&] { resumed(folder, other); });
  EXPECT_TRUE(contains(problem, "3 steps for a run of 12: accepted are 12 or more")) << problem;
  other.steps = 24;
  { resumed(folder, other).advance(2); }
  const std::vector<Json> lines = step_lines(folder);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_GT(lines[5]["learning_rate"].get<double>(), lines[3]["learning_rate"].get<double>());
}

TEST(Extend, AFinishedRunNeedsMoreStepsAndItsCheckpoint) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  finished_model(folder, Trainer::begin(folder, make_parts(small_run("mlp"))));
  RunOptions other = resume_options(folder);
  const auto problem = [&] { return message_of([&] { resumed(folder, other); }); };
  EXPECT_TRUE(contains(problem(), "the run is done after 12 steps: extend it with more"))
      << problem();
  other.steps = 20;
  std::filesystem::remove_all(folder / "checkpoints");
  EXPECT_TRUE(contains(problem(), "its last checkpoint is gone")) << problem();
}

TEST(Extend, MovedDataIsFoundAndOtherDataRefused) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  { Trainer::begin(folder, make_parts(text_run(scratch, "ste"))).advance(5); }
  std::filesystem::rename(scratch / "text", scratch / "moved");
  RunOptions options = resume_options(folder);
  EXPECT_NE(message_of([&] { resumed(folder, options); }), "(no Error)");
  options.data = "text:" + (scratch / "moved").string();
  { resumed(folder, options); }
  EXPECT_EQ(resume_options(folder).data, options.data);
  put(scratch / "other", std::string(4000, 'x'));
  options.data = "text:" + (scratch / "other").string();
  EXPECT_TRUE(contains(message_of([&] { resumed(folder, options); }),
                       "is not the data that this run started with"));
}

TEST(Extend, ThePathOfTheDataIsStoredAbsolute) {
  RunOptions options;
  options.data = "text:some/../book.txt";
  EXPECT_EQ(options.with_absolute_data().data,
            "text:" + (std::filesystem::current_path() / "book.txt").string());
  options.data = "glyphs";
  EXPECT_EQ(options.with_absolute_data().data, "glyphs");
}

TEST(Extend, ARunThatDivergedGoesOnWithALowerRate) {
  const ScratchFolder scratch;
  const auto folder = scratch / "a run";
  RunOptions options = small_run("mlp", "ste");
  options.optimizer = "sgd";
  options.clip = 0;
  options.warmup = 1.0;  // the rate grows until it is too high
  options.learning_rate = 1e6;
  options.checkpoint_every = 1;
  std::string message;
  {
    Trainer trainer = Trainer::begin(folder, make_parts(options));
    message = message_of([&] { trainer.advance(options.steps); });
  }
  EXPECT_TRUE(contains(message, "continue after step ")) << message;
  EXPECT_TRUE(
      contains(message, "--resume '" + folder.string() + "' --learning-rate X, below 1000000"))
      << message;
  // The weights of the last steps may be past help; those of the first one are not.
  for (const int64_t step : RunFolder::open(folder).checkpoints()) {
    if (step > 1) RunFolder::open(folder).put_aside(step);
  }
  RunOptions lower = resume_options(folder);
  lower.learning_rate = 1e-4;
  lower.clip = 1.0;
  const Json before = step_lines(folder).front();
  finished_model(folder, resumed(folder, lower));
  EXPECT_EQ(read_run_result(folder).eval.step, options.steps);
  EXPECT_EQ(step_lines(folder).front(), before);
  EXPECT_EQ(resume_options(folder).learning_rate, 1e-4);
}

TEST(Best, TheModelOfTheLowestEvaluationLossIsKept) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  RunOptions options = small_run("mlp", "sr-ste");
  options.eval_every = 1;
  options.warmup = 1.0;  // the rate grows until it is too high: the best model is not the last
  options.learning_rate = 0.3;
  struct Evals : TrainerListener {
    void on_eval(const EvalReport& report) override { all.push_back(report); }
    std::vector<EvalReport> all;
  } evals;
  TrainerSetup setup;
  setup.listener = &evals;
  finished_model(folder, Trainer::begin(folder, make_parts(options), setup));
  const EvalReport& lowest = *std::ranges::min_element(evals.all, {}, &EvalReport::loss);
  ASSERT_LT(lowest.step, options.steps);
  const Json best = read_run_record(folder)["best"];
  EXPECT_EQ(best["step"], lowest.step);
  EXPECT_EQ(best["eval_loss"], lowest.loss);
  EXPECT_EQ(best["eval_accuracy"], lowest.accuracy);
  // The file is the model of that step: a run that stops there has the same tensors.
  const auto shorter = scratch / "shorter";
  {
    Trainer trainer = Trainer::begin(shorter, make_parts(options));
    trainer.advance(lowest.step);
  }
  EXPECT_TRUE(contents(shorter / "best.safetensors") == contents(folder / "best.safetensors"));
  EXPECT_FALSE(Checkpoint::open(folder / "best.safetensors").sparsity().tensors.empty());
}

TEST(Best, SurvivesAnInterruptionAndIsLeftOutWithoutEvaluations) {
  const ScratchFolder scratch;
  RunOptions options = small_run("mlp", "sr-ste");
  const auto none = scratch / "none", whole = scratch / "whole", pieces = scratch / "pieces";
  finished_model(none, Trainer::begin(none, make_parts(options)));
  EXPECT_FALSE(std::filesystem::exists(none / "best.safetensors"));
  EXPECT_FALSE(read_run_record(none).contains("best"));
  options.eval_every = 2;
  options.learning_rate = 0.3;
  finished_model(whole, Trainer::begin(whole, make_parts(options)));
  interrupted_model(pieces, options, {3, 6, 5});
  EXPECT_EQ(contents(pieces / "best.safetensors"), contents(whole / "best.safetensors"));
  EXPECT_EQ(read_run_record(pieces)["best"], read_run_record(whole)["best"]);
}

// A run that goes back, with other options, does not come to that model again.
TEST(Best, IsForgottenWhereTheRunGoesBackBehindIt) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  RunOptions options = small_run("mlp", "sr-ste");
  options.eval_every = 6;  // and saves after 4 and 8
  { Trainer::begin(folder, make_parts(options)).advance(6); }
  ASSERT_EQ(read_run_record(folder)["best"]["step"], 6);
  RunOptions lower = resume_options(folder);
  lower.learning_rate = 1e-9;
  { resumed(folder, lower).advance(1); }
  EXPECT_FALSE(read_run_record(folder).contains("best"));
}

TEST(Extend, ARunThatIsExtendedHasNoModelUntilItsEndAndNoOlderPack) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  RunOptions options = small_run("mlp", "sr-ste");
  options.exports = "packed";
  finished_model(folder, Trainer::begin(folder, make_parts(options)));
  ASSERT_TRUE(std::filesystem::exists(folder / "packed.safetensors"));
  load_model(folder);
  RunOptions more = resume_options(folder);
  more.steps = 16;
  more.exports = "dense";
  { resumed(folder, more).advance(1); }
  EXPECT_TRUE(contains(message_of([&] { load_model(folder); }), "the run has no model yet"));
  finished_model(folder, resumed(folder, more));
  EXPECT_FALSE(std::filesystem::exists(folder / "packed.safetensors"));
}

TEST(Metrics, CanBeThinned) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  RunOptions options = small_run("mlp");
  options.metrics_every = 5;
  Notes notes;
  finished_model(folder, Trainer::begin(folder, make_parts(options), listening(notes)));
  const std::vector<Json> lines = step_lines(folder);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["step"], 5);
  EXPECT_EQ(lines[1]["step"], 10);
  EXPECT_EQ(notes.losses.size(), 12u);
  EXPECT_EQ(notes.all, "");  // the typical time of a step was found in them
  EXPECT_GT(read_run_result(folder).step_seconds, 0.0);
}

}  // namespace
}  // namespace weft::test
