// weft info as its users meet it.
#include <gtest/gtest.h>

#include <limits>

#include "tests/model_files.h"
#include "tests/support.h"

namespace weft::test {
namespace {

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

// Of every type that may hold them, also in vectors and in packed tensors.
TEST(Info, CountsNaNAndInfinity) {
  const ScratchFolder folder;
  const std::string file = folder / "f.safetensors", packed = folder / "p.safetensors";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> bad = {nan, 0, 0, infinity, -infinity, 0, 0, nan, nan};
  write_file(file, {{"fine.weight", Dtype::kF32, {8, 8}, gaussian(64)},
                    {"bad.weight", Dtype::kF32, {3, 3}, bad},
                    {"brain.weight", Dtype::kBf16, {3, 3}, bad},
                    {"double.weight", Dtype::kF64, {3, 3}, bad},
                    {"bad.bias", Dtype::kF32, {9}, bad}});
  const Json report = run({"info", file, "--json"}).json();
  for (const Json& tensor : report["tensors"]) {
    const bool fine = tensor["name"] == "fine.weight";
    EXPECT_EQ(tensor["nan"], fine ? 0 : 3) << tensor;
    EXPECT_EQ(tensor["infinite"], fine ? 0 : 2) << tensor;
  }
  const std::string text = run({"info", file}).out;
  EXPECT_TRUE(contains(text, "5 tensors, ")) << text;
  EXPECT_TRUE(contains(text, ", 4 with NaN or infinity")) << text;
  EXPECT_TRUE(contains(text, "\nbad.bias ")) << text;
  ASSERT_EQ(
      run({"pack", file, packed, "--any-size", "--pattern", "3:4", "--include", "brain"}).code, 0);
  EXPECT_EQ(run({"info", packed, "--json"}).json()["tensors"][3]["nan"], 3)
      << run({"info", packed}).out;
}

TEST(Info, SaysNothingOfNaNWhereThereIsNone) {
  const ScratchFolder folder;
  const std::string text = run({"info", write_model(folder)}).out;
  EXPECT_FALSE(contains(text, "NaN") || contains(text, "infinit")) << text;
}

}  // namespace
}  // namespace weft::test
