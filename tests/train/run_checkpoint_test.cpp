// Checkpoints of runs: a run goes on to the bit, and a checkpoint that is not its own is refused.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/run/run_result.h"
#include "weft/torch/tensor_file.h"

namespace weft::test {
namespace {

TEST(Resume, EveryRecipeGoesOnBitForBit) {
  for (const std::string model : {"mlp", "cnn"}) {
    for (const Recipe& recipe : recipes()) {
      RunOptions options = small_run(model, recipe.name);
      options.optimizer = model == "mlp" ? "adamw" : "sgd";
      const ScratchFolder scratch;
      const auto whole = scratch / "whole", pieces = scratch / "pieces";
      const std::string expected =
          finished_model(whole, Trainer::begin(whole, make_parts(options)));
      EXPECT_EQ(interrupted_model(pieces, options, {3, 6, 5}), expected)
          << model << " by " << recipe.name;
    }
  }
}

TEST(Resume, TextAndAccumulationGoOnBitForBit) {
  const ScratchFolder scratch;
  RunOptions options = text_run(scratch, "t-sr-ste");
  options.accumulate = 2;
  const auto whole = scratch / "whole", pieces = scratch / "pieces";
  const std::string expected = finished_model(whole, Trainer::begin(whole, make_parts(options)));
  EXPECT_EQ(interrupted_model(pieces, options, {5, 4}), expected);
}

class SavedRun : public ::testing::Test {
 protected:
  SavedRun() : options_(small_run("mlp", "lbc")) {
    Trainer::begin(folder_, make_parts(options_)).advance(9);  // saved after 4 and 8
  }
  std::filesystem::path checkpoint(int64_t step) const {
    return folder_ / "checkpoints" / fmt::format("step-{:09}.safetensors", step);
  }
  int64_t resumed_step() {
    return Trainer::resume(folder_, make_parts(resume_options(folder_)), listening(notes_)).step();
  }

  ScratchFolder scratch_;
  std::filesystem::path folder_ = scratch_ / "run";
  RunOptions options_;
  Notes notes_;
};

TEST_F(SavedRun, TakesTheNewestCheckpoint) {
  EXPECT_EQ(resumed_step(), 8);
  EXPECT_EQ(notes_.all, "");
}

TEST_F(SavedRun, ATruncatedCheckpointIsNamedAndTheOneBeforeIsUsed) {
  std::filesystem::resize_file(checkpoint(8), std::filesystem::file_size(checkpoint(8)) - 5);
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(contains(notes_.all, "refused: " + checkpoint(8).string())) << notes_.all;
}

TEST_F(SavedRun, ADamagedCheckpointIsNamedAndTheOneBeforeIsUsed) {
  std::string bytes = contents(checkpoint(8));
  bytes[bytes.size() - 7000] ^= 1;
  std::ofstream(checkpoint(8), std::ios::binary) << bytes;
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(contains(notes_.all, "checksum")) << notes_.all;
}

// Empty tensors (masks of dense layers, for one) stand among the others: what comes before them
// counts as well.
TEST_F(SavedRun, OneBitOfAnyTensorOrOfTheHeaderIsNoticed) {
  const std::string whole = contents(checkpoint(8));
  const SafetensorsReader reader(checkpoint(8));
  const std::vector<TensorInfo> tensors = reader.header().tensors;
  const size_t data = whole.size() - tensors.back().end;
  const auto problem = [&](size_t at, int bit) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
    put(checkpoint(8), bytes);
    return message_of([&] { read_tensors(checkpoint(8), Checksum::kYes); });
  };
  int empty = 0;
  for (const TensorInfo& tensor : tensors) {
    empty += tensor.bytes() == 0;
    for (const uint64_t at : {uint64_t{0}, tensor.bytes() / 2, tensor.bytes() - 1}) {
      if (tensor.bytes() == 0) break;
      const std::string found = problem(data + tensor.begin + at, static_cast<int>(at % 8));
      EXPECT_TRUE(contains(found, "checksum does not match its contents"))
          << tensor.name << ": " << found;
    }
  }
  EXPECT_GT(empty, 0) << "there is no empty tensor here: the test has lost its point";
  for (size_t at = 0; at < data; ++at) {
    EXPECT_NE(problem(at, static_cast<int>(at % 8)), "(no Error)") << "byte " << at;
  }
  put(checkpoint(8), whole);
  EXPECT_NO_THROW(read_tensors(checkpoint(8), Checksum::kYes));
  const auto weight = std::ranges::find(tensors, "model.hidden1.weight", &TensorInfo::name);
  ASSERT_NE(weight, tensors.end());
  problem(data + weight->begin, 3);
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(contains(notes_.all, "refused: " + checkpoint(8).string())) << notes_.all;
}

// The checksum of version 1 stopped counting at empty tensors.
TEST_F(SavedRun, ACheckpointOfVersion1IsRefusedInOneLine) {
  const TensorFile file = read_tensors(checkpoint(8));
  Metadata older = file.metadata;
  std::string& entry = older["weft.checkpoint"];
  entry.replace(entry.find("\"version\":2"), 11, "\"version\":1");
  write_tensors(checkpoint(8), NamedTensors(file.tensors.begin(), file.tensors.end()), older,
                Checksum::kYes);
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(
      contains(notes_.all, "version 1: accepted is 2; continue with the weft that wrote it"))
      << notes_.all;
}

TEST_F(SavedRun, ACheckpointOfAnotherRunIsRefused) {
  const auto other = scratch_ / "other";
  RunOptions options = options_;
  options.seed = 2;
  Trainer::begin(other, make_parts(options)).advance(8);
  std::filesystem::copy_file(other / "checkpoints" / checkpoint(8).filename(), checkpoint(8),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(contains(notes_.all, "belongs to another run")) << notes_.all;
}

TEST_F(SavedRun, ANewerCheckpointAndAForeignFileAreRefused) {
  const TensorFile file = read_tensors(checkpoint(8));
  NamedTensors tensors(file.tensors.begin(), file.tensors.end());
  Metadata newer = file.metadata;
  std::string& entry = newer["weft.checkpoint"];
  entry.replace(entry.find("\"version\":2"), 11, "\"version\":3");
  write_tensors(checkpoint(8), tensors, newer, Checksum::kYes);
  write_tensors(checkpoint(4), tensors, {});
  EXPECT_TRUE(contains(message_of([&] { resumed_step(); }), "no checkpoint can be used"));
  EXPECT_TRUE(contains(notes_.all, "version 3: accepted is 2")) << notes_.all;
  EXPECT_TRUE(contains(notes_.all, "not a checkpoint of a run of weft")) << notes_.all;
}

// Whoever edits a checkpoint, with or without a new checksum, does not get a run that goes wrong.
TEST_F(SavedRun, AnEditedCheckpointIsRefused) {
  const std::string whole = contents(checkpoint(8));
  const TensorFile file = read_tensors(checkpoint(8));
  const auto edited = [&](const std::string& from, const std::string& to) {
    Metadata metadata = file.metadata;
    std::string& entry = metadata["weft.checkpoint"];
    const size_t at = entry.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in " << entry;
    entry.replace(at, from.size(), to);
    return metadata;
  };
  const auto resumed_with = [&](const NamedTensors& tensors, const Metadata& metadata,
                                Checksum checksum) {
    write_tensors(checkpoint(8), tensors, metadata, checksum);
    notes_.all.clear();
    const int64_t step = resumed_step();
    EXPECT_TRUE(contains(notes_.all, "refused: " + checkpoint(8).string())) << notes_.all;
    return step;
  };
  const NamedTensors tensors(file.tensors.begin(), file.tensors.end());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"step\":8", "\"step\":3"},
           {"\"step\":8", "\"step\":-5"},
           {"\"step\":8", "\"step\":1e300"},
           {"\"step\":8", "\"step\":\"x\""},
           {"\"data_position\":64", "\"data_position\":65"},
           {"\"optimizer_steps\":{", "\"optimizer_steps\":5,\"x\":{"},
           {"\"hidden1.weight\":8", "\"other\":8"},
           {"\"flips\":", "\"flops\":"}}) {
    EXPECT_EQ(resumed_with(tensors, edited(from, to), Checksum::kYes), 4) << to;
    EXPECT_EQ(resumed_with(tensors, edited(from, to), Checksum::kNo), 4) << "no checksum: " << to;
  }
  NamedTensors other = tensors;
  for (auto& [name, tensor] : other) {
    if (name == "random") tensor = torch::zeros({7}, torch::kByte);
  }
  EXPECT_EQ(resumed_with(other, file.metadata, Checksum::kYes), 4);
  EXPECT_TRUE(std::filesystem::exists(checkpoint(8).string() + ".refused"));
  std::ofstream(checkpoint(8), std::ios::binary) << whole;
  EXPECT_EQ(resumed_step(), 8);
}

TEST_F(SavedRun, ReportsTheWholeRun) {
  const auto whole = scratch_ / "whole";
  Trainer untouched = Trainer::begin(whole, make_parts(options_));
  untouched.advance(options_.steps);
  const RunResult expected = untouched.finish();
  RunResult found;
  {
    Trainer resumed = Trainer::resume(folder_, make_parts(resume_options(folder_)));
    resumed.advance(options_.steps);
    found = resumed.finish();
  }
  EXPECT_EQ(found.flip_rate, expected.flip_rate);
  EXPECT_EQ(found.products, expected.products);
  EXPECT_EQ(found.eval.loss, expected.eval.loss);
  EXPECT_EQ(found.density, expected.density);
  // Done is done.
  EXPECT_TRUE(
      contains(message_of([&] { Trainer::resume(folder_, make_parts(resume_options(folder_))); }),
               "the run is done"));
  EXPECT_EQ(read_run_result(folder_).eval.loss, expected.eval.loss);
}

TEST_F(SavedRun, GarbageDoesNotPushOutWhatIsGood) {
  for (const int64_t step : {999998, 999999}) std::ofstream(checkpoint(step)) << "garbage";
  std::ofstream(folder_ / "checkpoints" / ".step-1.safetensors.weft-1-1") << "half a file";
  {
    Trainer trainer = Trainer::resume(folder_, make_parts(resume_options(folder_)));
    trainer.advance(2);
    trainer.save_checkpoint();
  }
  EXPECT_EQ(resumed_step(), 10);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "checkpoints" / ".step-1.safetensors.weft-1-1"));
  std::filesystem::remove(folder_ / "run.json");
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(folder_, make_parts(options_)); }),
                       "checkpoints without a run.json"));
}

TEST_F(SavedRun, ARunWithoutItsMetricsIsNotLost) {
  const auto seconds_of = [](const std::vector<Json>& lines, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; ++i) sum += 1e-3 * lines.at(i)["step_ms"].get<double>();
    return sum;
  };
  const double before = seconds_of(step_lines(folder_), 8);  // up to the checkpoint
  std::filesystem::remove(folder_ / "metrics.jsonl");
  Trainer trainer =
      Trainer::resume(folder_, make_parts(resume_options(folder_)), listening(notes_));
  trainer.advance(options_.steps);
  const RunResult result = trainer.finish();
  const double after = seconds_of(step_lines(folder_), 4);
  EXPECT_NEAR(result.step_seconds, (before + after) / 12, 1e-6) << "the mean, not the median";
  EXPECT_TRUE(contains(notes_.all, "lines are missing")) << notes_.all;
  EXPECT_TRUE(contains(notes_.all, "metrics.jsonl:1: not the line of step 1")) << notes_.all;
}

TEST_F(SavedRun, SaysWhatDiffers) {
  RunOptions options = resume_options(folder_);
  options.threads = 1;
  Trainer::resume(folder_, make_parts(options), listening(notes_));
  EXPECT_TRUE(contains(notes_.all, "threads: was 2, is 1 now")) << notes_.all;
  options.threads = 2;
  options.train_images = 63;  // as if the files had changed
  EXPECT_TRUE(contains(
      message_of([&] { Trainer::resume(folder_, make_parts(options), listening(notes_)); }),
      "is not the data that this run started with"));
}

TEST_F(SavedRun, KeepsToTheRecordedPlan) {
  // Whatever a planner would say now, the run's own choices stand.
  TrainerSetup setup;
  setup.planner = std::make_shared<Planner>(PlanMode::kDense, "");
  const Json before = read_run_record(folder_)["plan"];
  ASSERT_GT(before["plans"].size(), 0u);
  Trainer trainer = Trainer::resume(folder_, make_parts(resume_options(folder_)), setup);
  trainer.advance(4);
  for (const Json::Member& plan : before["plans"].members()) {
    EXPECT_EQ(read_run_record(folder_)["plan"]["plans"][plan.name], plan.value) << plan.name;
  }
}

}  // namespace
}  // namespace weft::test
