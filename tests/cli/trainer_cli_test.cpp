// weft train, compare, eval, generate and bench step as their users meet them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"
#include "weft/core/parallel.h"

namespace weft::test {
namespace {

class TrainerCommands : public ::testing::Test {
 protected:
  TrainerCommands() { ::setenv("XDG_CACHE_HOME", (scratch_ / "cache").c_str(), 1); }
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << "built without libtorch";
  }

  std::string folder(const std::string& name) const { return scratch_ / name; }
  // A run of a second.
  std::vector<std::string> train(const std::string& name, const std::vector<std::string>& more,
                                 const std::string& steps = "20") const {
    std::vector<std::string> arguments = {
        "train", "--model",        "mlp", "--width",       "32", "--batch", "16",        "--steps",
        steps,   "--train-images", "200", "--test-images", "50", "--out",   folder(name)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    // Unless a test says otherwise.
    const auto otherwise = [&](const std::string& flag, const std::string& value) {
      if (std::find(more.begin(), more.end(), flag) != more.end()) return;
      arguments.insert(arguments.end(), {flag, value});
    };
    otherwise("--plan", "sparse");
    otherwise("--checkpoint-every", "5");
    return arguments;
  }
  std::string model(const std::string& name) const {
    return contents(folder(name) + "/model.safetensors");
  }
  // Whether the run gets there.
  bool wait_for_step(const std::string& name, int64_t step) const {
    for (int i = 0; i < 2000; ++i) {
      std::ifstream metrics(folder(name) + "/metrics.jsonl");
      int64_t lines = 0;
      for (std::string line; std::getline(metrics, line);) ++lines;
      if (lines >= step) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  bool wait_for(const std::filesystem::path& path) const {
    for (int i = 0; i < 6000; ++i) {
      if (std::filesystem::exists(path)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  // Until the file is being written, under its temporary name.
  static void wait_for_begun(const std::filesystem::path& path) {
    const std::string prefix = "." + path.filename().string() + ".weft-";
    for (int i = 0; i < 6000; ++i) {
      for (const std::string& name : names_in(path.parent_path())) {
        if (name.starts_with(prefix)) return;
      }
      sleep_ms(2);
    }
    ADD_FAILURE() << path << " is not written";
  }
  // Until the program answers signals, and a little longer: loading libtorch takes a while.
  static void wait_until_at_work(const Program& program, bool torch) {
    const std::string process = fmt::format("/proc/{}", program.pid());
    for (int i = 0; i < 6000; ++i) {
      std::error_code failure;
      const auto exe = std::filesystem::read_symlink(process + "/exe", failure);
      const std::string status = contents(process + "/status");
      const size_t caught = status.find("SigCgt:");
      const bool answers =
          caught != std::string::npos &&
          (std::stoull(status.substr(caught + 7), nullptr, 16) >> (SIGTERM - 1) & 1);
      if (answers && exe.filename() == (torch ? "weft-train" : "weft")) return sleep_ms(700);
      sleep_ms(10);
    }
    ADD_FAILURE() << "does not start";
  }
  static void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

  // Asks a program to end: it must, soon, by the signal, and with a line that says so.
  static Outcome stop(Program& program, int signal = SIGTERM) {
    const auto start = std::chrono::steady_clock::now();
    ::kill(program.pid(), signal);
    const Outcome outcome = program.wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(outcome.code, 128 + signal) << outcome.out << outcome.err;
    EXPECT_LT(took.count(), 5.0);
    EXPECT_TRUE(contains(outcome.out + outcome.err, "stopped")) << outcome.out << outcome.err;
    return outcome;
  }
  // Words of running processes that have this one among them.
  static int processes_with(const std::string& word) {
    int found = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      found += contains(contents(entry.path() / "cmdline"), word);
    }
    return found;
  }
  // A text, of so many lines.
  std::string text_file(int lines) const {
    std::ofstream text(scratch_ / "text");
    for (int i = 0; i < lines; ++i) text << "Once upon a time there was number " << i % 97 << ".\n";
    return "text:" + folder("text");
  }
  std::vector<std::string> comparison(const std::string& width, const std::string& batch,
                                      const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"compare",
                                          "--model",
                                          "mlp",
                                          "--width",
                                          width,
                                          "--batch",
                                          batch,
                                          "--train-images",
                                          "100",
                                          "--test-images",
                                          "50",
                                          "--seeds",
                                          "1",
                                          "--recipes",
                                          "dense,s-ste",
                                          "--out",
                                          folder("compare")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  ScratchFolder scratch_;
};

TEST_F(TrainerCommands, ARunLeavesAllItsFiles) {
  const Outcome outcome =
      run(train("run", {"--recipe", "transposable", "--export", "packed", "--eval-every", "10"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(names_in(folder("run")),
            (std::set<std::string>{"run.json", "metrics.jsonl", "checkpoints", "model.safetensors",
                                   "packed.safetensors"}));
  EXPECT_TRUE(contains(outcome.out, "hidden1  linear 32 -> 32   transposable  2:4")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "step 20/20  loss ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "images/s  flips "));
  EXPECT_TRUE(contains(outcome.out, "step 10  eval loss "));
  EXPECT_TRUE(contains(outcome.out, "products that ran sparse  fwd, bwd_x"));
  for (const char c : outcome.out + outcome.err) {
    EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 32) << "control characters in a pipe";
  }
  for (const char* name : {"/model.safetensors", "/packed.safetensors"}) {
    EXPECT_EQ(run({"check", folder("run") + name}).code, 0) << name;
  }
  const Json checked = run({"check", folder("run") + "/model.safetensors", "--json"}).json();
  EXPECT_FALSE(contains(checked.dump(), "\"violations_out\":null")) << "both axes are promised";
  const Json record = Json::parse(contents(folder("run") + "/run.json"), "run.json");
  EXPECT_EQ(record["status"], "done");
  EXPECT_EQ(record["options"]["recipe"], "transposable");
  EXPECT_EQ(record["layers"].size(), 3u);

  const Outcome evaluated = run({"eval", folder("run"), "--json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(evaluated.json()["eval_accuracy"], record["result"]["eval_accuracy"]);
  EXPECT_TRUE(contains(run({"eval", folder("run")}).out, "accuracy"));
  EXPECT_TRUE(
      contains(run({"generate", folder("run")}).err, "a run of mlp, and only a gpt writes"));
}

TEST_F(TrainerCommands, FlagsStandAboveTheConfigurationFile) {
  std::ofstream(scratch_ / "run.toml") << "recipe = \"sr-ste\"\nseed = 7\n";
  const Outcome outcome = run(train("run", {"--config", folder("run.toml"), "--seed", "8"}, "2"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json record = Json::parse(contents(folder("run") + "/run.json"), "run.json");
  EXPECT_EQ(record["options"]["recipe"], "sr-ste");
  EXPECT_EQ(record["options"]["seed"], 8);
}

TEST_F(TrainerCommands, WhatCannotBeReadOrWrittenIsOneLineAndLeavesNothing) {
  std::ofstream(scratch_ / "not.safetensors") << "stps = 3\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {train("x", {"--data", "idx:/nowhere"}), "/nowhere"},
      {train("x", {"--plan", "/nowhere.json"}), "/nowhere.json"},
      {train("x", {"--init", "/nowhere.safetensors"}), "/nowhere.safetensors"},
      {train("x", {"--init", folder("not.safetensors")}), "not.safetensors"},
      {{"train", "--resume", folder("x")}, "no run there"},
      {{"train", "--out", "/proc/weft", "--train-images", "10", "--test-images", "5"},
       "/proc/weft"},
      {{"eval", folder("x")}, "no run there"},
      {{"generate", folder("x")}, "no run there"},
  };
  for (const auto& [arguments, part] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 1) << part;
    EXPECT_TRUE(contains(outcome.err, part)) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(folder("x"))) << part;
  }
}

TEST_F(TrainerCommands, ARunInBf16IsEvaluatedInIt) {
  std::ofstream text(scratch_ / "text");
  for (int i = 0; i < 200; ++i) text << "line " << i * 7 % 31 << " of a text\n";
  text.close();
  for (const std::string model : {"cnn", "gpt"}) {
    std::vector<std::string> more = {"--precision", "bf16", "--model", model};
    if (model == "gpt") {
      more.insert(more.end(), {"--data", "text:" + folder("text"), "--heads", "2", "--context",
                               "16", "--depth", "1"});
    }
    std::vector<std::string> arguments = {"train", "--out",         folder(model), "--steps",
                                          "6",     "--plan",        "sparse",      "--width",
                                          "16",    "--batch",       "8",           "--train-images",
                                          "64",    "--test-images", "20"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json record = Json::parse(contents(folder(model) + "/run.json"), "run.json");
    EXPECT_EQ(record["options"]["precision"], "bf16");
    const Outcome eval = run({"eval", folder(model), "--json"});
    ASSERT_EQ(eval.code, 0) << eval.err;
    EXPECT_EQ(Json::parse(eval.out, "eval")["eval_loss"], record["result"]["eval_loss"]);
  }
  const Outcome generated = run({"generate", folder("gpt"), "--prompt", "line", "--bytes", "8"});
  EXPECT_EQ(generated.code, 0) << generated.err;
}

TEST_F(TrainerCommands, ARunIsNotOverwrittenAndAFinishedOneNotResumed) {
  ASSERT_EQ(run(train("run", {}, "2")).code, 0);
  EXPECT_TRUE(contains(run(train("run", {}, "2")).err, "holds a run already"));
  EXPECT_TRUE(contains(run({"train", "--resume", folder("run")}).err, "the run is done"));
}

TEST_F(TrainerCommands, ASignalSavesAndTheRunGoesOnBitForBit) {
  ASSERT_EQ(run(train("whole", {"--recipe", "t-sr-ste"}, "150")).code, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string name = fmt::format("stopped{}", signal);
    Program program(train(name, {"--recipe", "t-sr-ste", "--checkpoint-every", "0"}, "150"));
    ASSERT_TRUE(wait_for_step(name, 30));
    ::kill(program.pid(), signal);
    const Outcome stopped = program.wait();
    EXPECT_EQ(stopped.code, 128 + signal) << stopped.err;
    EXPECT_TRUE(contains(stopped.out, "go on with weft train --resume")) << stopped.out;
    const std::string as_before = fmt::format("{}", threads());
    const Outcome resumed = run({"train", "--resume", folder(name), "--threads", as_before});
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_TRUE(contains(resumed.out, "going on after step"));
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
  EXPECT_TRUE(contains(stopped.out, "stopped after step 3: go on with weft train --resume"))
      << stopped.out;
  EXPECT_FALSE(std::filesystem::exists(folder("run") + "/model.safetensors"));
  const Outcome resumed = run({"train", "--resume", folder("run")});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(contains(resumed.out, "going on after step 3")) << resumed.out;
  EXPECT_TRUE(std::filesystem::exists(folder("run") + "/model.safetensors"));
}

// By default it takes seconds whatever the text, and windows from everywhere in it.
TEST_F(TrainerCommands, EvaluatesAPartOfALongText) {
  const std::string data = text_file(45000);  // of 38 bytes, a tenth of it to test on
  const Outcome trained =
      run({"train", "--model", "gpt",   "--data",    data,    "--width", "16",         "--depth",
           "1",     "--heads", "2",     "--context", "128",   "--batch", "16",         "--steps",
           "2",     "--plan",  "dense", "--recipe",  "dense", "--out",   folder("run")});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(contains(trained.out, "(1024 samples, ")) << trained.out;
  const Outcome again = run({"eval", folder("run"), "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  const Json record = Json::parse(contents(folder("run") + "/run.json"), "run.json");
  EXPECT_EQ(again.json()["eval_samples"], 1024);
  EXPECT_EQ(again.json()["eval_loss"], record["result"]["eval_loss"]);
  const Json all = run({"eval", folder("run"), "--samples", "0", "--json"}).json();
  EXPECT_EQ(all["eval_samples"], 1332);
}

// Work with nothing to save ends at once, and says so; no file is begun and left.
TEST_F(TrainerCommands, ASignalEndsTimingPlanningAndConverting) {
  const std::string in = folder("in.safetensors"), out = folder("out.safetensors");
  ASSERT_EQ(run({"synth", in, "--width", "1024", "--layers", "2"}).code, 0);
  const auto wide = [&](const std::string& model, const std::string& width, const std::string& plan,
                        const std::string& name) {
    return std::vector<std::string>{
        "train", "--model", model, "--width",        width,       "--batch",
        "64",    "--steps", "2",   "--train-images", "1000",      "--test-images",
        "50",    "--plan",  plan,  "--out",          folder(name)};
  };
  ASSERT_EQ(run(wide("mlp", "768", "dense", "run")).code, 0);
  const std::set<std::string> with_torch = {"layer", "step", folder("run"), "--model"};
  const std::vector<std::vector<std::string>> commands = {
      {"plan", "--shape", "4096x4096x4096", "--pattern", "2:4"},
      {"bench", "layer", "--rounds", "30"},
      {"bench", "step", "--rounds", "100"},
      {"bench", "gemm"},
      {"bench", "solve"},
      {"bench", "convert", "--layer", "4096x4096"},
      {"convert", in, out, "--pattern", "8:16", "--transposable"},
      {"recovery", folder("run"), "--samples", "1000000"},
      wide("cnn", "64", "auto", "planning"),
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
    EXPECT_TRUE(contains(stop(program).out, "stopped: the same command goes on"));
  }
  std::filesystem::remove_all(folder("compare"));
  // While it trains.
  const std::vector<std::string> arguments =
      comparison("32", "16", {"--steps", "600", "--plan", "sparse", "--checkpoint-every", "0"});
  {
    Program program(arguments);
    ASSERT_TRUE(wait_for_step("compare/s-ste-2of4-seed1", 20));
    EXPECT_TRUE(contains(stop(program, SIGHUP).out, "stopped: the same command goes on"));
    EXPECT_EQ(names_in(folder("compare") + "/dense-seed1/checkpoints").size(), 1u);
  }
  // While it measures memory, in a process of its own.
  {
    Program program(arguments);
    ASSERT_TRUE(wait_for(folder("compare") + "/memory"));
    EXPECT_TRUE(contains(stop(program).out, "stopped: the same command goes on"));
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

TEST_F(TrainerCommands, AFullDiskIsOneLineAndWhatWasThereStaysWhole) {
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit tight = old;
  tight.rlim_cur = 20000;  // less than a checkpoint
  ::setrlimit(RLIMIT_FSIZE, &tight);
  const Outcome outcome = run(train("run", {}));
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "step-000000005.safetensors")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(names_in(folder("run") + "/checkpoints").empty());
  EXPECT_EQ(Json::parse(contents(folder("run") + "/run.json"), "run.json")["status"], "running");
  const Outcome resumed = run({"train", "--resume", folder("run")});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

// Where a weight of hidden1 is zero, in order.
std::vector<bool> zeros_of(const std::string& file) {
  const std::string bytes = tensor_bytes_of(file, "hidden1.weight");
  std::vector<float> weights(bytes.size() / sizeof(float));
  std::memcpy(weights.data(), bytes.data(), bytes.size());
  std::vector<bool> zeros;
  for (const float weight : weights) zeros.push_back(weight == 0.0f);
  return zeros;
}

TEST_F(TrainerCommands, APrunedModelIsTunedWithoutItsFile) {
  const std::string init = folder("pruned.safetensors"), aside = folder("aside.safetensors");
  ASSERT_EQ(run(train("dense", {"--recipe", "dense"})).code, 0);
  const Outcome masked = run({"mask", folder("dense") + "/model.safetensors", init, "--pattern",
                              "1:4", "--include", "hidden1.*"});
  ASSERT_EQ(masked.code, 0) << masked.err;
  std::ofstream(scratch_ / "init.toml") << "recipe = \"static\"\ninit = \"" << init << "\"\n";
  const std::vector<std::string> tuned = {"--config", folder("init.toml"), "--seed", "3"};
  const Outcome whole = run(train("whole", tuned, "150"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(whole.err, "");
  EXPECT_TRUE(contains(whole.out, "mlp on glyphs from " + init)) << whole.out;
  EXPECT_TRUE(contains(whole.out, "init promises 1:4")) << whole.out;
  EXPECT_EQ(run({"check", folder("whole") + "/model.safetensors"}).code, 0);
  EXPECT_EQ(zeros_of(folder("whole") + "/model.safetensors"), zeros_of(init));
  EXPECT_NE(tensor_bytes_of(folder("whole") + "/model.safetensors", "hidden1.weight"),
            tensor_bytes_of(init, "hidden1.weight"));

  std::vector<std::string> rare = tuned;
  rare.insert(rare.end(), {"--checkpoint-every", "100"});
  {
    Program program(train("killed", rare, "150"));
    ASSERT_TRUE(wait_for_step("killed", 20));
    ::kill(program.pid(), SIGKILL);
    EXPECT_EQ(program.wait().code, 128 + SIGKILL);
  }
  std::filesystem::rename(init, aside);
  const Outcome resumed = run({"train", "--resume", folder("killed")});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(model("killed"), model("whole"));
  const Json record = Json::parse(contents(folder("killed") + "/run.json"), "run.json");
  const Outcome evaluated = run({"eval", folder("killed"), "--json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(evaluated.json()["eval_loss"], record["result"]["eval_loss"]);
}

TEST_F(TrainerCommands, ARunThatCannotSaveItsFirstWeightsLeavesNothing) {
  ASSERT_EQ(run(train("dense", {"--recipe", "dense"}, "2")).code, 0);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit tight = old;
  tight.rlim_cur = 20000;  // less than a checkpoint
  ::setrlimit(RLIMIT_FSIZE, &tight);
  const Outcome outcome =
      run(train("run", {"--init", folder("dense") + "/model.safetensors"}, "2"));
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "step-000000000.safetensors")) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder("run")));
}

TEST_F(TrainerCommands, AGptWritesOnItsPackedWeights) {
  std::ofstream text(scratch_ / "text");
  for (int i = 0; i < 300; ++i) text << "Once upon a time there was number " << i % 17 << ".\n";
  text.close();
  const Outcome trained =
      run({"train",   "--model",   "gpt",        "--data",  "text:" + folder("text"),
           "--width", "16",        "--depth",    "1",       "--heads",
           "2",       "--context", "32",         "--batch", "4",
           "--steps", "5",         "--export",   "packed",  "--plan",
           "sparse",  "--out",     folder("gpt")});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome written = run({"generate", folder("gpt"), "--prompt", "Once", "--bytes", "40"});
  ASSERT_EQ(written.code, 0) << written.err;
  EXPECT_TRUE(written.out.starts_with("Once"));
  EXPECT_TRUE(contains(written.out, "tokens/s on packed weights, ")) << written.out;
  const Json json = run({"generate", folder("gpt"), "--bytes", "8", "--temperature", "0", "--json",
                         "--rounds", "1"})
                        .json();
  EXPECT_GT(json["dense_tokens_per_second"].get<double>(), 0.0);
  EXPECT_EQ(json["tokens"], 8);
}

TEST_F(TrainerCommands, CompareWritesItsTable) {
  const std::vector<std::string> arguments = {"compare",
                                              "--model",
                                              "mlp",
                                              "--width",
                                              "32",
                                              "--batch",
                                              "16",
                                              "--steps",
                                              "6",
                                              "--plan",
                                              "sparse",
                                              "--train-images",
                                              "100",
                                              "--test-images",
                                              "50",
                                              "--seeds",
                                              "2",
                                              "--recipes",
                                              "dense,s-ste,t-sr-ste@1:4",
                                              "--out",
                                              folder("compare")};
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "s-ste     2:4"));
  const Json document = Json::parse(contents(folder("compare") + "/compare.json"), "compare.json");
  EXPECT_EQ(document["metric"], "eval_accuracy");
  ASSERT_EQ(document["rows"].size(), 3u);
  for (const Json& row : document["rows"]) {
    for (const char* name : {"recipe", "pattern", "mean", "sd", "runs", "step_ratio", "density",
                             "check", "peak_resident_bytes"}) {
      EXPECT_TRUE(row.contains(name)) << name;
    }
    EXPECT_EQ(row["runs"].size(), 2u);
  }
  EXPECT_EQ(document["rows"][2]["check"], "dense by design");
  std::vector<std::string> brief = arguments;
  brief.insert(brief.end(), {"--brief", "--no-memory"});
  const Outcome again = run(brief);  // everything is there already
  ASSERT_EQ(again.code, 0) << again.err;
  size_t longest = 0;
  std::istringstream lines(again.out);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  EXPECT_LE(longest, 80u) << again.out;
}

TEST_F(TrainerCommands, BenchStepHasItsRecords) {
  const Outcome outcome =
      run({"bench",  "step",      "--tokens", "32",       "--context", "16",       "--width",
           "16",     "--hidden",  "32",       "--heads",  "2",         "--rounds", "2",
           "--plan", "sparse",    "--recipe", "t-sr-ste", "--recipe",  "s-ste",    "--pattern",
           "2:4",    "--pattern", "1:4",      "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json records = outcome.json();
  ASSERT_EQ(records.size(), 4u);
  for (const Json& record : records) {
    for (const char* name :
         {"ratio", "rss_ratio", "plain_torch_ms", "plain_torch_all_threads_ms"}) {
      EXPECT_GT(record[name].get<double>(), 0.0) << name;
    }
    for (const char* name : {"mask_share", "pack_share"}) {
      EXPECT_GT(record[name].get<double>(), 0.0) << name;
      EXPECT_LT(record[name].get<double>(), 1.0) << name;
    }
    EXPECT_GT(record["rss_ratio"].get<double>(), 0.5);
    EXPECT_LT(record["rss_ratio"].get<double>(), 2.0);
    EXPECT_EQ(record["ratio_spread"].size(), 2u);
    EXPECT_EQ(record["plan"], "sparse/sparse/sparse");
  }
}

}  // namespace
}  // namespace weft::test
