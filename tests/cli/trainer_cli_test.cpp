// weft train, compare, eval, generate and bench step as their users meet them.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/cli/trainer_commands.h"
#include "tests/model_files.h"

namespace weft::test {
namespace {

TEST_F(TrainerCommands, ARunLeavesAllItsFiles) {
  const Outcome outcome =
      run(train("run", {"--recipe", "transposable", "--export", "packed", "--eval-every", "10"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(names_in(folder("run")),
            (std::set<std::string>{"run.json", "metrics.jsonl", "checkpoints", "best.safetensors",
                                   "model.safetensors", "packed.safetensors"}));
  EXPECT_TRUE(contains(outcome.out, "hidden1  linear 32 -> 32   transposable  2:4")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "step 20/20  loss ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "images/s  flips "));
  EXPECT_TRUE(contains(outcome.out, "step 10  eval loss "));
  EXPECT_TRUE(contains(outcome.out, "products that ran sparse  fwd, bwd_x"));
  for (const char c : outcome.out + outcome.err) {
    EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 32) << "control characters in a pipe";
  }
  for (const char* name : {"/best.safetensors", "/model.safetensors", "/packed.safetensors"}) {
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
  EXPECT_TRUE(contains(run({"generate", folder("run")}).err,
                       "text generation needs model=gpt; this run is mlp"));
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
      {{"train", "--resume", folder("x")}, "not the folder of a run"},
      {{"train", "--out", "/proc/weft", "--train-images", "10", "--test-images", "5"},
       "/proc/weft"},
      {{"eval", folder("x")}, "not the folder of a run"},
      {{"generate", folder("x")}, "not the folder of a run"},
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

TEST_F(TrainerCommands, AFinishedRunIsNotOverwrittenButExtended) {
  ASSERT_EQ(run(train("run", {}, "2")).code, 0);
  EXPECT_TRUE(contains(run(train("run", {}, "2")).err, "has a run already"));
  const Outcome finished = run({"train", "--resume", folder("run")});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(contains(finished.out, "finished after 2 steps, with accuracy ")) << finished.out;
  const Outcome extended = run({"train", "--resume", folder("run"), "--steps", "5"});
  ASSERT_EQ(extended.code, 0) << extended.err;
  EXPECT_TRUE(contains(extended.out, "continuing after step 2")) << extended.out;
  const Json record = Json::parse(contents(folder("run") + "/run.json"), "run.json");
  EXPECT_EQ(record["result"]["step"], 5);
  const Outcome shorter = run({"train", "--resume", folder("run"), "--steps", "3"});
  EXPECT_EQ(shorter.code, 1);
  EXPECT_TRUE(contains(shorter.err, "the run is done after 5 steps: extend it with more"))
      << shorter.err;
}

TEST_F(TrainerCommands, JsonIsTheRecordOfTheRunAndNothingElse) {
  const Outcome outcome = run(train("run", {"--json", "--eval-every", "5"}, "10"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json record = Json::parse(contents(folder("run") + "/run.json"), "run.json");
  EXPECT_EQ(outcome.json(), record);
  EXPECT_EQ(record["status"], "done");
  const Outcome again = run({"train", "--resume", folder("run"), "--json"});
  EXPECT_EQ(again.json(), record) << again.err;
}

TEST_F(TrainerCommands, EpochsBecomeStepsOfTheData) {
  std::vector<std::string> command = train("run", {"--resume", "auto"}, "1");
  const auto steps = std::ranges::find(command, "--steps");
  steps[0] = "--epochs";
  steps[1] = "1.5";  // of 200 images in batches of 16: 18.75 steps
  ASSERT_EQ(run(command).code, 0);
  const Json record = Json::parse(contents(folder("run") + "/run.json"), "run.json");
  EXPECT_EQ(record["options"]["steps"], 19);
  EXPECT_EQ(record["result"]["step"], 19);
  EXPECT_TRUE(contains(run(command).out, "finished after 19 steps"));
  steps[1] = "2";
  EXPECT_TRUE(contains(run(command).out, "continuing after step 19"));
  EXPECT_EQ(run(train("both", {"--epochs", "1"}, "1")).code, 2);
}

TEST_F(TrainerCommands, AModelThatCannotFitIsRefusedAtOnce) {
  const Outcome outcome = run(train("run", {"--width", "65536", "--depth", "1000"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err,
                       "mlp of width 65536 and depth 1000: weights, gradients and adamw "
                       "moments of 4.29e+12 parameters need"))
      << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder("run")));
}

TEST_F(TrainerCommands, ARunWithoutSparseProductsSaysWhy) {
  const Outcome asked = run(train("asked", {"--plan", "dense"}, "2"));
  EXPECT_TRUE(contains(asked.out, "none, because of --plan dense")) << asked.out;
  const Outcome dense = run(train("dense", {"--recipe", "dense"}, "2"));
  EXPECT_TRUE(contains(dense.out, "products that ran sparse  none\n")) << dense.out;
}

// What a launcher that restarts its jobs runs: the same command every time.
TEST_F(TrainerCommands, OneCommandStartsContinuesAndFinishesARun) {
  const std::vector<std::string> command = train("run", {"--resume", "auto"}, "4");
  const Outcome begun = run(command);
  ASSERT_EQ(begun.code, 0) << begun.err;
  EXPECT_FALSE(contains(begun.out, "continuing")) << begun.out;
  EXPECT_TRUE(contains(run(command).out, "finished after 4 steps"));
  const Outcome extended = run(train("run", {"--resume", "auto"}, "6"));
  ASSERT_EQ(extended.code, 0) << extended.err;
  EXPECT_TRUE(contains(extended.out, "continuing after step 4")) << extended.out;
  const Outcome other = run(train("run", {"--resume", "auto", "--seed", "77"}, "6"));
  EXPECT_EQ(other.code, 1);
  EXPECT_TRUE(contains(other.err, "has a run with seed 1, not 77")) << other.err;
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
  const auto speed = json["tokens_per_second"].get<double>(),
             dense = json["dense_tokens_per_second"].get<double>();
  EXPECT_GT(dense, 0.0);
  EXPECT_NEAR(json["ratio"].get<double>(), speed / dense, 1e-9 * speed / dense);
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
  EXPECT_EQ(document["rows"][0]["step_ratio"], 1.0) << "dense against itself";
  EXPECT_EQ(document["rows"][2]["check"], "dense by design");
  std::vector<std::string> brief = arguments;
  brief.insert(brief.end(), {"--brief", "--no-memory"});
  const Outcome again = run(brief);  // everything is there already
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(contains(again.out, "t-sr-ste")) << again.out;
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
    const auto figure = [&](const char* name) { return record[name].get<double>(); };
    const double ratio = figure("dense_ms") / figure("step_ms");
    EXPECT_NEAR(figure("ratio"), ratio, 1e-9 * ratio);
    const double over_torch = figure("plain_torch_ms") / figure("dense_ms");
    EXPECT_NEAR(figure("dense_over_plain_torch"), over_torch, 1e-9 * over_torch);
    EXPECT_GT(figure("plain_torch_all_threads_ms"), 0.0);
    // Parts of a step: `other_ms` is the rest of it, and not below zero.
    const double parts = (figure("mask_share") + figure("pack_share")) * figure("step_ms") +
                         figure("fwd_ms") + figure("bwd_x_ms") + figure("bwd_w_ms");
    const double rest = std::max(0.0, figure("step_ms") - parts);
    EXPECT_NEAR(figure("other_ms"), rest, 1e-9 * figure("step_ms"));
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

// Also of lbc, which has two phases; and the text that puts them together.
TEST_F(TrainerCommands, BenchStepTakesAResidualNetwork) {
  const std::vector<std::string> arguments = {
      "bench",    "step", "--model",   "resnet18", "--width",     "8",         "--images", "2",
      "--size",   "8",    "--rounds",  "1",        "--plan",      "sparse",    "--recipe", "static",
      "--recipe", "lbc",  "--pattern", "2:4",      "--no-memory", "--threads", "1"};
  std::vector<std::string> as_json = arguments;
  as_json.push_back("--json");
  const Outcome outcome = run(as_json);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json records = outcome.json();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1]["recipe"], "lbc");
  EXPECT_EQ(records[1]["removing"], true);
  EXPECT_EQ(records[2]["removing"], false);
  for (const Json& record : records) {
    EXPECT_EQ(record["model"], "resnet18");
    EXPECT_EQ(record["images"], 2);
    EXPECT_GT(record["bwd_w_ms"].get<double>(), 0.0);
    EXPECT_GT(record["plain_torch_ms"].get<double>(), 0.0);
    const bool keeps_most = record["removing"].get<bool>();
    EXPECT_EQ(record["plan"], keeps_most ? "dense/dense/dense" : "sparse/sparse/sparse");
  }
  const Outcome text = run(arguments);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "lbc 2:4 over a whole run")) << text.out;
  EXPECT_TRUE(contains(text.out, "ResNet-18 of width 8, 2 images of 8 x 8")) << text.out;
}

}  // namespace
}  // namespace weft::test
