// weft mask as its users meet it: what it reports, writes and leaves alone.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <thread>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"
#include "weft/mask/solver.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

TEST(Mask, ReportsAndWritesWhatItPromises) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = run({"mask", model, out, "--pattern", "2:4", "--json"});
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json report = outcome.json();
  double seconds = 0.0;
  EXPECT_EQ(report["pattern"], "2:4");
  EXPECT_EQ(report["transposable"], false);
  EXPECT_EQ(report["solver"], "magnitude");
  std::set<std::string> masked, skipped;
  for (const Json& tensor : report["tensors"]) {
    masked.insert(tensor["name"].get<std::string>());
    EXPECT_EQ(tensor["gap"], 0.0);
    seconds += tensor["seconds"].get<double>();
  }
  EXPECT_GT(seconds, 0.0);
  EXPECT_LT(seconds, whole.count());
  for (const Json& tensor : report["skipped"]) {
    skipped.insert(tensor["name"].get<std::string>());
    EXPECT_NE(tensor["reason"], "");
  }
  EXPECT_EQ(masked, (std::set<std::string>{"fc1.weight", "conv.weight", "half.weight",
                                           "brain.weight", "double.weight"}));
  EXPECT_EQ(skipped, (std::set<std::string>{"fc1.bias", "embed_tokens.weight", "norm.weight"}));

  double score = 0, total = 0;
  const auto before = floats_of(model, "fc1.weight"), after = floats_of(out, "fc1.weight");
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(after[i] == 0 ||
                std::bit_cast<uint32_t>(after[i]) == std::bit_cast<uint32_t>(before[i]));
    score += std::abs(double{after[i]});
    total += std::abs(double{before[i]});
  }
  const Json& fc1 = report["tensors"][0];
  EXPECT_EQ(fc1["shape"], Json({24, 40}));
  EXPECT_EQ(fc1["density"], 0.5);
  EXPECT_NEAR(fc1["score"].get<double>(), score, 1e-9);
  EXPECT_NEAR(fc1["retained_l1"].get<double>(), score / total, 1e-12);
  EXPECT_EQ(tensor_bytes_of(model, "embed_tokens.weight"),
            tensor_bytes_of(out, "embed_tokens.weight"));
  EXPECT_EQ(Checkpoint::open(out).shard(0).header().metadata.at("author"), "somebody");
}

TEST(Mask, OfEverySolverAndPatternPassesCheckWithoutFlags) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  std::vector<std::string> patterns = {"3:5", "2:4x2", "8:16"};
  if (!sanitized()) patterns.insert(patterns.end(), {"2:4", "1:4", "4:8", "1:16"});
  for (const Solver& solver : solvers()) {
    for (const std::string& pattern : patterns) {
      SCOPED_TRACE(fmt::format("{} {}", solver.name, pattern));
      const std::string out = folder / "out.safetensors";
      std::vector<std::string> args = {
          "mask", model, out, "--pattern", pattern, "--solver", std::string(solver.name)};
      if (solver.transposable) args.push_back("--transposable");
      const Outcome masked = run(args);
      ASSERT_EQ(masked.code, 0) << masked.err;
      const Outcome checked = run({"check", out, "--json"});
      EXPECT_EQ(checked.code, 0) << checked.out;
      const Json report = checked.json();
      EXPECT_EQ(report["pattern"], pattern);
      EXPECT_EQ(report["valid"], true);
      EXPECT_EQ(report["tensors"].size(), 5u);
      EXPECT_EQ(report["tensors"][0]["groups_out"].is_null(), !solver.transposable);
    }
  }
}

TEST(Mask, IsTheSameFileForAnyNumberOfThreads) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  for (const char* flag : {"--json", "--transposable"}) {
    const std::string one = folder / "one.safetensors", two = folder / "two.safetensors";
    ASSERT_EQ(run({"mask", model, one, "--pattern", "4:8", flag, "--threads", "1"}).code, 0);
    ASSERT_EQ(run({"mask", model, two, "--pattern", "4:8", flag, "--threads", "2"}).code, 0);
    EXPECT_EQ(contents(one), contents(two));
  }
}

TEST(Mask, MasksFileHoldsTheMasks) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  const std::string masks = folder / "masks.safetensors";
  ASSERT_EQ(run({"mask", model, out, "--pattern", "2:4", "--masks", masks}).code, 0);
  const std::string mask = tensor_bytes_of(masks, "conv.weight");
  const auto weights = floats_of(out, "conv.weight");
  ASSERT_EQ(mask.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(mask[i] == 1, weights[i] != 0) << i;
  EXPECT_EQ(run({"check", masks}).code, 0);
}

TEST(Mask, ReorderRetainsMoreAndWritesTheOrder) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors",
                    masks = folder / "masks.safetensors";
  for (const bool transposable : {false, true}) {
    std::vector<std::string> line = {"mask",      model,     out,   "--pattern", "2:4x2",
                                     "--reorder", "--masks", masks, "--json"};
    if (transposable) line.push_back("--transposable");
    const Outcome mask = run(line);
    ASSERT_EQ(mask.code, 0) << mask.err;
    const Json report = Json::parse(mask.out, "report");
    EXPECT_EQ(report["reorder"], true);
    bool more = false;
    for (const Json& tensor : report["tensors"]) {
      const auto with = tensor["retained_l1"].get<double>();
      const auto without = tensor["retained_l1_unpermuted"].get<double>();
      EXPECT_GE(with, without);
      more |= with > without;
    }
    EXPECT_TRUE(more);
    for (const std::string& file : {out, masks}) {
      EXPECT_EQ(run({"check", file}).code, 0) << run({"check", file}).out;
      const Checkpoint checkpoint = Checkpoint::open(file);
      for (const auto& [name, promise] : checkpoint.sparsity().tensors) {
        EXPECT_TRUE(promise.row_order.ends_with("row_order")) << name;
      }
    }
  }
  const Outcome table = run({"mask", model, out, "--pattern", "2:4x2", "--reorder"});
  EXPECT_TRUE(contains(table.out, "unpermuted")) << table.out;
  // Masked again, as rows lie: the old orders are gone.
  const std::string again = folder / "again.safetensors";
  ASSERT_EQ(run({"mask", out, again, "--pattern", "1:4x4"}).code, 0);
  EXPECT_EQ(run({"check", again}).code, 0);
  const Checkpoint masked_again = Checkpoint::open(again);
  for (const ShardedTensor& tensor : masked_again.tensors()) {
    EXPECT_FALSE(tensor.info.name.ends_with("row_order")) << tensor.info.name;
  }
}

TEST(Mask, GreedySolversCarryACertifiedGap) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  const auto masked = [&](const char* solver) {
    return run({"mask", model, out, "--pattern", "4:8", "--transposable", "--solver", solver,
                "--include", "fc1.weight", "--json"})
        .json()["tensors"][0];
  };
  const Json exact = masked("exact"), greedy = masked("greedy-keep");
  EXPECT_EQ(exact["gap"], 0.0);
  const auto optimum = exact["score"].get<double>(), kept = greedy["score"].get<double>();
  const auto gap = greedy["gap"].get<double>();
  EXPECT_GE(gap, (optimum - kept) / optimum - 1e-12) << "the bound is below the optimum";
  EXPECT_LT(gap, 0.1);
}

TEST(Mask, IncludeAndExcludeSelectByName) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  const Json included =
      run({"mask", model, out, "--pattern", "2:4", "--include", "embed|norm|bias", "--json"})
          .json();
  ASSERT_EQ(included["tensors"].size(), 2u);
  EXPECT_EQ(included["tensors"][0]["name"], "embed_tokens.weight");
  EXPECT_EQ(included["skipped"][1]["reason"], "1 dimension: weights have 2 or 4");
  const Json excluded =
      run({"mask", model, out, "--pattern", "2:4", "--exclude", "^conv|half", "--json"}).json();
  EXPECT_EQ(excluded["tensors"].size(), 3u);
  expect_one_line(run({"mask", model, out, "--pattern", "2:4", "--include", "(["}), 2,
                  {"--include", "(["});
  expect_one_line(run({"mask", model, out, "--pattern", "2:4", "--include", "nothing"}), 1,
                  {"no tensor to mask"});
}

TEST(Mask, KeepsThePromisesOfTensorsThatItLeavesAlone) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  ASSERT_EQ(run({"mask", model, out, "--pattern", "2:4", "--include", "fc1.weight"}).code, 0);
  ASSERT_EQ(run({"mask", out, out, "--pattern", "1:4", "--include", "conv", "--in-place"}).code, 0);
  const Json report = run({"check", out, "--json"}).json();
  ASSERT_EQ(report["tensors"].size(), 2u);
  EXPECT_EQ(report["tensors"][0]["pattern"], "2:4");
  EXPECT_EQ(report["tensors"][1]["pattern"], "1:4");
  EXPECT_TRUE(report["pattern"].is_null());
}

TEST(Mask, RefusesWeightsThatAreNotFiniteAndLeavesNothing) {
  const ScratchFolder folder;
  const std::string in = folder / "in.safetensors";
  auto weights = gaussian(8 * 8 * 3 * 3);
  weights[(2 * 8 + 5) * 9 + 4] = std::numeric_limits<float>::quiet_NaN();
  write_file(in, {{"conv.weight", Dtype::kF32, {8, 8, 3, 3}, weights}});
  expect_one_line(run({"mask", in, folder / "out.safetensors", "--pattern", "2:4", "--masks",
                       folder / "masks.safetensors"}),
                  1, {"in.safetensors", "conv.weight", "[2, 5, 1, 1]", "nan"});
  weights[(2 * 8 + 5) * 9 + 4] = -std::numeric_limits<float>::infinity();
  write_file(in, {{"conv.weight", Dtype::kF32, {8, 8, 3, 3}, weights}});
  expect_one_line(run({"mask", in, folder / "out.safetensors", "--pattern", "2:4"}), 1,
                  {"conv.weight", "-inf"});
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"in.safetensors"});
}

TEST(Mask, FailsCleanlyWhereItCannotReadOrWrite) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  expect_one_line(run({"mask", folder / "none.safetensors", folder / "o", "--pattern", "2:4"}), 1,
                  {"none.safetensors"});
  expect_one_line(run({"mask", model, folder / "no/such/o.safetensors", "--pattern", "2:4"}), 1,
                  {"no/such/o.safetensors"});
  expect_one_line(run({"mask", model, folder.path().string(), "--pattern", "2:4"}), 1,
                  {"not a regular file"});
  expect_one_line(run({"mask", model, "/dev/full", "--pattern", "2:4"}), 1,
                  {"/dev/full", "not a regular file"});
  std::ofstream(folder / "broken.safetensors") << "no checkpoint";
  expect_one_line(run({"check", folder / "broken.safetensors", "--pattern", "2:4"}), 1,
                  {"broken.safetensors"});
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"model.safetensors", "broken.safetensors"}));
}

// Until a second file is there: the temporary one of a program that writes.
void wait_until_begun(const ScratchFolder& folder) {
  for (int i = 0; i < 1000; ++i) {
    if (names_in(folder.path()).size() > 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << "it does not begin to write";
}

TEST(Mask, ASignalLeavesNothingBehind) {
  const ScratchFolder folder;
  ASSERT_EQ(run({"synth", folder / "big.safetensors", "--width", "512", "--layers", "3"}).code, 0);
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program({"mask", folder / "big.safetensors", folder / "out.safetensors", "--pattern",
                     "16:32", "--transposable", "--solver", "flow"});
    wait_until_begun(folder);
    ::kill(program.pid(), signal);
    EXPECT_EQ(program.wait().code, 128 + signal);
    EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"big.safetensors"});
  }
}

TEST(Mask, MemoryDoesNotGrowWithTheCheckpoint) {
  if (emulated()) GTEST_SKIP() << "the peak memory would be the emulator's";
  if (sanitized()) GTEST_SKIP() << "its own memory would hide what is measured";
  const ScratchFolder folder;
  ASSERT_EQ(run({"synth", folder / "big.safetensors", "--width", "1024", "--size", "300MB"}).code,
            0);
  const Outcome masked = run({"mask", folder / "big.safetensors", folder / "out.safetensors",
                              "--pattern", "2:4", "--transposable"});
  ASSERT_EQ(masked.code, 0) << masked.err;
  EXPECT_LT(masked.peak_bytes, 120'000'000) << "of a checkpoint of 300 MB";
}

// The signal comes while it works: after its handlers are in place, and long before its end.
TEST(Mask, ANohupIsObeyed) {
  const ScratchFolder folder;
  ASSERT_EQ(run({"synth", folder / "m.safetensors", "--width", "256", "--layers", "1"}).code, 0);
  std::signal(SIGHUP, SIG_IGN);
  Program program({"mask", folder / "m.safetensors", folder / "out.safetensors", "--pattern",
                   "16:32", "--transposable", "--solver", "flow"});
  std::signal(SIGHUP, SIG_DFL);
  wait_until_begun(folder);
  ::kill(program.pid(), SIGHUP);
  EXPECT_EQ(program.wait().code, 0);
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"m.safetensors", "out.safetensors"}));
}

TEST(Mask, TakesEmptyWeights) {
  const ScratchFolder folder;
  const std::string in = folder / "in.safetensors", out = folder / "out.safetensors";
  write_file(in, {{"x.weight", Dtype::kF32, {0, 8}, {}}});
  const Outcome masked = run({"mask", in, out, "--pattern", "2:4", "--json"});
  ASSERT_EQ(masked.code, 0) << masked.err;
  EXPECT_EQ(masked.json()["tensors"][0]["density"], 1.0);
  const Outcome checked = run({"check", out, "--json"});
  EXPECT_EQ(checked.code, 0);
  EXPECT_EQ(checked.json()["tensors"][0]["groups_in"], 0);
}

TEST(Mask, ShardedInShardedOut) {
  const ScratchFolder folder;
  fs::create_directory(folder / "in");
  write_file(folder / "in/model-1.safetensors", {{"a.weight", Dtype::kF32, {8, 8}, gaussian(64)}});
  write_file(folder / "in/model-2.safetensors", {{"b.weight", Dtype::kF32, {8, 8}, gaussian(64, 1)},
                                                 {"b.bias", Dtype::kF32, {8}, gaussian(8)}});
  std::ofstream(folder / "in/model.safetensors.index.json")
      << R"({"metadata": {"total_size": 544}, "weight_map": {"a.weight": "model-1.safetensors",)"
      << R"("b.weight": "model-2.safetensors", "b.bias": "model-2.safetensors"}})";
  ASSERT_EQ(run({"mask", folder / "in", folder / "out", "--pattern", "2:4"}).code, 0);
  EXPECT_EQ(run({"check", folder / "out"}).code, 0);
  const Json index =
      Json::parse(contents(folder / "out/model.safetensors.index.json"), "the index");
  EXPECT_EQ(index["metadata"]["total_size"], 544);
  EXPECT_EQ(index["weight_map"]["b.bias"], "model-2.safetensors");
  EXPECT_EQ(tensor_bytes_of(folder / "in", "b.bias"), tensor_bytes_of(folder / "out", "b.bias"));
  expect_one_line(run({"mask", folder / "in", folder / "o.safetensors", "--pattern", "2:4"}), 1,
                  {"sharded"});
  for (const char* clash : {"in/model.safetensors.index.json", "in/model-1.safetensors",
                            "out/model.safetensors.index.json", "out/model-2.safetensors"}) {
    const std::string before = contents(folder / clash);
    expect_one_line(
        run({"mask", folder / "in", folder / "out", "--pattern", "2:4", "--masks", folder / clash}),
        2, {"--masks"});
    EXPECT_EQ(contents(folder / clash), before);
  }
}

}  // namespace
}  // namespace weft::test
