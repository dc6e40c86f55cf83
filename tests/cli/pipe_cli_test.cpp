// Commands whose output is a pipe: a reader that goes away, and progress in lines.
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <sstream>

#include "tests/model_files.h"
#include "tests/support.h"

namespace weft::test {
namespace {

// What a command does whose reader is gone before it prints.
Outcome run_without_reader(const std::vector<std::string>& args) {
  int ends[2] = {};
  EXPECT_EQ(::pipe(ends), 0);
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  Program program(args, fmt::format("/proc/self/fd/{}", ends[1]));
  ::close(ends[0]);
  ::close(ends[1]);
  return program.wait();
}

TEST(Pipe, AReaderThatIsGoneEndsAProgramQuietly) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out.safetensors";
  const std::vector<std::vector<std::string>> commands = {
      {"info", model}, {"mask", model, out, "--pattern", "2:4"}, {"recipes"}, {"--help"}};
  for (const auto& command : commands) {
    SCOPED_TRACE(command[0]);
    const Outcome outcome = run_without_reader(command);
    EXPECT_EQ(outcome.code, 128 + SIGPIPE);
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_EQ(run({"check", out}).code, 0) << "it had been written";
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"model.safetensors", "out.safetensors"}));
}

TEST(Pipe, WhereClosedPipesAreIgnoredTheFailureIsReported) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  std::signal(SIGPIPE, SIG_IGN);
  const Outcome outcome = run_without_reader({"info", model});
  std::signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "weft: cannot write to standard output\n");
}

class ProgressLines : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv("WEFT_PROGRESS"); }
  static void set(const char* value) { ::setenv("WEFT_PROGRESS", value, 1); }
};

TEST_F(ProgressLines, OfEveryLongCommand) {
  const ScratchFolder folder;
  const std::string big = folder / "big.safetensors", sparse = folder / "sparse.safetensors",
                    out = folder / "out.safetensors";
  ASSERT_EQ(run({"synth", big, "--width", "512", "--layers", "3"}).code, 0);
  ASSERT_EQ(run({"mask", big, sparse, "--pattern", "2:4"}).code, 0);
  set("0.01");
  const std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"masking", {"mask", big, out, "--pattern", "8:16", "--transposable"}},
      {"converting", {"convert", big, out, "--pattern", "2:4", "--method", "absorption"}},
      {"packing", {"pack", sparse, out}},
      {"merging", {"merge", sparse, big, out, "--dry-run"}},
      {"checking", {"check", sparse, "--axis", "both"}},
      {"solving", {"ladder", big, "--include", "qkv"}},
      {"reading", {"info", big}},
      {"writing", {"synth", out, "--width", "512", "--layers", "3"}}};
  for (const auto& [label, command] : commands) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, command[0] == "check" ? 1 : 0) << command[0] << outcome.err;
    // Line by line: std::regex recurses, and a long text would exhaust the stack.
    const std::regex form(fmt::format(R"(weft: {}: (\d+%, \d+ s left|\d+ s))", label));
    EXPECT_FALSE(outcome.err.empty()) << command[0];
    std::istringstream lines(outcome.err);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_TRUE(std::regex_match(line, form)) << line;
    }
    EXPECT_FALSE(contains(outcome.out, label + ":"));
  }
}

TEST_F(ProgressLines, CountUpwards) {
  const ScratchFolder folder;
  const std::string big = folder / "big.safetensors", out = folder / "out.safetensors";
  ASSERT_EQ(run({"synth", big, "--width", "512", "--layers", "3"}).code, 0);
  set("0.02");
  const std::string told = run({"mask", big, out, "--pattern", "16:32", "--transposable"}).err;
  const std::regex percent(R"(masking: (\d+)%)");
  std::vector<int> seen;
  for (std::sregex_iterator at(told.begin(), told.end(), percent), end; at != end; ++at) {
    seen.push_back(std::stoi((*at)[1]));
  }
  ASSERT_GT(seen.size(), 2u) << told;
  EXPECT_TRUE(std::ranges::is_sorted(seen)) << told;
  EXPECT_LT(seen.front(), seen.back());
  EXPECT_LE(seen.back(), 100);
}

TEST_F(ProgressLines, AreNoneOfShortWorkOrIfNoneAreWanted) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  for (const char* value : {"10", "0", ""}) {
    set(value);
    EXPECT_EQ(run({"info", model}).err, "") << value;
  }
  for (const char* value : {"often", "-1", "1s"}) {
    set(value);
    expect_one_line(run({"info", model}), 1, {"WEFT_PROGRESS", value, "number of seconds"});
  }
}

}  // namespace
}  // namespace weft::test
