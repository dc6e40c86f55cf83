// Runs that were resumed with other options, repeated; and finished runs that get another export.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/run/repeat_command.h"

namespace weft::test {
namespace {

std::vector<RunChange> changes_of(const std::filesystem::path& folder) {
  return read_changes(read_run_record(folder), "run.json");
}

TEST(ChangedRun, RecordsWhatChangedAndWhen) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  { Trainer::begin(folder, make_parts(small_run("mlp", "sr-ste"))).advance(5); }  // saved after 4
  EXPECT_FALSE(read_run_record(folder).contains("changes"));
  { resumed(folder, resume_options(folder)); }
  EXPECT_FALSE(read_run_record(folder).contains("changes"));
  RunOptions other = resume_options(folder);
  other.learning_rate = 1e-4;
  finished_model(folder, resumed(folder, other));
  other.steps = 18;
  finished_model(folder, resumed(folder, other));
  const auto changes = changes_of(folder);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].step, 4);
  EXPECT_EQ(changes[0].text(), "learning-rate 0.002 to 0.0001");
  EXPECT_EQ(changes[1].step, 12);
  EXPECT_EQ(changes[1].text(), "steps 12 to 18");
}

TEST(ChangedRun, AnExtendedOneIsRepeatedToTheBitInTheSameStretches) {
  const ScratchFolder scratch;
  const auto first = scratch / "run", again = scratch / "again";
  finished_model(first, Trainer::begin(first, make_parts(small_run("mlp", "t-sr-ste"))));
  RunOptions more = resume_options(first);
  more.steps = 20;
  more.learning_rate = 1e-4;
  const std::string model = finished_model(first, resumed(first, more));

  RunOptions options = changes_of(first).at(0).undone(resume_options(first));
  EXPECT_EQ(options.steps, 12);
  options.plan = first.string();
  finished_model(again, Trainer::begin(again, make_parts(options)));
  more = resume_options(again);
  more.steps = 20;
  more.learning_rate = 1e-4;
  EXPECT_EQ(finished_model(again, resumed(again, more)), model);
}

TEST(FinishedRun, GetsAnotherExport) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  { Trainer::begin(folder, make_parts(small_run("mlp", "sr-ste"))).advance(5); }
  EXPECT_TRUE(contains(message_of([&] { export_finished(folder, "packed"); }), "not finished"));
  const std::string model = finished_model(folder, resumed(folder, resume_options(folder)));
  const RunResult result = export_finished(folder, "packed");
  EXPECT_EQ(result.packed_bytes, std::filesystem::file_size(folder / "packed.safetensors"));
  EXPECT_EQ(read_run_result(folder).packed_bytes, result.packed_bytes);
  EXPECT_EQ(resume_options(folder).exports, "packed");
  EXPECT_EQ(contents(folder / "model.safetensors"), model);
  EXPECT_EQ(export_finished(folder, "dense").packed_bytes, 0u);
  EXPECT_FALSE(std::filesystem::exists(folder / "packed.safetensors"));
}

TEST(Environment, NamesTheCpuAndTheCommit) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run";
  { Trainer::begin(folder, make_parts(small_run("mlp"))); }
  Json record = read_run_record(folder);
  EXPECT_EQ(record["environment"]["cpu"], PlanMachine::here().cpu);
  EXPECT_FALSE(record["environment"]["commit"].get<std::string>().empty());
  // Others need not change a bit, and are no reason for a note; another instruction set is.
  record["environment"]["cpu"] = "an abacus";
  record["environment"]["commit"] = "0000000";
  record["environment"]["isa"] = "beads";
  put(folder / "run.json", record.dump());
  Notes notes;
  Trainer::resume(folder, make_parts(resume_options(folder)), listening(notes));
  EXPECT_EQ(notes.all.find("isa: was \"beads\""), 0u) << notes.all;
  EXPECT_EQ(std::count(notes.all.begin(), notes.all.end(), '\n'), 1) << notes.all;
}

}  // namespace
}  // namespace weft::test
