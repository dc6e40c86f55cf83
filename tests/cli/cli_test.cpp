// The command line as its users meet it: exit codes, help, one clear line. And the short commands
// info, diversity, ladder and bench solve.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"
#include "weft/mask/solver.h"

namespace weft::test {
namespace {

TEST(Usage, WrongCommandLinesAreOneLineAndExitCode2) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  const std::vector<std::vector<std::string>> wrong = {
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
    if (line.ends_with(":") && !line.starts_with(" ")) {  // the heading of a group of commands
      const std::set<std::string> others = {"Options:", "Positionals:", "Examples:"};
      listed = !others.contains(line);
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

// The commands that the headers of cli/ declare: "bench gemm" for bench_gemm_command().
std::set<std::string> declared_commands() {
  const std::regex declaration(R"(CommandEntry ([a-z_]+)_command\()");
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(WEFT_SOURCE_DIR "/cli")) {
    if (entry.path().extension() != ".h") continue;
    const std::string text = contents(entry.path());
    for (std::sregex_iterator found(text.begin(), text.end(), declaration), end; found != end;
         ++found) {
      std::string name = (*found)[1];
      std::ranges::replace(name, '_', ' ');
      names.insert(name);
    }
  }
  return names;
}

TEST(Help, TeachesEveryCommandWithExamples) {
  const auto commands = commands_below({});
  ASSERT_FALSE(commands.empty());
  std::set<std::string> listed;
  for (const std::vector<std::string>& command : commands) {
    std::vector<std::string> ask = command;
    ask.push_back("--help");
    const Outcome help = run(ask);
    const std::string name = fmt::format("{}", fmt::join(command, " "));
    listed.insert(name);
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_TRUE(contains(help.out, "Examples:\n  weft " + name)) << help.out;
    EXPECT_TRUE(contains(help.out, "Usage: weft " + name)) << help.out;
  }
  EXPECT_EQ(listed, declared_commands());
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

TEST(Usage, TyposOfCommandsAndFlagsGetASuggestion) {
  expect_one_line(run({"trian"}), 2, {"'trian'", "did you mean 'train'?"});
  expect_one_line(run({"bench", "gem"}), 2, {"'gem'", "did you mean 'gemm'?"});
  expect_one_line(run({"help", "chek"}), 2, {"did you mean 'check'?"});
  // Also where the flag that was meant is missing now.
  expect_one_line(run({"mask", "in", "out", "--patern", "2:4"}), 2,
                  {"unknown flag '--patern'", "did you mean '--pattern'?"});
  expect_one_line(run({"train", "--out", "x", "--step=3"}), 2, {"did you mean '--steps'?"});
  const Outcome far = run({"info", "x", "--zzzzzz"});
  expect_one_line(far, 2, {"unknown flag '--zzzzzz'"});
  EXPECT_FALSE(contains(far.err, "did you mean")) << far.err;
}

TEST(Help, ComesWithoutACommandAndByTheWordHelp) {
  const Outcome bare = run({});
  EXPECT_EQ(bare.code, 0) << bare.err;
  EXPECT_EQ(bare.out, run({"--help"}).out);
  EXPECT_EQ(bare.out, run({"help"}).out);
  const Outcome group = run({"bench"});
  EXPECT_EQ(group.code, 0) << group.err;
  EXPECT_EQ(group.out, run({"help", "bench"}).out);
  EXPECT_TRUE(contains(group.out, "  gemm ")) << group.out;
  EXPECT_EQ(run({"help", "mask"}).out, run({"mask", "--help"}).out);
  EXPECT_EQ(run({"help", "bench", "gemm"}).out, run({"bench", "gemm", "--help"}).out);
  EXPECT_TRUE(bare.out.starts_with("Train neural networks")) << bare.out;
  EXPECT_LT(bare.out.find("\n  train "), bare.out.find("\n  mask ")) << "training comes first";
  EXPECT_TRUE(contains(bare.out, "Train:\n  train ")) << bare.out;
}

TEST(Usage, OfAFlagWithOneValueTheLastOneWins) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  const Outcome outcome = run({"mask", model, out, "--pattern", "1:4", "--pattern", "2:4",
                               "--threads", "1", "--threads", "2", "--json", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json()["pattern"], "2:4");
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
  EXPECT_GT(kept("unstructured", false, nullptr), kept("4:8", false, "magnitude"));
  EXPECT_GT(kept("4:8", false, "magnitude"), kept("2:4", false, "magnitude"));
  EXPECT_GT(kept("2:4", false, "magnitude"), kept("2:4", true, "exact"));
  EXPECT_GT(kept("4:8", true, "exact"), kept("2:4", true, "exact"));
  EXPECT_GT(kept("2:4", true, "exact"), kept("2:4x2", true, "exact"));
  EXPECT_GT(kept("2:4x2", true, "exact"), 0.0);
}

TEST(Bench, SolvePrintsRecords) {
  const Outcome outcome = run({"bench", "solve", "--size", "64", "--rounds", "1", "--pattern",
                               "2:4", "--pattern", "4:8", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json records = outcome.json();
  ASSERT_EQ(records.size(), 2 * solvers().size());
  // Of one round every figure follows from the time of a run: rates and ratios are checked exactly.
  for (const std::string pattern : {"2:4", "4:8"}) {
    std::map<std::string, double> seconds, read_seconds;
    for (const Json& record : records) {
      if (record["pattern"] != pattern) continue;
      const auto name = record["solver"].get<std::string>();
      seconds[name] = record["seconds"].get<double>();
      read_seconds[name] = record["part_of_read"].get<double>() * seconds[name];
      EXPECT_EQ(record["transposable"], solver(name).transposable) << name;
      EXPECT_NEAR(record["mweights_per_s"].get<double>() * seconds[name], 64 * 64 / 1e6, 1e-9);
    }
    ASSERT_EQ(seconds.size(), solvers().size());
    for (const Json& record : records) {
      if (record["pattern"] != pattern) continue;
      const auto name = record["solver"].get<std::string>();
      const double ratio = seconds.at("flow") / seconds.at(name);
      EXPECT_NEAR(record["ratio_to_flow"].get<double>(), ratio, 1e-9 * ratio) << name;
      EXPECT_NEAR(read_seconds.at(name), read_seconds.at("flow"), 1e-9 * read_seconds.at("flow"))
          << "all were compared with the same reading: " << name;
    }
  }
}

TEST(Output, APipeGetsNoControlCharactersAndAFullDiskIsAnError) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  const Outcome outcome = run({"mask", model, folder / "o.safetensors", "--pattern", "2:4"});
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(contains(outcome.out, "fc1.weight")) << outcome.out;
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
