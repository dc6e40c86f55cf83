// The command line as its users meet it: results, exit codes, one clear line, nothing left behind.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <regex>
#include <sstream>
#include <thread>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/core/rng.h"
#include "weft/mask/diversity.h"
#include "weft/mask/solver.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

TEST(Usage, WrongCommandLinesAreOneLineAndExitCode2) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"nonsense"},
      {"mask"},
      {"mask", model, out},
      {"mask", model, out, "--pattern", "4:2"},
      {"mask", model, out, "--pattern", "0:4"},
      {"mask", model, out, "--pattern", "2:4x3"},
      {"mask", model, out, "--pattern", "abc"},
      {"mask", model, out, "--pattern", "2:4", "--solver", "exact"},
      {"mask", model, out, "--pattern", "2:4", "--solver", "magnitude", "--transposable"},
      {"mask", model, out, "--pattern", "2:4", "--solver", "oracle"},
      {"mask", model, out, "--pattern", "2:4", "--threads", "0"},
      {"mask", model, out, "--pattern", "2:4", "--unknown"},
      {"mask", model, out, "--pattern", "2:4", "--masks", out},
      {"mask", model, out, "--pattern", "2:4", "--reorder"},
      {"mask", model, out, "--pattern", "2:4", "--masks", model},
      {"check", model},
      {"check", model, "--pattern", "2:4", "--axis", "up"},
      {"diversity", "--pattern", "2:4"},
      {"diversity", "--pattern", "2:4", "--shape", "8"},
      {"diversity", "--pattern", "2:4", "--shape", "0x8"},
      {"diversity", "--pattern", "2:4", "--shape", "99999999999x99999999999"},
      {"bench"},
      {"bench", "solve", "--pattern", "9:2"},
      {"bench", "solve", "--solver", "oracle"},
      {"synth"},
  };
  for (const auto& args : wrong) {
    SCOPED_TRACE(Json(args).dump());
    expect_one_line(run(args), 2, {"--help"});
  }
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"model.safetensors"});
}

// The commands that a help page lists: "mask", or "bench solve" below `words`.
std::vector<std::vector<std::string>> commands_below(const std::vector<std::string>& words) {
  std::vector<std::string> ask = words;
  ask.push_back("--help");
  std::istringstream lines(run(ask).out);
  std::vector<std::vector<std::string>> found;
  bool listed = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == "Subcommands:") {
      listed = true;
    } else if (listed && line.starts_with("  ") && line[2] != ' ') {
      std::vector<std::string> command = words;
      command.push_back(line.substr(2, line.find(' ', 2) - 2));
      const auto below = commands_below(command);
      if (below.empty()) found.push_back(command);
      found.insert(found.end(), below.begin(), below.end());
    } else if (line.empty()) {
      listed = false;
    }
  }
  return found;
}

TEST(Help, TeachesEveryCommandWithExamples) {
  const auto commands = commands_below({});
  EXPECT_GE(commands.size(), 20u);
  for (const std::vector<std::string>& command : commands) {
    std::vector<std::string> ask = command;
    ask.push_back("--help");
    const Outcome help = run(ask);
    const std::string name = fmt::format("{}", fmt::join(command, " "));
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_TRUE(contains(help.out, "Examples:\n  weft " + name)) << help.out;
    EXPECT_TRUE(contains(help.out, "Usage: weft " + name)) << help.out;
  }
  EXPECT_TRUE(run({"--version"}).out.starts_with("weft 0."));
}

// NaN is neither below nor above anything, and infinity is no number to compute with.
TEST(Usage, NoFlagOfAnyCommandTakesNanOrInfinityForANumber) {
  const std::regex number(R"(^ +(--[a-z0-9-]+) (INT|FLOAT|N|X)([:= ].*|$))");
  int flags = 0;
  for (const std::vector<std::string>& command : commands_below({})) {
    std::vector<std::string> ask = command;
    ask.push_back("--help");
    std::istringstream lines(run(ask).out);
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (!std::regex_match(line, match, number)) continue;
      ++flags;
      const bool whole = match[2] == "INT" || match[2] == "N";
      for (const char* value : {"nan", "-nan", "inf", "-inf", "1e999"}) {
        std::vector<std::string> args = command;
        args.push_back(match[1].str() + "=" + value);
        SCOPED_TRACE(Json(args).dump());
        expect_one_line(run(args), 2, {match[1].str() + ":", value});
        if (whole) break;
      }
    }
  }
  EXPECT_GT(flags, 80) << "the help pages are not what this test can read";
}

// A leading zero is no octal.
TEST(Usage, NumbersAreDecimal) {
  const ScratchFolder scratch;
  ASSERT_EQ(run({"synth", scratch / "m", "--layers", "3", "--width", "16", "--shards", "010"}).code,
            0);
  EXPECT_TRUE(std::filesystem::exists(scratch / "m" / "model-00010-of-00010.safetensors"));
}

TEST(Usage, AnUnknownCommandIsNamed) {
  expect_one_line(run({"nonsense"}), 2, {"nonsense", "mask", "check"});
}

TEST(Usage, NobodyListeningIsNoCrash) {
  EXPECT_EQ(run({"nonsense"}, "", "/dev/full").code, 2);
  EXPECT_EQ(run({"info", "none"}, "", "/dev/full").code, 1);
}

TEST(Usage, AForcedInstructionSetThatIsNotThereIsAnError) {
  ::setenv("WEFT_ISA", "avx9", 1);
  expect_one_line(run({"solvers"}), 1, {"WEFT_ISA", "avx9"});
  ::unsetenv("WEFT_ISA");
}

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
      const auto without = tensor["retained_l1_as_rows_lie"].get<double>();
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
  EXPECT_TRUE(contains(table.out, "as rows lie")) << table.out;
  // Masked again, as rows lie: the old orders are gone.
  const std::string again = folder / "again.safetensors";
  ASSERT_EQ(run({"mask", out, again, "--pattern", "1:4x4"}).code, 0);
  EXPECT_EQ(run({"check", again}).code, 0);
  const Checkpoint masked_again = Checkpoint::open(again);
  for (const ShardedTensor& tensor : masked_again.tensors()) {
    EXPECT_FALSE(tensor.info.name.ends_with("row_order")) << tensor.info.name;
  }
}

TEST(Check, AMalformedRowOrderIsOneLineThatNamesIt) {
  const ScratchFolder folder;
  const std::string file = folder / "w.safetensors";
  Sparsity sparsity;
  sparsity.tensors.emplace("fc.weight", Promise{Pattern(2, 4, 2), Axis::kIn, "fc.row_order"});
  Metadata metadata;
  sparsity.store_in(metadata);
  const auto checked = [&](Dtype dtype, const std::vector<int64_t>& order, const char* name) {
    TensorInfo info{name, dtype, {static_cast<int64_t>(order.size())}};
    info.end = order.size() * sizeof(int64_t);
    TensorInfo weight{"fc.weight", Dtype::kF32, {8, 4}};
    weight.end = 8 * 4 * sizeof(float);
    // Outputs o and 7 - o have their weights in the same columns.
    std::vector<float> values(32, 0.0f);
    for (size_t o = 0; o < 8; ++o) {
      const size_t kind = std::min(o, 7 - o);
      values[4 * o + kind] = values[4 * o + (kind + 1) % 4] = 1.0f;
    }
    SafetensorsWriter writer(file, {info, weight}, metadata);
    writer.write(name, 0, std::as_bytes(std::span(order)));
    writer.write("fc.weight", 0, std::as_bytes(std::span(values)));
    writer.commit();
    return run({"check", file});
  };
  const std::vector<int64_t> right = {0, 1, 2, 3, 7, 6, 5, 4};
  EXPECT_EQ(checked(Dtype::kI64, right, "fc.row_order").code, 0);
  const Outcome lying = checked(Dtype::kI64, {0, 1, 2, 3, 4, 5, 6, 7}, "fc.row_order");
  EXPECT_EQ(lying.code, 1);
  EXPECT_TRUE(contains(lying.out, "FAILS")) << lying.out;
  struct Wrong {
    Dtype dtype;
    std::vector<int64_t> order;
    const char* name;
    const char* words;
  };
  for (const Wrong& wrong :
       {Wrong{Dtype::kF64, right, "fc.row_order", "is F64 of shape [8]"},
        Wrong{Dtype::kI64, {0, 1, 2}, "fc.row_order", "I64 of shape [8]"},
        Wrong{Dtype::kI64, {0, 1, 2, 3, 7, 6, 5, 5}, "fc.row_order", "must be there once"},
        Wrong{Dtype::kI64, {0, 1, 2, 3, 7, 6, 5, -1}, "fc.row_order", "must be there once"},
        Wrong{Dtype::kI64, right, "fc.order", "which is not there"}}) {
    const Outcome outcome = checked(wrong.dtype, wrong.order, wrong.name);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_TRUE(contains(outcome.err, wrong.words)) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, file) && contains(outcome.err, "fc.row_order"));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
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

TEST(Mask, ASignalLeavesNothingBehind) {
  const ScratchFolder folder;
  ASSERT_EQ(run({"synth", folder / "big.safetensors", "--width", "512", "--layers", "3"}).code, 0);
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program({"mask", folder / "big.safetensors", folder / "out.safetensors", "--pattern",
                     "16:32", "--transposable", "--solver", "flow"});
    const auto begun = [&] {
      return names_in(folder.path()).size() > 1;
    };  // its temporary file is there
    for (int i = 0; i < 1000 && !begun(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(begun());
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

TEST(Mask, ANohupIsObeyed) {
  const ScratchFolder folder;
  ASSERT_EQ(run({"synth", folder / "m.safetensors", "--width", "512", "--layers", "2"}).code, 0);
  std::signal(SIGHUP, SIG_IGN);
  Program program(
      {"mask", folder / "m.safetensors", folder / "out.safetensors", "--pattern", "2:4"});
  std::signal(SIGHUP, SIG_DFL);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ::kill(program.pid(), SIGHUP);
  EXPECT_EQ(program.wait().code, 0);
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

TEST(Check, FindsTheFirstWeightTooMany) {
  const ScratchFolder folder;
  const std::string file = folder / "f.safetensors";
  std::vector<float> weights(8 * 8, 0.0F);
  weights[3 * 8 + 4] = weights[3 * 8 + 5] = 1;  // 2 of 4 along inputs: legal
  weights[3 * 8 + 7] = 1;                       // the third
  weights[5 * 8 + 0] = -0.0F;                   // a zero all the same
  write_file(file, {{"x.weight", Dtype::kF32, {8, 8}, weights}});
  const Outcome in = run({"check", file, "--pattern", "2:4", "--json"});
  EXPECT_EQ(in.code, 1);
  const Json x = in.json()["tensors"][0];
  EXPECT_EQ(in.json()["valid"], false);
  EXPECT_EQ(x["groups_in"], 16);
  EXPECT_EQ(x["violations_in"], 1);
  EXPECT_TRUE(x["groups_out"].is_null() && x["violations_out"].is_null());
  EXPECT_EQ(x["first_violation"]["index"], Json({3, 7}));
  EXPECT_EQ(x["first_violation"]["axis"], "in");
  EXPECT_EQ(x["density"], 3.0 / 64);
  EXPECT_EQ(run({"check", file, "--pattern", "2:4", "--axis", "out"}).code, 0);
  EXPECT_EQ(run({"check", file, "--pattern", "3:4", "--axis", "both"}).code, 0);
  EXPECT_NE(run({"check", file, "--pattern", "2:4"}).out.find("FAILS at [3, 7] (in)"),
            std::string::npos);
}

TEST(Check, StrictRefusesShortGroups) {
  const ScratchFolder folder;
  const std::string file = folder / "f.safetensors";
  write_file(file, {{"x.weight", Dtype::kF32, {4, 6}, std::vector<float>(24, 0.0F)}});
  EXPECT_EQ(run({"check", file, "--pattern", "2:4"}).code, 0);
  EXPECT_EQ(run({"check", file, "--pattern", "2:4", "--strict"}).code, 1);
  EXPECT_EQ(run({"check", file, "--pattern", "2:4", "--strict", "--axis", "out"}).code, 0);
}

TEST(Check, SharedPatternsMustReallyBeShared) {
  const ScratchFolder folder;
  const std::string file = folder / "f.safetensors";
  std::vector<float> weights(8 * 4, 0.0F);
  for (size_t r = 0; r < 8; ++r) weights[r * 4] = weights[r * 4 + (r < 4 ? 1 : 2)] = 1;
  write_file(file, {{"x.weight", Dtype::kF32, {8, 4}, weights}});
  EXPECT_EQ(run({"check", file, "--pattern", "2:4"}).code, 0);
  const Json report = run({"check", file, "--pattern", "2:4x2", "--json"}).json();
  EXPECT_EQ(report["valid"], false);
  EXPECT_EQ(report["tensors"][0]["groups_in"], 4);
  EXPECT_EQ(report["tensors"][0]["violations_in"], 4);
}

TEST(Check, APlanForATensorThatIsGoneFailsTheCheckAndNothingElse) {
  const ScratchFolder folder;
  const std::string file = folder / "f.safetensors";
  write_file(file, {{"x.weight", Dtype::kF32, {4, 4}, std::vector<float>(16, 0.0F)}},
             {{"weft.sparsity",
               R"({"version":1,"tensors":{"gone.weight":{"pattern":"2:4","axis":"in"}}})"}});
  expect_one_line(run({"check", file}), 1, {"gone.weight"});
  EXPECT_EQ(run({"info", file}).code, 0);
  EXPECT_EQ(run({"mask", file, file, "--pattern", "2:4", "--in-place"}).code, 0);
  EXPECT_EQ(run({"check", file}).code, 0);
}

TEST(Check, ListsWhatItDoesNotTest) {
  const ScratchFolder folder;
  const Json report = run({"check", write_model(folder), "--pattern", "4:4", "--json"}).json();
  EXPECT_EQ(report["tensors"].size(), 5u);
  EXPECT_EQ(report["skipped"].size(), 3u);
  const std::string bias = folder / "bias.safetensors";
  write_file(bias, {{"bias", Dtype::kF32, {4}, gaussian(4)}});
  expect_one_line(run({"check", bias, "--pattern", "2:4"}), 1, {"no tensor to check", "bias"});
}

TEST(Info, NamesTheTightestPatterns) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  ASSERT_EQ(run({"mask", model, out, "--pattern", "2:4", "--transposable"}).code, 0);
  const Json report = run({"info", out, "--json"}).json();
  EXPECT_EQ(report["tensors"].size(), 8u);
  EXPECT_EQ(report["tensors"][0]["dtype"], "F32");
  EXPECT_EQ(report["tensors"][0]["density"], 0.5);
  EXPECT_EQ(report["tensors"][0]["patterns_in"], Json({"2:4"}));
  EXPECT_EQ(report["tensors"][0]["patterns_out"], Json({"2:4"}));
  EXPECT_EQ(report["metadata"]["author"], "somebody");
  EXPECT_EQ(run({"info", model}).code, 0);
}

TEST(Diversity, CountsExactlyAndShowsThePaperBesideIt) {
  const Json counted = run({"diversity", "--pattern", "4:8", "--shape", "8x8", "--json"}).json();
  EXPECT_NEAR(counted["log2_transposable"].get<double>(), std::log2(116963796250.0), 1e-9);
  EXPECT_NEAR(counted["log2_nm"].get<double>(), 8 * std::log2(70.0), 1e-9);
  EXPECT_NEAR(counted["log2_unstructured"].get<double>(), std::log2(1.832624140942591e18), 1e-9);
  EXPECT_NEAR(counted["log2_transposable_paper"].get<double>(), std::log2(1.755756e13), 1e-4);
  const ScratchFolder folder;
  const Json model =
      run({"diversity", "--pattern", "2:4", "--checkpoint", write_model(folder), "--json"}).json();
  EXPECT_EQ(model["weights"], 24 * 40 + 16 * 8 * 9 + 8 * 16 + 9 * 17 + 12 * 12);
  EXPECT_EQ(run({"diversity"}).code, 0);
}

TEST(Ladder, StandsInTheOrderOfTheTheorems) {
  if (sanitized()) GTEST_SKIP() << "counting masks is slow with its allocator";
  const ScratchFolder folder;
  const Json report = run({"ladder", write_model(folder), "--json"}).json();
  const auto kept = [&](const std::string& structure, bool transposable, const Json& solver) {
    for (const Json& rung : report["ladder"]) {
      if (rung["structure"] == structure && rung["transposable"] == transposable &&
          rung["solver"] == solver) {
        return rung["retained_l1"].get<double>();
      }
    }
    ADD_FAILURE() << structure << " is not on the ladder";
    return 0.0;
  };
  EXPECT_GE(kept("unstructured", false, nullptr), kept("4:8", false, "magnitude"));
  EXPECT_GE(kept("4:8", false, "magnitude"), kept("2:4", false, "magnitude"));
  EXPECT_GE(kept("4:8", true, "exact"), kept("2:4", true, "exact"));
  EXPECT_GE(kept("2:4", true, "exact"), kept("2:4x2", true, "exact"));
}

TEST(Bench, SolvePrintsRecords) {
  const Outcome outcome = run({"bench", "solve", "--size", "64", "--rounds", "2", "--pattern",
                               "2:4", "--pattern", "4:8", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json records = outcome.json();
  EXPECT_EQ(records.size(), 2 * solvers().size());
  for (const Json& record : records) {
    for (const char* key :
         {"solver", "pattern", "transposable", "mweights_per_s", "part_of_read", "ratio_to_flow"}) {
      EXPECT_TRUE(record.contains(key)) << key;
    }
    EXPECT_GT(record["mweights_per_s"].get<double>(), 0.0);
    EXPECT_GT(record["part_of_read"].get<double>(), 0.0);
  }
}

TEST(Output, APipeGetsNoControlCharactersAndAFullDiskIsAnError) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  const Outcome outcome = run({"mask", model, folder / "o.safetensors", "--pattern", "2:4"});
  EXPECT_EQ(outcome.err, "");
  for (const char c : outcome.out) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 32);
  const Outcome full = run({"info", model}, "/dev/full");
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.err, "weft: cannot write to standard output\n");
}

// Ends a program that hangs, so that it is a failure and not a hang of the test.
Outcome run_briefly(const std::vector<std::string>& args) {
  Program program(args);
  std::atomic<bool> done = false;
  std::thread watch([&] {
    for (int i = 0; i < 600 && !done; ++i) ::usleep(100'000);
    if (!done) ::kill(program.pid(), SIGKILL);
  });
  Outcome outcome = program.wait();
  done = true;
  watch.join();
  return outcome;
}

// A pipe that nobody writes to, a device, a folder and 80 GB.
class NotASmallFile : public ::testing::TestWithParam<const char*> {
 protected:
  void make(const std::filesystem::path& path) const {
    const std::string kind = GetParam();
    if (kind == "pipe") ::mkfifo(path.c_str(), 0600);
    if (kind == "device") std::filesystem::create_symlink("/dev/zero", path);
    if (kind == "folder") std::filesystem::create_directory(path);
    if (kind == "huge") {
      put(path, "{}");
      std::filesystem::resize_file(path, uint64_t{80} << 30);  // takes no room on the disk
    }
  }
  std::string problem() const {
    return GetParam() == std::string("huge") ? "accepted are at most" : "not a regular file";
  }
  ScratchFolder scratch_;
};

TEST_P(NotASmallFile, AsASavedPlanIsOneLine) {
  make(scratch_ / "plan.json");
  expect_one_line(run_briefly({"plan", "--shape", "8x8x8", "--saved", scratch_ / "plan.json"}), 1,
                  {(scratch_ / "plan.json").string(), problem()});
}

TEST_P(NotASmallFile, AsTheCacheOfTimesIsOneLine) {
  std::filesystem::create_directories(scratch_ / "weft");
  make(scratch_ / "weft/timings.json");
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string restored = before ? before : "";
  ::setenv("XDG_CACHE_HOME", scratch_.path().c_str(), 1);
  expect_one_line(run_briefly({"plan", "--shape", "8x8x8"}), 1,
                  {(scratch_ / "weft/timings.json").string(), problem()});
  before ? ::setenv("XDG_CACHE_HOME", restored.c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
}

TEST_P(NotASmallFile, AsAConfigurationIsOneLine) {
  make(scratch_ / "run.toml");
  expect_one_line(run_briefly({"train", "--config", scratch_ / "run.toml", "--out", "nowhere"}), 1,
                  {(scratch_ / "run.toml").string(), problem()});
}

TEST_P(NotASmallFile, AsTheRecordOfARunIsOneLine) {
  std::filesystem::create_directory(scratch_ / "run");
  make(scratch_ / "run/run.json");
  expect_one_line(run_briefly({"generate", scratch_ / "run"}), 1,
                  {(scratch_ / "run/run.json").string(), problem()});
}

TEST_P(NotASmallFile, AsAnIndexIsOneLine) {
  make(scratch_ / "m.index.json");
  expect_one_line(run_briefly({"info", scratch_ / "m.index.json"}), 1,
                  {(scratch_ / "m.index.json").string(),
                   GetParam() == std::string("folder") ? "no .safetensors" : problem()});
}

INSTANTIATE_TEST_SUITE_P(Kinds, NotASmallFile,
                         ::testing::Values("pipe", "device", "folder", "huge"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace weft::test
