// weft report and weft export, as a user calls them.
#include <gtest/gtest.h>

#include "tests/program.h"
#include "tests/report/made_runs.h"
#include "tests/support.h"

namespace weft::test {
namespace {

TEST(ReportCommand, WritesThePageAndNamesIt) {
  const ScratchFolder scratch;
  write_made_comparison(scratch / "compare");
  const std::string page = scratch / "report.html";
  const Outcome outcome = run({"report", scratch / "compare", "--out", page});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, page + ": 4 runs, ")) << outcome.out;
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(contents(page).starts_with("<!DOCTYPE html>"));
}

TEST(ReportCommand, AMalformedRunIsOneLineAndNoPage) {
  const ScratchFolder scratch;
  write_made_run(scratch / "run", made_run("s-ste", 1));
  put(scratch / "run/metrics.jsonl", "{\"step\": 1}\n{}\n");
  const Outcome outcome = run({"report", scratch / "run", "--out", scratch / "report.html"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "metrics.jsonl:1: ")) << outcome.err;
  EXPECT_EQ(names_in(scratch.path()), (std::set<std::string>{"run"}));
  const Outcome none = run({"report", scratch / "none", "--out", scratch / "report.html"});
  EXPECT_EQ(none.code, 1);
  EXPECT_TRUE(contains(none.err, "none: not the folder of a run or of a comparison")) << none.err;
}

TEST(ReportCommand, WrongUsageIsExitCodeTwo) {
  EXPECT_EQ(run({"report", "--out", "x.html"}).code, 2);
  EXPECT_EQ(run({"report", "runs"}).code, 2);
  EXPECT_EQ(run({"export", "runs", "--to", "xml"}).code, 2);
  EXPECT_EQ(run({"export", "runs", "--to", "tensorboard"}).code, 2);
  EXPECT_EQ(run({"export", "runs", "--to", "tensorboard", "--layers", "--out", "x"}).code, 2);
}

TEST(ExportCommand, WritesCsvToStandardOutputOrAFile) {
  const ScratchFolder scratch;
  write_made_run(scratch / "first", made_run("s-ste", 1));
  const Outcome printed = run({"export", scratch / "first", "--to", "csv"});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_TRUE(printed.out.starts_with("run,recipe,pattern,seed,step,seconds,loss,")) << printed.out;
  EXPECT_EQ(std::count(printed.out.begin(), printed.out.end(), '\n'), 1 + 40 + 4);
  const std::string file = scratch / "metrics.csv";
  const Outcome written = run({"export", scratch / "first", "--to", "csv", "--out", file});
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(contents(file), printed.out);
  put(scratch / "first/metrics.jsonl", "no\n");
  EXPECT_EQ(run({"export", scratch / "first", "--to", "csv", "--out", file}).code, 1);
  EXPECT_EQ(contents(file), printed.out);  // as it was
}

TEST(ExportCommand, WritesEventFilesAndSaysWhere) {
  const ScratchFolder scratch;
  write_made_comparison(scratch / "compare");
  const std::string events = scratch / "events";
  const Outcome outcome =
      run({"export", scratch / "compare", "--to", "tensorboard", "--out", events});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, events + "/s-ste-seed2/events.out.tfevents.weft\n"));
  EXPECT_TRUE(contains(outcome.out, "tensorboard --logdir " + events)) << outcome.out;
  EXPECT_TRUE(std::filesystem::exists(events + "/dense-seed1/events.out.tfevents.weft"));
}

// What the trainer writes is what a report reads.
TEST(ReportCommand, ReadsWhatCompareWrites) {
  if (!has_torch()) GTEST_SKIP() << "built without libtorch";
  const ScratchFolder scratch;
  ::setenv("XDG_CACHE_HOME", (scratch / "cache").c_str(), 1);
  const Outcome trained = run({"compare",
                               "--model",
                               "mlp",
                               "--width",
                               "32",
                               "--batch",
                               "16",
                               "--steps",
                               "20",
                               "--train-images",
                               "100",
                               "--test-images",
                               "50",
                               "--seeds",
                               "2",
                               "--recipes",
                               "dense,s-ste,t-sr-ste",
                               "--eval-every",
                               "5",
                               "--tensorboard",
                               scratch / "events",
                               "--no-memory",
                               "--out",
                               scratch / "compare"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string page = scratch / "report.html";
  const Outcome outcome = run({"report", scratch / "compare", "--out", page});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string text = contents(page);
  for (const char* part :
       {"6 runs of 3 variants", "t-sr-ste 2:4", "Retained magnitude over steps",
        "data:image/png;base64,", "the model ends with dense weights", "measured in the run"}) {
    EXPECT_TRUE(contains(text, part)) << part;
  }
  EXPECT_EQ(run({"export", scratch / "compare", "--to", "csv"}).code, 0);
  EXPECT_EQ(names_in(scratch / "events").size(), 6u);  // --tensorboard
  const std::string events = scratch / "events/s-ste-2of4-seed2/events.out.tfevents.weft";
  const std::string at_the_end = contents(events);
  EXPECT_TRUE(contains(at_the_end, "eval/accuracy"));
  EXPECT_EQ(
      run({"train", "--model", "mlp", "--width", "32", "--steps", "3", "--train-images", "100",
           "--test-images", "50", "--out", scratch / "one", "--tensorboard", scratch / "events"})
          .code,
      0);
  EXPECT_TRUE(std::filesystem::exists(scratch / "events/one/events.out.tfevents.weft"));
}

}  // namespace
}  // namespace weft::test
