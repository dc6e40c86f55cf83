// Runs as reports see them: folders, variants, curves, times, masks.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/report/made_runs.h"
#include "tests/support.h"
#include "weft/report/curves.h"
#include "weft/report/mask_picture.h"
#include "weft/report/runs.h"

namespace weft::test {
namespace {

std::vector<ReportedRun> read_all_runs(const std::vector<std::string>& arguments) {
  const auto folders = run_folders(arguments);
  const auto names = run_names(folders);
  std::vector<ReportedRun> runs;
  for (size_t i = 0; i < folders.size(); ++i) {
    runs.push_back(read_reported_run(folders[i], names[i]));
  }
  return runs;
}

TEST(RunFolders, AComparisonStandsForItsRunsOnce) {
  const ScratchFolder scratch;
  write_made_comparison(scratch / "compare");
  write_made_run(scratch / "compare/dense-seed1-turns2", made_run("dense", 1));
  std::filesystem::create_directories(scratch / "compare/other");
  write_made_run(scratch / "first", made_run("s-ste", 1));
  const auto folders =
      run_folders({scratch / "first", scratch / "compare", (scratch / "first/").string()});
  std::vector<std::string> names;
  for (const auto& folder : folders) names.push_back(folder.filename());
  EXPECT_EQ(names, (std::vector<std::string>{"first", "dense-seed1", "dense-seed2", "s-ste-seed1",
                                             "s-ste-seed2"}));
  for (const char* none : {"compare/other", "nowhere"}) {
    const std::string problem = message_of([&] { run_folders({scratch / none}); });
    EXPECT_TRUE(contains(problem, std::string(none) + ": not the folder of a run")) << problem;
  }
}

TEST(RunFolders, EqualNamesGetNumbers) {
  EXPECT_EQ(run_names({"a/first", "b/first", "c/second", "d/first/"}),
            (std::vector<std::string>{"first", "first-2", "second", "first-3"}));
}

TEST(Variants, AreRunsThatDifferInTheSeedAlone) {
  const ScratchFolder scratch;
  write_made_comparison(scratch / "compare");
  MadeRun other = made_run("s-ste", 1);
  other.options.width = 64;
  write_made_run(scratch / "wide", other);
  other.options.width = 0;
  other.options.threads = 1;  // changes nothing that is learnt
  other.options.seed = 3;
  write_made_run(scratch / "again", other);
  const auto runs = read_all_runs({scratch / "wide", scratch / "compare", scratch / "again"});
  const std::vector<Variant> variants = variants_of(runs);
  ASSERT_EQ(variants.size(), 3u);
  EXPECT_EQ(variants[0].name, "dense");
  EXPECT_EQ(variants[0].style, 0);
  EXPECT_EQ(variants[0].runs.size(), 2u);
  EXPECT_EQ(variants[1].name, "s-ste 2:4, width 64");
  EXPECT_EQ(variants[2].name, "s-ste 2:4");
  EXPECT_EQ(variants[2].runs.size(), 3u);
}

TEST(Variants, HaveTheSpeedOfTheirComparison) {
  const ScratchFolder scratch;
  write_made_comparison(scratch / "compare");
  put(scratch / "compare/compare.json",
      R"({"rows": [{"recipe": "dense", "pattern": "", "step_ratio": 1, "step_ratio_spread": [1, 1]},
                   {"recipe": "s-ste", "pattern": "2:4", "step_ratio": 1.25,
                    "step_ratio_spread": [1.2, 1.3]}]})");
  const auto runs = read_all_runs({scratch / "compare"});
  const std::vector<Variant> variants = variants_of(runs);
  ASSERT_TRUE(variants[1].speed);
  EXPECT_EQ(variants[1].speed->ratio, 1.25);
  EXPECT_EQ(variants[1].speed->high, 1.3);
  put(scratch / "compare/compare.json", R"({"rows": [{"recipe": "dense"}]})");
  EXPECT_TRUE(contains(message_of([&] { variants_of(runs); }), "compare.json: "));
  put(scratch / "compare/compare.json", "[]");
  EXPECT_TRUE(contains(message_of([&] { variants_of(runs); }), "compare.json: not the table"));
}

TEST(ReportedRuns, AreReadWholeAndUnfinished) {
  const ScratchFolder scratch;
  MadeRun made = made_run("s-ste", 1);
  write_made_run(scratch / "done", made);
  made.steps_done = 13;
  made.loss = [](int64_t step) { return step == 12 ? NAN : 1.0; };
  write_made_run(scratch / "stopped", made);
  // The line that was being written.
  std::ofstream(scratch / "stopped/metrics.jsonl", std::ios::app) << R"({"step":14,"lo)";
  const ReportedRun done = read_reported_run(scratch / "done", "done");
  ASSERT_TRUE(done.result);
  EXPECT_EQ(done.steps.size(), 40u);
  EXPECT_EQ(done.evals.size(), 4u);
  EXPECT_NEAR(done.steps.back().seconds, 0.4, 1e-9);
  EXPECT_FALSE(done.diverged());
  ASSERT_EQ(done.layers.size(), 2u);
  EXPECT_EQ(done.layers[1].products[1].name, "bwd_x_ragged");
  EXPECT_EQ(done.last_layers["hidden1"]["retained"].get<double>(), 0.74);
  const ReportedRun stopped = read_reported_run(scratch / "stopped", "stopped");
  EXPECT_FALSE(stopped.result);
  EXPECT_EQ(stopped.last_step(), 13);
  EXPECT_TRUE(stopped.diverged());
  EXPECT_EQ(stopped.last_layers["hidden1"]["retained"].get<double>(), 0.71);  // of step 10
}

TEST(ReportedRuns, AMalformedFolderIsNamedInOneLine) {
  const ScratchFolder scratch;
  const auto problem = [&](const std::string& file, const std::string& text) {
    write_made_run(scratch / "run", made_run("s-ste", 1));
    put(scratch / "run" / file, text);
    const std::string line = message_of([&] { read_reported_run(scratch / "run", "run"); });
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_TRUE(contains(line, file)) << line;
    return line;
  };
  problem("run.json", "");
  problem("run.json", "{}");
  problem("run.json", std::string("\0\xff", 2));
  const auto changed = [&](const std::string& member, const Json& value) {
    Json record = made_record(made_run("s-ste", 1));
    record[member] = value;
    return problem("run.json", record.dump());
  };
  changed("environment", 3);
  changed("changes", 3);
  changed("layers", "none");
  changed("layers", {{{"kind", "a layer without a name"}}});
  changed("layers", {{{"name", 3}}});
  changed("result", nullptr);
  changed("options", {{"recipe", "magic"}});
  EXPECT_TRUE(contains(problem("metrics.jsonl", "{\"step\": 1}\n"), "metrics.jsonl:1: 'step_ms'"));
  EXPECT_TRUE(contains(problem("metrics.jsonl", "null\n"), "metrics.jsonl:1: not a line"));
  EXPECT_TRUE(contains(problem("metrics.jsonl", "{\"step\": 1e300, \"step_ms\": 1}\n"), "'step'"));
  EXPECT_TRUE(contains(problem("metrics.jsonl", "{\"step\": 1, \"step_ms\": -1}\n"), "'step_ms'"));
  const std::string step = made_step(made_run("s-ste", 1), 2).dump() + "\n";
  EXPECT_TRUE(
      contains(problem("metrics.jsonl", step + step), "metrics.jsonl:2: step 2 after step 2"));
  EXPECT_TRUE(
      contains(problem("metrics.jsonl", "{\"step\": 1, \"step_ms\": 1, \"layers\": {\"a\": 3}}\n"),
               "layer 'a'"));
  EXPECT_TRUE(contains(
      problem("metrics.jsonl", "{\"step\": 1, \"step_ms\": 1, \"loss\": \"high\"}\n"), "'loss'"));
  EXPECT_TRUE(
      contains(problem("metrics.jsonl", std::string(17 << 20, ' ')), "a line of more than"));
  std::filesystem::remove(scratch / "run/metrics.jsonl");
  EXPECT_TRUE(contains(message_of([&] { read_reported_run(scratch / "run", "run"); }),
                       "metrics.jsonl: cannot be read"));
}

TEST(Curves, AreMeansOverSeedsWithTheirRange) {
  const ScratchFolder scratch;
  for (const int64_t seed : {1, 2, 3}) {
    MadeRun made = made_run("s-ste", seed);
    made.loss = [seed](int64_t step) { return static_cast<double>(10 * step + seed * seed); };
    made.step_ms = [seed](int64_t) { return 10.0 * static_cast<double>(seed); };
    write_made_run(scratch / fmt::format("run{}", seed), made);
  }
  const auto runs = read_all_runs({scratch.path()});
  const std::vector<Variant> variants = variants_of(runs);
  ASSERT_EQ(variants.size(), 1u);
  const Samples loss = [](const ReportedRun& run) {
    std::vector<Sample> samples;
    for (const StepFigures& s : run.steps) samples.push_back({s.step, s.seconds, s.loss});
    return samples;
  };
  auto points = curve_of(variants[0], loss, 1, false);
  ASSERT_EQ(points.size(), 40u);
  EXPECT_EQ(points[4].step, 5);
  EXPECT_DOUBLE_EQ(points[4].x, 5);
  EXPECT_NEAR(points[4].y, 50 + 14.0 / 3, 1e-9);
  EXPECT_DOUBLE_EQ(points[4].low, 51);
  EXPECT_DOUBLE_EQ(points[4].high, 59);
  points = curve_of(variants[0], loss, 1, true);
  EXPECT_NEAR(points[4].x, 0.1, 1e-9);  // 5 steps of 20 ms in the mean
  points = curve_of(variants[0], loss, 16, false);
  ASSERT_EQ(points.size(), 3u);  // 1 to 16, 17 to 32, 33 to 40
  EXPECT_DOUBLE_EQ(points[0].x, 8.5);
  EXPECT_DOUBLE_EQ(points[0].low, 86);
  EXPECT_EQ(points[2].step, 40);
  EXPECT_DOUBLE_EQ(points[2].x, 36.5);
}

TEST(Curves, FiguresThatAreNotFiniteAreLeftOut) {
  const ScratchFolder scratch;
  MadeRun made = made_run("s-ste", 1);
  made.steps_done = 20;
  made.loss = [](int64_t step) { return step > 15 ? NAN : 1.0; };
  write_made_run(scratch / "run", made);
  const auto runs = read_all_runs({scratch / "run"});
  const std::vector<Variant> variants = variants_of(runs);
  for (const LineChart& chart : curves_of(variants)) {
    for (const ChartSeries& series : chart.series) {
      for (const ChartPoint& point : series.points) {
        EXPECT_TRUE(std::isfinite(point.y)) << chart.id;
        EXPECT_TRUE(chart.id != "loss" || point.step <= 15) << point.step;
      }
    }
  }
}

std::set<std::string> charts_in(const std::vector<ReportedRun>& runs) {
  std::set<std::string> ids;
  const std::vector<Variant> variants = variants_of(runs);
  for (const LineChart& chart : curves_of(variants)) ids.insert(chart.id);
  return ids;
}

TEST(Curves, ThereIsAChartForWhatWasMeasuredOnly) {
  const ScratchFolder scratch;
  write_made_run(scratch / "s-ste", made_run("s-ste", 1));
  EXPECT_EQ(charts_in(read_all_runs({scratch / "s-ste"})),
            (std::set<std::string>{"accuracy", "accuracy-seconds", "test-loss", "test-loss-seconds",
                                   "loss", "loss-seconds", "flips", "retained"}));
  MadeRun dense = made_run("dense", 1);
  dense.eval_every = 0;  // at the end alone
  write_made_run(scratch / "dense", dense);
  EXPECT_EQ(charts_in(read_all_runs({scratch / "dense"})),
            (std::set<std::string>{"loss", "loss-seconds"}));
  EXPECT_EQ(charts_in(read_all_runs({scratch / "dense", scratch / "s-ste"})).count("accuracy"), 1u);
  MadeRun sparse = made_run("s-ste", 2);
  sparse.eval_every = 0;
  write_made_run(scratch / "sparse", sparse);
  EXPECT_TRUE(charts_in(read_all_runs({scratch / "dense", scratch / "sparse"}))
                  .contains("accuracy-seconds"));  // points of two variants can be compared
  dense.steps_done = 0;
  write_made_run(scratch / "begun", dense);
  EXPECT_EQ(charts_in(read_all_runs({scratch / "begun"})), std::set<std::string>());
}

TEST(Curves, LongRunsHaveFewPoints) {
  const ScratchFolder scratch;
  MadeRun made = made_run("s-ste", 1);
  made.options.steps = 1234;
  made.eval_every = 1;
  write_made_run(scratch / "run", made);
  const auto runs = read_all_runs({scratch / "run"});
  for (const LineChart& chart : curves_of(variants_of(runs))) {
    for (const ChartSeries& series : chart.series) {
      EXPECT_LE(static_cast<int64_t>(series.points.size()), kMostPoints) << chart.id;
      EXPECT_GT(series.points.size(), 90u) << chart.id;
    }
  }
}

TEST(StepTimes, AreThoseOfUsualStepsAndAddUp) {
  const ScratchFolder scratch;
  MadeRun made = made_run("s-ste", 1);
  made.step_ms = [](int64_t step) { return step % 8 == 0 ? 1000.0 : 20.0; };  // others disturb some
  write_made_run(scratch / "run", made);
  const auto runs = read_all_runs({scratch / "run"});
  const BarChart chart = step_times_of(variants_of(runs));
  ASSERT_EQ(chart.rows.size(), 1u);
  const std::vector<double>& parts = chart.rows[0].parts;
  ASSERT_EQ(parts.size(), chart.parts.size());
  EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0), 20.0, 1e-9);
  EXPECT_NEAR(parts[0], 4.0, 1e-9);  // fwd
  EXPECT_NEAR(parts[3], 1.0, 1e-9);  // packing
  EXPECT_NEAR(parts.back(), 6.0, 1e-9);
}

TEST(EvenSample, TakesWholeBlocksFromAllOfIt) {
  EXPECT_EQ(even_sample(5, 2, 10), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(even_sample(100, 4, 8), (std::vector<int64_t>{0, 1, 2, 3, 96, 97, 98, 99}));
  EXPECT_EQ(even_sample(98, 4, 8), (std::vector<int64_t>{0, 1, 2, 3, 96, 97}));
  EXPECT_EQ(even_sample(100, 16, 8), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(even_sample(0, 4, 8), std::vector<int64_t>());
}

TEST(MaskPictures, AreTheMaskOfASmallWeight) {
  const ScratchFolder scratch;
  write_made_model(scratch / "model.safetensors", "a.weight");
  const std::vector<MaskPicture> pictures = mask_pictures(scratch / "model.safetensors");
  ASSERT_EQ(pictures.size(), 1u);
  EXPECT_EQ(pictures[0].tensor, "a.weight");
  EXPECT_TRUE(pictures[0].is_whole());
  EXPECT_EQ(pictures[0].density(), 0.5);
  ASSERT_EQ(pictures[0].bitmap.width, 12);
  ASSERT_EQ(pictures[0].bitmap.height, 8);
  for (size_t i = 0; i < 96; ++i) EXPECT_EQ(pictures[0].bitmap.bits[i], i % 4 < 2) << i;
}

TEST(MaskPictures, AreBoundedAndKeepGroupsWhole) {
  const ScratchFolder scratch;
  write_made_model(scratch / "model.safetensors", "a.weight", 1000, 2002);
  const MaskPicture picture = mask_pictures(scratch / "model.safetensors").at(0);
  EXPECT_LE(picture.bitmap.width, MaskPicture::kMostPixels);
  EXPECT_LE(picture.bitmap.height, MaskPicture::kMostPixels);
  EXPECT_GT(picture.bitmap.width, 80);
  EXPECT_FALSE(picture.is_whole());
  EXPECT_NEAR(picture.density(), 0.5, 0.02);  // the last group is short
}

// Weight (o, i, tap) is at (o * ins + i) * taps + tap; groups lie along i.
TEST(MaskPictures, OfConvolutionsShowOneTapAfterTheOther) {
  const ScratchFolder scratch;
  Metadata metadata;
  Sparsity sparsity;
  sparsity.tensors.emplace("c.weight", Promise{Pattern(1, 4), Axis::kIn});
  sparsity.store_in(metadata);
  constexpr int64_t kOuts = 3, kIns = 8, kTaps = 9;
  std::vector<float> values(kOuts * kIns * kTaps);
  for (int64_t o = 0; o < kOuts; ++o) {
    for (int64_t i = 0; i < kIns; ++i) {
      for (int64_t tap = 0; tap < kTaps; ++tap) {
        values[static_cast<size_t>((o * kIns + i) * kTaps + tap)] = i % 4 == tap % 4 ? 1.0f : 0.0f;
      }
    }
  }
  SafetensorsWriter writer(scratch / "m.safetensors",
                           {tensor("c.weight", Dtype::kF32, {kOuts, kIns, 3, 3})}, metadata);
  writer.write("c.weight", 0, std::as_bytes(std::span(values)));
  writer.commit();
  const MaskPicture picture = mask_pictures(scratch / "m.safetensors").at(0);
  ASSERT_EQ(picture.bitmap.width, kIns * kTaps);
  for (int64_t col = 0; col < kIns * kTaps; ++col) {
    EXPECT_EQ(picture.bitmap.bits[static_cast<size_t>(col)], col % kIns % 4 == col / kIns % 4)
        << col;
  }
}

}  // namespace
}  // namespace weft::test
