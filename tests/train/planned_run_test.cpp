// Runs that choose dense or sparse by what they measure: what is written down, and that a run with
// the same choices has the same bits.
#include "tests/support.h"
#include "tests/train/runs.h"

namespace weft::test {
namespace {

constexpr int64_t kSteps = 2 * Trial::kSteps + 8;  // the longest trial, and some steps after it

RunOptions measured_run() {
  RunOptions options = small_run("mlp", "t-sr-ste");
  options.sparse_ends = true;
  options.plan = "auto";
  options.steps = kSteps;
  options.eval_every = 5;  // before, in and after the trial
  return options;
}

std::vector<double> evaluations(const std::filesystem::path& folder) {
  std::vector<double> losses;
  std::ifstream stream(folder / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);) {
    const Json entry = Json::parse(line, "metrics");
    if (entry.contains("eval_loss")) losses.push_back(entry["eval_loss"].get<double>());
  }
  return losses;
}

const Json& plans_in(const Json& record) { return record["plan"]["plans"]; }

TEST(PlannedRun, WritesItsChoicesBeforeTheyTakeEffect) {
  const ScratchFolder scratch;
  Trainer trainer = Trainer::begin(scratch / "run", make_parts(measured_run()));
  trainer.advance(1);
  const Json begun = read_run_record(scratch / "run");
  ASSERT_GT(plans_in(begun).size(), 0U) << "a trial is under way, and not written down";
  for (const Json::Member& one : plans_in(begun).members()) {
    EXPECT_FALSE(one.value.contains("path")) << one.name << " is decided after a step";
    EXPECT_EQ(one.value["since"], Trial::kSteps);
  }
  trainer.advance(2 * Trial::kSteps - 1);
  const Json decided = read_run_record(scratch / "run");
  for (const Json::Member& one : plans_in(decided).members()) {
    EXPECT_TRUE(one.value.contains("path")) << one.name;
    EXPECT_LE(one.value["since"].get<int64_t>(), 2 * Trial::kSteps);
  }
  for (const Json& line : step_lines(scratch / "run")) {
    if (line["step"].get<int64_t>() > Trial::kSteps) continue;
    EXPECT_TRUE(line.contains("measuring")) << line.dump();
  }
}

TEST(PlannedRun, IsRepeatedToTheBitByItsChoices) {
  const ScratchFolder scratch;
  const std::string model =
      finished_model(scratch / "run", Trainer::begin(scratch / "run", make_parts(measured_run())));
  RunOptions options = measured_run();
  options.plan = (scratch / "run").string();
  EXPECT_EQ(
      finished_model(scratch / "again", Trainer::begin(scratch / "again", make_parts(options))),
      model);
  EXPECT_EQ(evaluations(scratch / "again"), evaluations(scratch / "run"));
  // Killed in the trial and after it, and gone on with.
  EXPECT_EQ(interrupted_model(scratch / "killed", options, {7, 20, 12}), model);
  EXPECT_EQ(evaluations(scratch / "killed"), evaluations(scratch / "run"));
}

// A run that was killed before anything was decided measures again; repeated by what it then chose,
// it has its bits.
TEST(PlannedRun, MeasuresAgainIfItWasKilledInItsTrial) {
  const ScratchFolder scratch;
  const std::string model = interrupted_model(scratch / "run", measured_run(), {9});
  const Json record = read_run_record(scratch / "run");
  for (const Json::Member& one : plans_in(record).members()) {
    EXPECT_GE(one.value["since"].get<int64_t>(), 8 + Trial::kSteps)
        << "from the checkpoint of step 8";
  }
  RunOptions options = measured_run();
  options.plan = (scratch / "run").string();
  EXPECT_EQ(
      finished_model(scratch / "again", Trainer::begin(scratch / "again", make_parts(options))),
      model);
  EXPECT_EQ(evaluations(scratch / "again"), evaluations(scratch / "run"));
}

TEST(PlannedRun, TellsItsPlanOnceItIsDecided) {
  struct Plans : TrainerListener {
    void on_plan(const std::vector<PlannedLayer>& layers) override {
      for (const PlannedLayer& layer : layers) {
        ASSERT_TRUE(layer.plan);
        for (const ProductPlan& one : layer.plan->products)
          told[layer.report.name] += one.path() + " ";
      }
    }
    std::map<std::string, std::string> told;
  } plans;
  const ScratchFolder scratch;
  TrainerSetup setup;
  setup.listener = &plans;
  Trainer trainer = Trainer::begin(scratch / "run", make_parts(measured_run()), setup);
  trainer.advance(3);
  EXPECT_TRUE(plans.told.empty());
  trainer.advance(2 * Trial::kSteps);
  EXPECT_EQ(plans.told.size(), 3U) << "two hidden layers, and the head";
}

// What `plan` of a file notes in a run of these options.
std::string notes_of_plan(const ScratchFolder& scratch, RunOptions options,
                          const std::filesystem::path& plan) {
  options.plan = plan.string();
  Notes notes;
  const auto folder = scratch / "noted";
  Trainer::begin(folder, make_parts(options), listening(notes));
  std::filesystem::remove_all(folder);
  return notes.all;
}

TEST(PlannedRun, NotesAPlanOfAnotherMachineOrOfOtherShapes) {
  const ScratchFolder scratch;
  finished_model(scratch / "run",
                 Trainer::begin(scratch / "run", make_parts(small_run("mlp", "t-sr-ste"))));
  RunOptions options = small_run("mlp", "t-sr-ste");
  EXPECT_EQ(notes_of_plan(scratch, options, scratch / "run"), "");
  RunOptions wider = options;
  wider.width = 24;
  const std::string shapes = notes_of_plan(scratch, wider, scratch / "run");
  EXPECT_TRUE(contains(shapes, "has no choice for any layer of this model at batches of 8"))
      << shapes;
  RunOptions larger = options;
  larger.batch = 32;
  EXPECT_NE(notes_of_plan(scratch, larger, scratch / "run"), "");
  larger.batch = 12;  // about as many
  EXPECT_EQ(notes_of_plan(scratch, larger, scratch / "run"), "");
  RunOptions dense = wider;
  dense.recipe = "dense";  // it plans nothing
  EXPECT_EQ(notes_of_plan(scratch, dense, scratch / "run"), "");

  Json record = read_run_record(scratch / "run");
  record["plan"]["machine"]["cpu"] = "an abacus";
  put(scratch / "elsewhere.json", record.dump());
  const std::string machine = notes_of_plan(scratch, options, scratch / "elsewhere.json");
  EXPECT_TRUE(contains(machine, "elsewhere.json: measured on an abacus, ")) << machine;
  EXPECT_TRUE(contains(machine, "this is " + PlanMachine::here().text())) << machine;
  EXPECT_EQ(std::count(machine.begin(), machine.end(), '\n'), 1) << machine;
}

}  // namespace
}  // namespace weft::test
