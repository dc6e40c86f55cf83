// Signals to the commands that train, time and convert: they end soon, and a run goes on to the
// bit.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "tests/cli/trainer_commands.h"
#include "weft/core/parallel.h"

namespace weft::test {
namespace {

TEST_F(TrainerCommands, ASignalSavesAndTheRunGoesOnBitForBit) {
  ASSERT_EQ(run(train("whole", {"--recipe", "t-sr-ste"}, "150")).code, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string name = fmt::format("stopped{}", signal);
    Program program(train(name, {"--recipe", "t-sr-ste", "--checkpoint-every", "0"}, "150"));
    ASSERT_TRUE(wait_for_step(name, 30));
    ::kill(program.pid(), signal);
    const Outcome stopped = program.wait();
    EXPECT_EQ(stopped.code, 128 + signal) << stopped.err;
    EXPECT_TRUE(contains(stopped.out, "continue with weft train --resume")) << stopped.out;
    const std::string as_before = fmt::format("{}", threads());
    const Outcome resumed = run({"train", "--resume", folder(name), "--threads", as_before});
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_TRUE(contains(resumed.out, "continuing after step"));
    EXPECT_EQ(model(name), model("whole"));
    int64_t expected = 0;  // every step once, in order
    std::ifstream metrics(folder(name) + "/metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      const Json entry = Json::parse(line, "metrics");
      if (!entry.contains("loss")) continue;
      EXPECT_EQ(entry["step"], ++expected);
    }
    EXPECT_EQ(expected, 150);
  }
}

// `weft train ... | head`: it stops, and keeps what it has.
TEST_F(TrainerCommands, AReaderThatIsGoneStopsARunThatCanGoOn) {
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  Program program(train("run", {"--checkpoint-every", "0"}, "100000"),
                  fmt::format("/proc/self/fd/{}", ends[1]));
  ::close(ends[1]);
  char first = 0;
  EXPECT_EQ(::read(ends[0], &first, 1), 1);
  ::close(ends[0]);
  ASSERT_TRUE(wait_for_step("run", 1));
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 128 + SIGPIPE);
  EXPECT_TRUE(outcome.err.starts_with("weft: stopped after step ")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "continue with weft train --resume")) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder("run") + "/model.safetensors"));
  Program resumed({"train", "--resume", folder("run")});
  ASSERT_TRUE(wait_for_step("run", 100));
  EXPECT_TRUE(contains(stop(resumed).out, "continuing after step"));
}

// All of a text is evaluated, which takes long; the signal comes in the midst of it.
TEST_F(TrainerCommands, ASignalInTheLastEvaluationSavesTheRun) {
  Program program({"train",
                   "--model",
                   "gpt",
                   "--data",
                   text_file(40000),
                   "--width",
                   "32",
                   "--depth",
                   "1",
                   "--heads",
                   "2",
                   "--context",
                   "32",
                   "--batch",
                   "4",
                   "--steps",
                   "3",
                   "--plan",
                   "dense",
                   "--recipe",
                   "dense",
                   "--checkpoint-every",
                   "0",
                   "--eval-samples",
                   "0",
                   "--out",
                   folder("run")});
  ASSERT_TRUE(wait_for_step("run", 3));
  sleep_ms(100);
  const Outcome stopped = stop(program);
  EXPECT_TRUE(contains(stopped.out, "stopped after step 3: continue with weft train --resume"))
      << stopped.out;
  EXPECT_FALSE(std::filesystem::exists(folder("run") + "/model.safetensors"));
  const Outcome resumed = run({"train", "--resume", folder("run")});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(contains(resumed.out, "continuing after step 3")) << resumed.out;
  EXPECT_TRUE(std::filesystem::exists(folder("run") + "/model.safetensors"));
}

// Work with nothing to save ends at once, and says so; no file is begun and left.
TEST_F(TrainerCommands, ASignalEndsTimingAndConverting) {
  const std::string in = folder("in.safetensors"), out = folder("out.safetensors");
  ASSERT_EQ(run({"synth", in, "--width", "1024", "--layers", "2"}).code, 0);
  ASSERT_EQ(run({"train", "--model", "mlp", "--width", "768", "--batch", "64", "--steps", "2",
                 "--train-images", "1000", "--test-images", "50", "--plan", "dense", "--out",
                 folder("run")})
                .code,
            0);
  const std::set<std::string> with_torch = {"layer", "step", folder("run")};
  const std::vector<std::vector<std::string>> commands = {
      {"plan", "--shape", "4096x4096x4096", "--pattern", "2:4"},
      {"bench", "layer", "--rounds", "30"},
      {"bench", "step", "--rounds", "100"},
      {"bench", "gemm"},
      {"bench", "solve"},
      {"bench", "convert", "--layer", "4096x4096"},
      {"convert", in, out, "--pattern", "8:16", "--transposable"},
      {"recovery", folder("run"), "--samples", "1000000"},
  };
  for (const std::vector<std::string>& command : commands) {
    const std::set<std::string> before = names_in(scratch_.path());
    for (const int signal : {SIGTERM, SIGHUP}) {
      Program program(command);
      // Converting is what has begun to write; the rest takes many seconds.
      command[0] == "convert" ? wait_for_begun(out)
                              : wait_until_at_work(program, with_torch.contains(command[1]));
      const Outcome stopped = stop(program, signal);
      const std::string line =
          fmt::format("weft: stopped by {}\n", signal == SIGTERM ? "SIGTERM" : "SIGHUP");
      EXPECT_EQ(stopped.err, line) << command[0] << " " << command[1];
    }
    std::set<std::string> after = names_in(scratch_.path());
    after.erase("cache");
    std::set<std::string> expected = before;
    expected.erase("cache");
    EXPECT_EQ(after, expected) << command[0] << " " << command[1];
  }
}

// Until the program holds SIGTERM back or handles it: before that, while it is being loaded, nobody
// can answer.
void wait_until_it_minds_signals(const Program& program) {
  const std::string process = fmt::format("/proc/{}/", program.pid());
  for (int tries = 0; tries < 5000; ++tries, ::usleep(1000)) {
    // Before it is the program it is the test, which holds all signals back while it spawns.
    std::error_code failure;
    const auto image = std::filesystem::read_symlink(process + "exe", failure);
    if (!image.filename().string().starts_with("weft")) continue;
    std::ifstream lines(process + "status");
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("SigBlk:") && !line.starts_with("SigCgt:")) continue;
      const uint64_t signals = std::stoull(line.substr(7), nullptr, 16);
      if (((signals >> (SIGTERM - 1)) & 1) != 0) return;
    }
  }
  FAIL() << "it never minded";
}

// While libtorch is loaded nobody could answer: signals wait until somebody can.
TEST_F(TrainerCommands, ASignalThatComesEarlyIsAnswered) {
  for (const int ms : {0, 20, 120}) {
    Program program(train("run", {}, "100000"));
    wait_until_it_minds_signals(program);
    sleep_ms(ms);
    ::kill(program.pid(), SIGTERM);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
    EXPECT_EQ(outcome.err, "weft: stopped by SIGTERM\n");
    EXPECT_FALSE(std::filesystem::exists(folder("run")));
  }
}

TEST_F(TrainerCommands, ASignalEndsAComparisonWhereverItIs) {
  // While it measures for the planner: nothing has been trained.
  {
    Program program(comparison(
        "512", "100", {"--steps", "20", "--plan", "auto", "--pattern", "2:4", "--pattern", "1:4"}));
    wait_until_at_work(program, /*torch=*/true);
    EXPECT_TRUE(contains(stop(program).out, "stopped: run the same command to continue"));
  }
  std::filesystem::remove_all(folder("compare"));
  // While it trains.
  const std::vector<std::string> arguments =
      comparison("32", "16", {"--steps", "600", "--plan", "sparse", "--checkpoint-every", "0"});
  {
    Program program(arguments);
    ASSERT_TRUE(wait_for_step("compare/s-ste-2of4-seed1", 20));
    EXPECT_TRUE(contains(stop(program, SIGHUP).out, "stopped: run the same command to continue"));
    EXPECT_EQ(names_in(folder("compare") + "/dense-seed1/checkpoints").size(), 1u);
  }
  // While it measures memory, in a process of its own.
  {
    Program program(arguments);
    ASSERT_TRUE(wait_for(folder("compare") + "/memory"));
    EXPECT_TRUE(contains(stop(program).out, "stopped: run the same command to continue"));
    EXPECT_FALSE(std::filesystem::exists(folder("compare") + "/memory"));
    EXPECT_EQ(processes_with(folder("compare") + "/memory"), 0);
    EXPECT_FALSE(std::filesystem::exists(folder("compare") + "/compare.json"));
  }
  const Outcome whole = run(arguments);
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_TRUE(std::filesystem::exists(folder("compare") + "/compare.json"));
}

// The short form of scripts/survive.
TEST_F(TrainerCommands, AKilledRunGoesOnBitForBit) {
  ASSERT_EQ(run(train("whole", {"--recipe", "lbc"}, "200")).code, 0);
  {
    Program program(train("killed", {"--recipe", "lbc"}, "200"));
    ASSERT_TRUE(wait_for_step("killed", 23));
    ::kill(program.pid(), SIGKILL);
    EXPECT_EQ(program.wait().code, 128 + SIGKILL);
  }
  for (const int64_t step : {70, 111}) {
    Program program({"train", "--resume", folder("killed")});
    ASSERT_TRUE(wait_for_step("killed", step));
    ::kill(program.pid(), SIGKILL);
    EXPECT_EQ(program.wait().code, 128 + SIGKILL);
  }
  const Outcome last = run({"train", "--resume", folder("killed")});
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_EQ(model("killed"), model("whole"));
}

}  // namespace
}  // namespace weft::test
