// decay=auto: the λ that a run finds before it begins, and that this is all that it changes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <csignal>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/layer/linear_layer.h"
#include "weft/run/found_lambda.h"
#include "weft/train/find_lambda.h"

namespace weft::test {
namespace {

FoundLambda lambda_of(const std::filesystem::path& run) {
  const auto found = found_lambda(read_run_record(run), "run.json");
  EXPECT_TRUE(found) << run;
  return found.value_or(FoundLambda());
}

RunOptions auto_run(const std::string& model, const std::string& recipe) {
  RunOptions options = small_run(model, recipe);
  options.steps = 40;
  options.learning_rate = 1e-2;
  return options;
}

// Flips per weight and step in the second half of a run of as many steps as a trial has.
double second_half(const std::filesystem::path& run, const std::string& member) {
  const std::vector<Json> lines = step_lines(run);
  double sum = 0.0;
  for (size_t i = lines.size() / 2; i < lines.size(); ++i) sum += lines[i][member].get<double>();
  return sum / static_cast<double>(lines.size() - lines.size() / 2);
}

// Whole runs of 40 steps are what trials of it are, so that they say what was to be found.
TEST(FindLambda, IsTheRatioOfFlipsToThoseOfADenseRun) {
  for (const char* recipe : {"sr-ste+decay=auto", "transposable+decay=auto+mask_every=3"}) {
    const ScratchFolder scratch;
    RunOptions options = auto_run("mlp", recipe);
    options.plan = "dense";
    ASSERT_EQ(lambda_trial_steps(options.steps), options.steps);
    finished_model(scratch / "auto", Trainer::begin(scratch / "auto", make_parts(options)));
    const FoundLambda found = lambda_of(scratch / "auto");
    EXPECT_EQ(found.steps, 40);
    ASSERT_FALSE(found.trials.empty());

    RunOptions dense = options;
    dense.recipe = "dense";
    dense.flips_of = {with_lambda(recipe, 0.0)};
    finished_model(scratch / "dense", Trainer::begin(scratch / "dense", make_parts(dense)));
    const double dense_flips = second_half(scratch / "dense", "flip_rate");
    EXPECT_NEAR(found.dense_flip_rate, dense_flips, 1e-12) << recipe;
    EXPECT_GT(dense_flips, 0.0);
    for (const LambdaSearch::Trial& trial : found.trials) {
      const auto folder = scratch / fmt::format("with{}", trial.lambda);
      RunOptions with = options;
      with.recipe = with_lambda(recipe, trial.lambda);
      finished_model(folder, Trainer::begin(folder, make_parts(with)));
      EXPECT_NEAR(trial.ratio, second_half(folder, "flip_rate") / dense_flips, 1e-9)
          << recipe << " " << trial.lambda;
    }
  }
}

// Nothing of the trials is left in a run: it is that of the same λ, given.
TEST(FindLambda, TheRunIsThatOfTheLambdaToTheBit) {
  for (const auto& [model, recipe] : {std::pair<std::string, std::string>{"mlp", "sr-ste"},
                                      {"cnn", "bi-mask"},
                                      {"vit", "t-sr-ste"},
                                      {"mlp", "ste+dense_head=0.25"}}) {
    const ScratchFolder scratch;
    RunOptions options = auto_run(model, recipe + "+decay=auto");
    if (model == "vit") options.rules = {".*fc1=lbc@1:4"};  // with scores, as they were
    const std::string found =
        finished_model(scratch / "auto", Trainer::begin(scratch / "auto", make_parts(options)));
    RunOptions given = with_lambda(options, lambda_of(scratch / "auto").lambda);
    EXPECT_EQ(given.recipe.find("auto"), std::string::npos);
    EXPECT_EQ(found, finished_model(scratch / "given",
                                    Trainer::begin(scratch / "given", make_parts(given))))
        << model << " " << recipe;
    EXPECT_EQ(read_run_record(scratch / "auto")["options"]["recipe"], recipe + "+decay=auto");
  }
}

// It is found once: a run that goes on takes what was written, whatever that is.
TEST(FindLambda, AResumedRunReadsIt) {
  const ScratchFolder scratch;
  const RunOptions options = auto_run("mlp", "sr-ste+decay=auto");
  const std::string whole =
      finished_model(scratch / "whole", Trainer::begin(scratch / "whole", make_parts(options)));
  EXPECT_EQ(interrupted_model(scratch / "pieces", options, {7, 20}), whole);

  { Trainer::begin(scratch / "other", make_parts(options)); }  // no checkpoint: it starts over
  std::string record = contents(scratch / "other" / "run.json");
  Json changed = Json::parse(record, "test");
  changed["lambda"]["value"] = 0.5;
  put(scratch / "other" / "run.json", changed.dump(2));
  const std::string other = finished_model(
      scratch / "other",
      Trainer::resume(scratch / "other", make_parts(resume_options(scratch / "other"))));
  RunOptions given = options;
  given.recipe = "sr-ste+lambda=0.5";
  EXPECT_EQ(other, finished_model(scratch / "given",
                                  Trainer::begin(scratch / "given", make_parts(given))));
  changed.erase("lambda");
  changed["status"] = "running";
  put(scratch / "other" / "run.json", changed.dump(2));
  EXPECT_TRUE(contains(message_of([&] {
                         Trainer::resume(scratch / "other",
                                         make_parts(resume_options(scratch / "other")));
                       }),
                       "'lambda' is missing"));
}

TEST(FindLambda, SaysWhatItDoesAndStopsWhenAsked) {
  const ScratchFolder scratch;
  const RunOptions options = auto_run("mlp", "sr-ste+decay=auto");
  Notes notes;
  { Trainer::begin(scratch / "run", make_parts(options), listening(notes)); }
  EXPECT_TRUE(contains(notes.all, "up to five short trainings of 40 steps")) << notes.all;
  EXPECT_TRUE(contains(notes.all, "times as often as those of dense")) << notes.all;
  const std::atomic<int> stop = SIGTERM;
  TrainerSetup setup;
  setup.stop = &stop;
  EXPECT_THROW(Trainer::begin(scratch / "stopped", make_parts(options), setup), Stopped);
  EXPECT_FALSE(std::filesystem::exists(scratch / "stopped"));
  RunOptions still = options;
  still.learning_rate = 1e-12;  // no weight moves
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(scratch / "still", make_parts(still)); }),
                       "no mask of dense weights changes"));
  RunOptions none = options;
  none.rules = {".*=dense"};
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(scratch / "none", make_parts(none)); }),
                       "no layer is sparse"));
}

TEST(FindLambda, ALayerOfAnotherLoopSaysWhatToGive) {
  LinearLayer layer(8, 8);
  LayerSettings settings;
  settings.recipe = Recipe::parse("sr-ste+decay=auto");
  EXPECT_TRUE(contains(message_of([&] { layer.configure(settings); }),
                       "give decay=gradient+lambda=X here"));
}

}  // namespace
}  // namespace weft::test
