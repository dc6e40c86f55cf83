// weft check as its users meet it: what it counts, and the first weight too many.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"

namespace weft::test {
namespace {

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
        Wrong{Dtype::kI64, {0, 1, 2, 3, 7, 6, 5, 5}, "fc.row_order", "not a permutation of"},
        Wrong{Dtype::kI64, {0, 1, 2, 3, 7, 6, 5, -1}, "fc.row_order", "not a permutation of"},
        Wrong{Dtype::kI64, right, "fc.order", "which is missing"}}) {
    const Outcome outcome = checked(wrong.dtype, wrong.order, wrong.name);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_TRUE(contains(outcome.err, wrong.words)) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, file) && contains(outcome.err, "fc.row_order"));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace weft::test
