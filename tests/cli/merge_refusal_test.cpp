// What weft merge refuses, in one line and with nothing left behind.
#include <gtest/gtest.h>

#include <limits>

#include "tests/model_files.h"
#include "tests/program.h"

namespace weft::test {
namespace {

class Refusal : public ::testing::Test {
 protected:
  // A delta file that is refused with one line, and nothing left behind.
  void expect_refused(const std::vector<NamedTensor>& delta, const std::vector<std::string>& parts,
                      const Metadata& metadata = {}) {
    write_file(folder_ / "d", delta, metadata);
    const std::set<std::string> before = names_in(folder_.path());
    expect_one_line(run({"merge", base_, folder_ / "d", folder_ / "o", "--pattern", "2:4"}), 1,
                    parts);
    EXPECT_EQ(names_in(folder_.path()), before);
  }

  ScratchFolder folder_;
  std::string base_ = write_model(folder_);
  const std::vector<float> a_ = gaussian(80, 1), b_ = gaussian(48, 2);  // rank 2 for fc1
  const NamedTensor lora_a_ = {"fc1.lora_A.weight", Dtype::kF32, {2, 40}, a_};
  const NamedTensor lora_b_ = {"fc1.lora_B.weight", Dtype::kF32, {24, 2}, b_};
};

TEST_F(Refusal, OfDeltasThatFitNothing) {
  expect_refused({}, {"/d", "no tensors"});
  expect_refused({{"fc2.weight", Dtype::kF32, {24, 40}, gaussian(960)}},
                 {"/d", "fc2.weight", "model.safetensors"});
  expect_refused({{"fc2.lora_A.weight", Dtype::kF32, {2, 40}, a_},
                  {"fc2.lora_B.weight", Dtype::kF32, {24, 2}, b_}},
                 {"/d", "fc2.lora_A.weight", "'fc2.weight'"});
  expect_refused({{"fc1.weight", Dtype::kF32, {40, 24}, gaussian(960)}},
                 {"/d", "fc1.weight", "[40, 24]", "[24, 40]"});
  expect_refused({{"fc1.lora_magnitude_vector", Dtype::kF32, {24}, gaussian(24)}},
                 {"/d", "lora_magnitude_vector"});
  expect_refused({{"base_model.model.fc1.weight", Dtype::kF32, {24, 40}, gaussian(960)}},
                 {"/d", "base_model.model.fc1.weight", "whole weights"});
}

TEST_F(Refusal, OfWrongLoraPairs) {
  expect_refused({lora_a_}, {"/d", "fc1.lora_A.weight", "its lora_B is missing"});
  expect_refused({lora_b_}, {"/d", "fc1.lora_B.weight", "its lora_A is missing"});
  expect_refused({lora_a_, {"fc1.lora_B.weight", Dtype::kF32, {2, 24}, b_}},
                 {"/d", "fc1.lora_B.weight", "[2, 24]", "[24, 2]"});
  expect_refused({{"fc1.lora_A.weight", Dtype::kF32, {40, 2}, a_}, lora_b_},
                 {"/d", "fc1.lora_A.weight", "[40, 2]", "[40, 40]"});
  expect_refused({{"fc1.lora_A.weight", Dtype::kF32, {1, 40}, gaussian(40)}, lora_b_},
                 {"/d", "fc1.lora_B.weight", "[24, 2]", "[24, 1]"});
  expect_refused({{"fc1.lora_A.weight", Dtype::kF32, {0, 40}, {}},
                  {"fc1.lora_B.weight", Dtype::kF32, {24, 0}, {}}},
                 {"/d", "fc1.lora_A.weight", "rank"});
  expect_refused({{"fc1.lora_A.weight", Dtype::kF32, {}, {1}}, lora_b_},
                 {"/d", "fc1.lora_A.weight"});
  expect_refused({lora_a_, lora_b_, {"fc1.weight", Dtype::kF32, {24, 40}, gaussian(960)}},
                 {"/d", "fc1.weight", "fc1.lora_A.weight", "one of them"});
  expect_refused({lora_a_, lora_b_, {"base_model.model.fc1.lora_A", Dtype::kF32, {2, 40}, a_}},
                 {"/d", "base_model.model.fc1.lora_A", "fc1.lora_A.weight"});
  expect_refused({{"conv.lora_A", Dtype::kF32, {2, 8}, gaussian(16)},
                  {"conv.lora_B", Dtype::kF32, {16, 2}, gaussian(32)}},
                 {"/d", "conv.lora_A", "[2, 72]", "[2, 8, 3, 3]"});
  expect_refused({lora_a_, {"fc1.lora_B.weight", Dtype::kF32, {24, 2, 1, 1}, b_}},
                 {"/d", "fc1.lora_B.weight", "[24, 2, 1, 1]"});
  write_file(base_, {{"bag.weight", Dtype::kF32, {4}, gaussian(4)}});
  expect_refused({{"bag.lora_A", Dtype::kF32, {1, 4}, gaussian(4)},
                  {"bag.lora_B", Dtype::kF32, {4, 1}, gaussian(4)}},
                 {"/d", "bag.lora_A", "2 or 4"});
}

TEST_F(Refusal, OfTypesThatAreNoWeights) {
  expect_refused({{"fc1.weight", Dtype::kI32, {24, 40}, gaussian(960)}},
                 {"/d", "fc1.weight", "I32"});
  expect_refused({lora_a_, {"fc1.lora_B.weight", Dtype::kU32, {24, 2}, b_}},
                 {"/d", "fc1.lora_B.weight", "U32"});
  write_file(base_, {{"steps", Dtype::kI32, {4}, gaussian(4)}});
  expect_refused({{"steps", Dtype::kF32, {4}, gaussian(4)}}, {"model.safetensors", "steps", "I32"});
}

TEST_F(Refusal, OfWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = 1 / 0.0F;
  auto delta = gaussian(960);
  delta[43] = nan;
  expect_refused({{"fc1.weight", Dtype::kF32, {24, 40}, delta}},
                 {"/d", "fc1.weight", "[1, 3]", "nan"});
  auto bias = gaussian(24);
  bias[7] = -infinite;
  expect_refused({{"fc1.bias", Dtype::kF32, {24}, bias}}, {"/d", "fc1.bias", "[7]", "-inf"});
  auto a = a_, b = b_;
  a[41] = infinite;
  expect_refused({{"fc1.lora_A.weight", Dtype::kF32, {2, 40}, a}, lora_b_},
                 {"/d", "fc1.lora_A.weight", "[1, 1]", "inf"});
  b[47] = nan;
  expect_refused({lora_a_, {"fc1.lora_B.weight", Dtype::kF32, {24, 2}, b}},
                 {"/d", "fc1.lora_B.weight", "[23, 1]", "nan"});
  auto conv = gaussian(1152);
  conv[(2 * 8 + 5) * 9 + 4] = nan;
  write_file(base_, {{"conv.weight", Dtype::kF32, {16, 8, 3, 3}, conv}});
  expect_refused({{"conv.weight", Dtype::kF32, {16, 8, 3, 3}, gaussian(1152)}},
                 {"model.safetensors", "conv.weight", "[2, 5, 1, 1]", "nan"});
}

TEST_F(Refusal, OfSumsThatTheTypeDoesNotHold) {
  std::vector<float> large(128, 1.0F);
  large[17] = 1e5F;
  expect_refused({{"half.weight", Dtype::kF32, {8, 16}, large}},
                 {"model.safetensors", "half.weight", "[1, 1]", "F16"});
  const std::vector<float> most(40, 3e38F);
  expect_refused({{"fc1.lora_A", Dtype::kF32, {1, 40}, most},
                  {"fc1.lora_B", Dtype::kF32, {24, 1}, std::vector<float>(24, 3e38F)}},
                 {"model.safetensors", "fc1.weight", "[0, 0]", "F32"});
}

TEST_F(Refusal, OfPackedFiles) {
  const std::string model = base_;
  base_ = folder_ / "packed";
  ASSERT_EQ(run({"pack", model, base_, "--pattern", "2:4", "--by-magnitude"}).code, 0);
  expect_refused({lora_a_, lora_b_}, {"packed", "unpack"});
  expect_one_line(run({"merge", model, base_, folder_ / "o", "--pattern", "2:4"}), 1,
                  {"packed", "unpack"});
}

TEST_F(Refusal, OfPlansThatCannotBe) {
  write_file(
      base_, {{"x.weight", Dtype::kF32, {8}, gaussian(8)}},
      {{"weft.sparsity", R"({"version":1,"tensors":{"x.weight":{"pattern":"2:4","axis":"in"}}})"}});
  expect_refused({{"x.weight", Dtype::kF32, {8}, gaussian(8)}},
                 {"model.safetensors", "x.weight", "weft.sparsity"});
}

TEST_F(Refusal, OfWrongUsage) {
  write_file(folder_ / "d", {lora_a_, lora_b_});
  write_file(folder_ / "full", {{"fc1.bias", Dtype::kF32, {24}, gaussian(24)}});
  const std::string d = folder_ / "d", full = folder_ / "full", o = folder_ / "o";
  const std::set<std::string> before = names_in(folder_.path());
  const std::string delta_bytes = contents(d);
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"merge", base_, d},
           {"merge", base_, d, o},
           {"merge", base_, d, o, "--transposable"},
           {"merge", base_, d, o, "--pattern", "4:2"},
           {"merge", base_, d, o, "--pattern", "2:4", "--mask", "old"},
           {"merge", base_, d, o, "--pattern", "2:4", "--scale", "nan"},
           {"merge", base_, d, o, "--pattern", "2:4", "--scale", "1e300"},
           {"merge", base_, d, o, "--pattern", "2:4", "--scale", "x"},
           {"merge", base_, full, o, "--pattern", "2:4", "--scale", "2"},
           {"merge", base_, d, o, "--pattern", "2:4", "--include", "(["},
           {"merge", base_, d, d, "--pattern", "2:4"}}) {
    SCOPED_TRACE(Json(args).dump());
    expect_one_line(run(args), 2, {"--help"});
  }
  expect_one_line(run({"merge", folder_ / "none", d, o, "--pattern", "2:4"}), 1, {"none"});
  expect_one_line(run({"merge", base_, folder_ / "none", o, "--pattern", "2:4"}), 1, {"none"});
  expect_one_line(run({"merge", base_, d, folder_ / "no/o", "--pattern", "2:4"}), 1, {"no/o"});
  EXPECT_EQ(names_in(folder_.path()), before);
  EXPECT_EQ(contents(d), delta_bytes);
}

}  // namespace
}  // namespace weft::test
