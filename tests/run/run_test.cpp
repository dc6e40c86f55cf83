// Runs without torch: options from flags, files and records, and the folder that a run lives in.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/run/compare_options.h"
#include "weft/run/memory.h"
#include "weft/run/run_folder.h"
#include "weft/run/run_options.h"
#include "weft/run/run_position.h"
#include "weft/run/tensor_checksum.h"

namespace weft::test {
namespace {

std::string config_problem(const std::string& text) {
  const ScratchFolder folder;
  std::ofstream(folder / "run.toml") << text;
  RunOptions options;
  return message_of([&] { read_config(folder / "run.toml", options); });
}

TEST(RunOptions, EveryFieldGoesThroughJsonAndBack) {
  RunOptions options;
  options.model = "gpt";
  options.data = "text:some where";
  options.learning_rate = 0.1 + 0.2;  // not a short decimal
  options.rules = {"blocks.0.*=dense", "head=ste@1:4"};
  options.sparse_ends = true;
  options.seed = int64_t{1} << 60;
  const Json json = options.to_json();
  EXPECT_EQ(json.size(), option_fields().size());
  const RunOptions again = RunOptions::from_json(Json::parse(json.dump(), "test"), "test");
  for (const OptionField& field : option_fields()) {
    EXPECT_EQ(field.get(again), field.get(options)) << field.name;
  }
  EXPECT_EQ(again.learning_rate, options.learning_rate);
}

TEST(RunOptions, NamesAreDistinct) {
  std::set<std::string> names;
  for (const OptionField& field : option_fields()) EXPECT_TRUE(names.insert(field.name).second);
}

TEST(RunOptions, AConfigurationFileSetsWhatItNames) {
  const ScratchFolder folder;
  std::ofstream(folder / "run.toml") << "# a run\nmodel = \"mlp\"\nsteps = 12\nclip = 0.5\n"
                                        "sparse-ends = true\nrule = [\"a=dense\", \"b=ste\"]\n";
  RunOptions options;
  read_config(folder / "run.toml", options);
  EXPECT_EQ(options.model, "mlp");
  EXPECT_EQ(options.steps, 12);
  EXPECT_EQ(options.clip, 0.5);
  EXPECT_TRUE(options.sparse_ends);
  EXPECT_EQ(options.rules, (std::vector<std::string>{"a=dense", "b=ste"}));
  EXPECT_EQ(options.recipe, RunOptions().recipe);
}

// toml++ gets to see other letters.
TEST(RunOptions, LettersBeyondAsciiAreForCommentsAndStrings) {
  const ScratchFolder folder;
  put(folder / "run.toml",
      "\xef\xbb\xbf"
      R"(# café "
plan = "é \" 中\u00e9😀" # é
init = """aé"é \
  é  Ж""""
data = 'text:ü\n'
steps = 3
)");
  RunOptions options;
  read_config(folder / "run.toml", options);
  EXPECT_EQ(options.plan, "é \" 中é😀");
  EXPECT_EQ(options.init, "aé\"é é  Ж\"");
  EXPECT_EQ(options.data, "text:ü\\n");
  EXPECT_EQ(options.steps, 3);
  for (const char* bad : {"é = 1", "steps = 1 Ж", "rule = [é]", "init = '''x''' é",
                          "steps\u00a0= 1", "steps = 7x\"\"\"aé\"\"\"", "init = \"\"\"\\é\"\"\""}) {
    const std::string problem = config_problem(bad);
    EXPECT_TRUE(contains(problem, "run.toml:1: ")) << problem;
    EXPECT_FALSE(contains(problem, "F00E9")) << problem;
  }
  EXPECT_TRUE(contains(config_problem("rnn = 'é'"), "unknown key 'rnn'"));
  EXPECT_TRUE(contains(config_problem("model = 'é'"), "'é': accepted are"));
  EXPECT_TRUE(contains(config_problem("'é' = 1"), "unknown key 'é'"));
  EXPECT_TRUE(contains(config_problem("plan = '\U000f00e9'"), "U+F00E9: private-use characters"));
}

TEST(RunOptions, AWrongConfigurationIsNamedWithItsLine) {
  EXPECT_TRUE(contains(config_problem("steps = 3\nlerning-rate = 1"),
                       "run.toml:2: unknown key 'lerning-rate': did you mean 'learning-rate'?"));
  EXPECT_TRUE(contains(config_problem("lr = -1"), "run.toml:1: lr: -1 is not in"));
  EXPECT_TRUE(contains(config_problem("weight_decay = 1"), "did you mean 'weight-decay'?"));
  EXPECT_TRUE(contains(config_problem("steps = -1"), "run.toml:1: steps: -1 is not in [1,"));
  EXPECT_TRUE(contains(config_problem("steps = 1.5"), "'1.5' is no whole number"));
  EXPECT_TRUE(contains(config_problem("steps = 1979-05-27"), "accepted are texts, numbers"));
  EXPECT_TRUE(contains(config_problem("[model]\nname = 1"), "model"));
  // toml++ asserts that such things do not come.
  for (const char* bad : {"steps = 1\n  [\n", "[\x01]", "steps =1979-02-27T\"cnn\"07:64:00Z1"}) {
    EXPECT_TRUE(contains(config_problem(bad), "run.toml: not valid TOML: ")) << bad;
  }
  EXPECT_TRUE(contains(config_problem("steps = [1, 2]"), "2 values: accepted is one"));
  EXPECT_TRUE(
      contains(config_problem("model = \"rnn\""), "accepted are mlp, cnn, resnet18, vit, gpt"));
  EXPECT_TRUE(contains(config_problem("recipe = \"magic\""), "magic"));
  EXPECT_TRUE(contains(config_problem("learning-rate = nan"), "learning-rate"));
  EXPECT_TRUE(contains(config_problem("steps = "), "run.toml:1:"));
  EXPECT_TRUE(contains(config_problem("rule = \"dense\""), "LAYERS=RECIPE"));
  EXPECT_TRUE(contains(config_problem("steps = 3\nepochs = 1"), "has both steps and epochs"));
  RunOptions options;
  EXPECT_TRUE(contains(message_of([&] { read_config("/nowhere/run.toml", options); }),
                       "/nowhere/run.toml: cannot open"));
}

TEST(RunOptions, FieldsThatContradictEachOtherAreRefused) {
  const auto problem = [](auto change) {
    RunOptions options;
    change(options);
    return message_of([&] { options.resolved().check(); });
  };
  EXPECT_EQ(problem([](RunOptions&) {}), "(no Error)");
  EXPECT_TRUE(contains(problem([](RunOptions& o) { o.model = "gpt"; }), "needs text"));
  EXPECT_TRUE(contains(problem([](RunOptions& o) { o.data = "text"; }), "needs images"));
  EXPECT_TRUE(contains(problem([](RunOptions& o) { o.accumulate = 3; }), "3 micro-batches"));
  EXPECT_TRUE(contains(problem([](RunOptions& o) {
                         o.recipe = "s-ste+gradient=mvue-two-draw";
                         o.pattern = "1:4";
                       }),
                       "2:4"));
}

TEST(RunOptions, WhatSuitsAModelIsFilledIn) {
  RunOptions options;
  EXPECT_EQ(options.resolved().width, 16);
  options.model = "gpt";
  options.width = 64;
  EXPECT_EQ(options.resolved().width, 64);
  EXPECT_EQ(options.resolved().depth, 4);
  options.optimizer = "sgd";
  EXPECT_EQ(options.resolved().learning_rate, 0.05);
}

TEST(RunOptions, EpochsAreCountedInSteps) {
  RunOptions options;
  options.batch = 16;
  EXPECT_EQ(options.with_steps_of_epochs(200).steps, options.steps);
  options.epochs = 2;
  EXPECT_EQ(options.with_steps_of_epochs(200).steps, 25);
  EXPECT_EQ(options.with_steps_of_epochs(200).epochs, 0.0);
  EXPECT_EQ(options.with_steps_of_epochs(1).steps, 1);
  // A flag --steps overrides epochs of a configuration file.
  option_field("steps", "").set(options, {"7"});
  EXPECT_EQ(options.with_steps_of_epochs(200).steps, 7);
  options.epochs = 1e9;
  EXPECT_TRUE(contains(message_of([&] { options.with_steps_of_epochs(int64_t{1} << 30); }),
                       "epochs 1000000000: 1073741824 samples in batches of 16 are more than"));
}

TEST(RunFolder, HoldsOneRunAndOneProcess) {
  const ScratchFolder scratch;
  const auto path = scratch / "a" / "run";
  {
    const RunFolder folder = RunFolder::create(path);
    EXPECT_TRUE(contains(message_of([&] { RunFolder::open(path); }), "run.json is missing"));
    std::ofstream(folder.record()) << "{}";
    EXPECT_TRUE(contains(message_of([&] { RunFolder::open(path); }), "another process"));
    EXPECT_TRUE(contains(message_of([&] { RunFolder::create(path); }), "has a run already"));
  }
  EXPECT_EQ(message_of([&] { RunFolder::open(path); }), "(no Error)");
  std::ofstream(scratch / "file") << "x";
  EXPECT_TRUE(contains(message_of([&] { RunFolder::create(scratch / "file" / "run"); }),
                       "cannot make the folder"));
}

TEST(RunFolder, KeepsTheLastTwoCheckpoints) {
  const ScratchFolder scratch;
  const RunFolder folder = RunFolder::create(scratch / "run");
  for (const int64_t step : {5, 1000000000, 20, 100}) {
    std::ofstream(folder.checkpoint(step)) << step;
  }
  std::ofstream(folder.path() / "checkpoints" / "step-x.safetensors") << "not ours";
  EXPECT_EQ(folder.checkpoints(), (std::vector<int64_t>{1000000000, 100, 20, 5}));
  folder.remove_old_checkpoints();
  EXPECT_EQ(folder.checkpoints(), (std::vector<int64_t>{1000000000, 100}));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "checkpoints" / "step-x.safetensors"));
}

TEST(RunFolder, ARecordThatIsNoneIsNamed) {
  const ScratchFolder scratch;
  const auto problem = [&](const std::string& text) {
    std::ofstream(scratch / "run.json") << text;
    return message_of([&] { read_run_record(scratch / ""); });
  };
  EXPECT_TRUE(
      contains(message_of([&] { read_run_record(scratch / "none"); }), "not the folder of a run"));
  EXPECT_TRUE(contains(problem("{"), "run.json"));
  EXPECT_TRUE(contains(problem("{}"), "not the record of a run"));
  EXPECT_TRUE(contains(problem(R"({"format": "weft.run", "version": 7})"), "version 7"));
  EXPECT_TRUE(contains(problem(R"({"format": "weft.run", "version": 1})"), "'options' is missing"));
}

TEST(MetricsFile, IsCutToWhatARunHadWhenItWasSaved) {
  const ScratchFolder scratch;
  uint64_t saved = 0;
  {
    MetricsFile metrics(scratch / "m", 0);
    metrics.add({{"step", 1}});
    saved = metrics.bytes();
    metrics.add({{"step", 2}});
  }
  std::ofstream(scratch / "m", std::ios::app) << "{\"half a li";
  {
    MetricsFile metrics(scratch / "m", saved);
    metrics.add({{"step", 9}});
    metrics.sync();
  }
  EXPECT_EQ(contents(scratch / "m"), "{\"step\":1}\n{\"step\":9}\n");
  MetricsFile shorter(scratch / "m", 10000);
  EXPECT_EQ(shorter.bytes(), 22u);
  EXPECT_TRUE(contains(message_of([] {
                         MetricsFile("/dev/full", 0).add({{"step", 1}});
                       }),
                       "/dev/full: cannot be written"));
}

TEST(RunFolder, WritesThroughNoSymbolicLink) {
  for (const char* name : {"metrics.jsonl", "model.safetensors", "packed.safetensors"}) {
    const ScratchFolder scratch;
    std::filesystem::create_directory(scratch / "run");
    put(scratch / "precious", "kept");
    std::filesystem::create_symlink(scratch / "precious", scratch / "run" / name);
    EXPECT_TRUE(contains(message_of([&] { RunFolder::create(scratch / "run"); }),
                         (scratch / "run" / name).string() + ": is a symbolic link"));
    EXPECT_EQ(contents(scratch / "precious"), "kept");
    std::filesystem::remove(scratch / "run" / name);
    EXPECT_NO_THROW(RunFolder::create(scratch / "run"));
  }
}

TEST(StepSeconds, NeedsEveryStepOnce) {
  const ScratchFolder scratch;
  const auto problem = [&](const std::string& text) {
    std::ofstream(scratch / "m") << text;
    return message_of([&] { read_step_seconds(scratch / "m", 2); });
  };
  const std::string one = "{\"step\":1,\"step_ms\":5}\n", two = "{\"step\":2,\"step_ms\":6}\n";
  EXPECT_EQ(problem(one + "{\"step\":1,\"eval_loss\":1}\n" + two), "(no Error)");
  const std::vector<StepSeconds> steps = read_step_seconds(scratch / "m", 2);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].seconds, 5e-3);
  EXPECT_EQ(steps[1].seconds, 6e-3);
  EXPECT_FALSE(steps[0].measuring || steps[1].measuring);
  EXPECT_TRUE(contains(problem(one), "has 1 steps, but the run has 2"));
  EXPECT_TRUE(contains(problem(two + one), "m:1: not the line of step 1"));
  EXPECT_TRUE(contains(problem(one + "{\"step\":2,\"step_ms\":\"x\"}\n"), "m:2: 'step_ms'"));
  EXPECT_TRUE(contains(problem(one + "{half"), "m:2"));
}

TEST(StepSeconds, OfThinnedMetricsAreThoseOfTheStepsWithALine) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "m") << "{\"step\":3,\"step_ms\":5}\n{\"step\":6,\"step_ms\":6}\n";
  EXPECT_EQ(read_step_seconds(scratch / "m", 8, 3).size(), 2U);
  EXPECT_TRUE(contains(message_of([&] { read_step_seconds(scratch / "m", 9, 3); }),
                       "has 2 steps, but the run has 3"));
  EXPECT_TRUE(contains(message_of([&] { read_step_seconds(scratch / "m", 8, 2); }),
                       "m:1: not the line of step 2"));
}

// Steps in which the planner measured take longer than the run's.
TEST(StepSeconds, TypicalStepsAreThoseInWhichNothingWasMeasured) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "m") << "{\"step\":1,\"step_ms\":9,\"measuring\":true}\n"
                                  "{\"step\":2,\"step_ms\":9,\"measuring\":true}\n"
                                  "{\"step\":3,\"step_ms\":5}\n";
  const std::vector<StepSeconds> steps = read_step_seconds(scratch / "m", 3);
  EXPECT_DOUBLE_EQ(typical_seconds(steps).value(), 5e-3);
  EXPECT_FALSE(typical_seconds(std::span(steps).first(2)));
}

TEST(StepSeconds, ALineWithoutAnEndIsRefused) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "m") << "{\"step\":1,\"step_ms\":5}\n";
  std::filesystem::resize_file(scratch / "m", uint64_t{1} << 40);  // takes no room on the disk
  EXPECT_TRUE(contains(message_of([&] { read_step_seconds(scratch / "m", 1); }),
                       "m:2: a line of more than 1048576 bytes"));
  std::ofstream(scratch / "n") << "{\"step\":1,\"step_ms\":5}\n{\"step\":2,\"step_ms\":5}\n";
  EXPECT_TRUE(contains(message_of([&] { read_step_seconds(scratch / "n", 1); }),
                       "n:2: has more steps than the 1 of the run"));
}

// A checkpoint made without weft, as run_position.h and tensor_checksum.h describe it.
class RunCheckpoint : public ::testing::Test {
 protected:
  static std::string load(const std::filesystem::path& path) {
    return message_of([&] {
      const SafetensorsReader reader(path);
      position_from(reader.header().metadata, path.string());
      std::map<std::string, std::vector<std::byte>> bytes;
      read_checked(reader, [&](const TensorInfo& info) {
        bytes[info.name].resize(info.bytes());
        return std::span(bytes[info.name]);
      });
    });
  }
  ScratchFolder scratch_;
  const std::string whole_ = contents(WEFT_SOURCE_DIR "/tests/fuzz/corpus/run/checkpoint_valid");
};

TEST_F(RunCheckpoint, IsRead) {
  put(scratch_ / "c", whole_);
  EXPECT_EQ(load(scratch_ / "c"), "(no Error)");
  const SavedPosition saved =
      position_from(SafetensorsReader(scratch_ / "c").header().metadata, "c");
  EXPECT_EQ(saved.position.step, 4);
  EXPECT_EQ(saved.position.products, std::set<std::string>{"fwd"});
}

TEST_F(RunCheckpoint, EveryBitOfItCounts) {
  for (size_t bit = 0; bit < 8 * whole_.size(); ++bit) {
    std::string bytes = whole_;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    put(scratch_ / "c", bytes);
    EXPECT_NE(load(scratch_ / "c"), "(no Error)") << "bit " << bit % 8 << " of byte " << bit / 8;
  }
}

TEST(PeakMemory, IsWhatThisProcessHas) {
  EXPECT_GT(peak_resident_bytes(), uint64_t{1} << 20);
  EXPECT_LT(peak_resident_bytes(), uint64_t{1} << 34);
  EXPECT_GT(memory_bytes(), peak_resident_bytes());
}

TEST(CompareOptions, HaveDenseOnceThenPatternsThenRecipesAtTheirOwn) {
  CompareOptions options;
  options.recipes = {"dense",  "ste",     "s-ste@1:8", "s-ste+gradient=mvue@2:4@1:8",
                     "sr-ste", "ste@1:4", "ste"};
  options.patterns = {"2:4", "1:4"};
  std::vector<std::string> found;
  for (const CompareEntry& entry : compare_entries(options)) {
    found.push_back(entry.recipe + "@" + entry.pattern);
  }
  EXPECT_EQ(found,
            (std::vector<std::string>{"dense@", "ste@2:4", "sr-ste@2:4", "ste@1:4", "sr-ste@1:4",
                                      "s-ste@1:8", "s-ste+gradient=mvue@2:4@1:8"}));
  options.recipes = {"s-ste+gradient=mvue-two-draw"};
  EXPECT_TRUE(contains(message_of([&] { compare_entries(options); }), "1:4"));
}

}  // namespace
}  // namespace weft::test
