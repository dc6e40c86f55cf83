// What weft convert refuses, in one line and with nothing left behind.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "tests/cli/calibrated_model.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

class Refusals : public ::testing::Test {
 protected:
  static constexpr int64_t kOuts = 4, kIns = 8;

  Refusals() {
    write_raw(in_, {raw("a.weight", Dtype::kF32, {kOuts, kIns}, draw_values(32, 1)),
                    raw("a.bias", Dtype::kF32, {kOuts}, draw_values(4, 2)),
                    raw("c.weight", Dtype::kF32, {kOuts, 8, 2, 2}, draw_values(128, 3))});
  }

  // Of layer `a`, with what is given for it.
  void expect_refused(const std::vector<RawTensor>& tensors, std::vector<std::string> parts,
                      const std::string& method = "adaprune") {
    write_raw(calibration_, tensors);
    parts.push_back(calibration_);
    const std::set<std::string> before = names_in(folder_.path());
    expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4", "--method", method,
                         "--exclude", "^c", "--calibration", calibration_}),
                    1, parts);
    EXPECT_EQ(names_in(folder_.path()), before);
  }

  static RawTensor input(const Values& x, Dtype dtype = Dtype::kF32, int64_t cols = kIns) {
    return raw("a.input", dtype, {static_cast<int64_t>(x.size()) / cols, cols}, x);
  }
  // A gram of samples, to be spoilt.
  static Values gram() {
    const Values x = draw_samples(40, kIns, 30);
    Values g(kIns * kIns);
    for (size_t s = 0; s < 40; ++s) {
      for (size_t i = 0; i < g.size(); ++i) {
        g[i] += x[s * kIns + i / kIns] * x[s * kIns + i % kIns] / 40;
      }
    }
    return g;
  }
  static RawTensor gram_tensor(const Values& g) {
    return raw("a.gram", Dtype::kF64, {kIns, kIns}, g);
  }

  const ScratchFolder folder_;
  const std::string in_ = folder_ / "in.safetensors", calibration_ = folder_ / "cal.safetensors";
};

TEST_F(Refusals, LayersThatAreNotThereOrOfAnotherWidth) {
  expect_refused({raw("b.input", Dtype::kF32, {4, 8}, Values(32))},
                 {"a.input", "a.gram", "exclude"});
  expect_refused({input(draw_values(60, 1), Dtype::kF32, 6)}, {"a.input", "6 wide", "8 columns"});
  expect_refused({raw("a.input", Dtype::kF32, {10, 2, 4}, draw_values(80, 1))},
                 {"a.input", "two dimensions"});
  expect_refused({RawTensor{"a.input", Dtype::kI32, {10, 8}, std::string(320, '\0')}},
                 {"a.input", "I32"});
  expect_refused({input(draw_values(80, 1)), gram_tensor(gram())}, {"a.input", "a.gram", "both"});
}

TEST_F(Refusals, AConvolutionIsToldWhatIsMissing) {
  write_raw(calibration_, {raw("c.input", Dtype::kF32, {40, 8}, draw_values(320, 1))});
  expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4", "--method", "wanda",
                       "--exclude", "^a", "--calibration", calibration_}),
                  1, {calibration_, "c.input", "8 wide", "32 columns", "unfold"});
}

TEST_F(Refusals, SamplesThatAreNotNumbers) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kF64}) {
    for (const double value :
         {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
      Values x = draw_values(80, 1);
      x[7 * kIns + 3] = value;
      expect_refused({input(x, dtype)},
                     {"a.input", "sample 7", "input 3", std::isnan(value) ? "nan" : "-inf"});
    }
  }
}

TEST_F(Refusals, TooFewSamples) {
  for (const std::string method : {"adaprune", "sparsegpt"}) {
    expect_refused({input(draw_values(24, 1))}, {"a.input", "3 samples", "4 are needed"}, method);
    expect_refused({gram_tensor(gram()), raw_integer("a.samples", Dtype::kI64, int64_t{3})},
                   {"a.gram", "3 samples", "4 are needed"}, method);
  }
  expect_refused({raw("a.input", Dtype::kF32, {0, kIns}, {})}, {"a.input", "0 samples"}, "wanda");
  expect_refused({gram_tensor(gram()), raw_integer("a.samples", Dtype::kI64, int64_t{0})},
                 {"a.samples", "0 samples"});
  expect_refused({gram_tensor(gram()), raw("a.samples", Dtype::kF32, {}, {40})},
                 {"a.samples", "integer"});
}

TEST_F(Refusals, GramsThatAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused({raw("a.gram", Dtype::kF64, {4, kIns}, draw_values(32, 1))}, {"a.gram", "square"});
  Values g = gram();
  g[2 * kIns + 5] += 1.0;
  expect_refused({gram_tensor(g)}, {"a.gram", "(5, 2)"});
  g = gram();
  g[3 * kIns + 3] = -1.0;
  expect_refused({gram_tensor(g)}, {"a.gram", "-1"});
  g = Values(64, 0.0);
  g[3 * kIns + 3] = -1.0;
  expect_refused({gram_tensor(g)}, {"a.gram", "(3, 3)", "negative"});
  for (const size_t at : {2 * kIns + 5, 5 * kIns + 2, 4 * kIns + 4}) {
    for (const double value : {nan, std::numeric_limits<double>::infinity()}) {
      g = gram();
      g[at] = value;
      expect_refused({gram_tensor(g)}, {"a.gram", std::isnan(value) ? "nan" : "inf"});
    }
  }
  g = gram();
  g[2 * kIns + 5] = g[5 * kIns + 2] = 1.1 * std::sqrt(g[2 * kIns + 2] * g[5 * kIns + 5]);
  expect_refused({gram_tensor(g)}, {"a.gram", "(5, 2)"});
}

// No two entries contradict each other, but all of them together do.
TEST_F(Refusals, GramsThatNoSamplesHave) {
  Values g(64, -0.5);
  for (size_t i = 0; i < 8; ++i) g[9 * i] = 1.0;
  for (const std::string method : {"magnitude", "wanda", "absorption", "sparsegpt", "adaprune"}) {
    SCOPED_TRACE(method);
    expect_refused({gram_tensor(g)}, {"a.gram"}, method);
  }
  Values unit(64, 0.0);
  for (size_t i = 0; i < 8; ++i) unit[9 * i] = 1.0;
  expect_refused({gram_tensor(unit), raw("a.mean", Dtype::kF32, {kIns}, Values(8, 0.9))},
                 {"a.mean"});
}

// A solution of a form that rounding has made indefinite has no bound, and an error below zero.
TEST_F(Refusals, GramsWithTooFewDigits) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    expect_refused({raw("a.gram", dtype, {kIns, kIns}, gram())}, {"a.gram", "too imprecise"});
  }
  // Inputs of 1000 ± 1: float has seven digits, and their squares differ in the sixth.
  Values far(64, 1e6);
  for (size_t i = 0; i < 8; ++i) far[9 * i] += 1.0;
  expect_refused({raw("a.gram", Dtype::kF32, {kIns, kIns}, far),
                  raw("a.mean", Dtype::kF32, {kIns}, Values(8, 1e3))},
                 {"a.mean", "F64"});
}

TEST_F(Refusals, AnOutputThatIsTheCalibration) {
  const std::string inputs = folder_ / "cal.safetensors";
  write_raw(inputs, {gram_tensor(gram())});
  const std::string before = contents(inputs);
  expect_one_line(run({"convert", in_, inputs, "--pattern", "2:4", "--method", "wanda", "--include",
                       "a.weight", "--calibration", inputs}),
                  2, {"OUT", "is also a file of the calibration"});
  EXPECT_EQ(contents(inputs), before);
}

TEST_F(Refusals, MeansThatContradictTheGram) {
  Values mean(kIns, 0.0);
  mean[6] = 1e3;
  const auto of = [](const Values& values) {
    return raw("a.mean", Dtype::kF32, {static_cast<int64_t>(values.size())}, values);
  };
  expect_refused({gram_tensor(gram()), of(mean)}, {"a.mean", "entry 6", "1000", "not the sum"});
  mean[6] = std::numeric_limits<double>::quiet_NaN();
  expect_refused({gram_tensor(gram()), of(mean)}, {"a.mean", "[6]", "nan"});
  expect_refused({gram_tensor(gram()), of(Values(5, 0.0))}, {"a.mean", "8 inputs"});
}

TEST_F(Refusals, WeightsThatAreNotNumbersOrNotPositiveDefinite) {
  Values w = draw_values(128, 3);
  w[2 * 32 + 5 * 4 + 3] = std::numeric_limits<double>::infinity();
  write_raw(in_, {raw("c.weight", Dtype::kF32, {kOuts, 8, 2, 2}, w)});
  write_raw(calibration_, {raw("c.input", Dtype::kF32, {40, 32}, draw_values(1280, 1))});
  const std::set<std::string> before = names_in(folder_.path());
  for (const std::string& method : method_names()) {
    for (const std::string pattern : {"2:4", "auto"}) {
      std::vector<std::string> args = {"convert",  in_,    folder_ / "out", "--pattern", pattern,
                                       "--method", method, "--calibration", calibration_};
      if (pattern == "auto") args.insert(args.end(), {"--density", "0.5"});
      expect_one_line(run(args), 1, {in_, "c.weight", "[2, 5, 1, 1]", "inf"});
    }
  }
  expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4"}), 1,
                  {in_, "c.weight", "[2, 5, 1, 1]", "inf"});
  // Fewer samples than columns, and no damping.
  write_raw(in_, {raw("c.weight", Dtype::kF32, {kOuts, 8, 2, 2}, draw_values(128, 3))});
  write_raw(calibration_, {raw("c.input", Dtype::kF32, {20, 32}, Values(640, 1.0))});
  expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4", "--method", "sparsegpt",
                       "--damping", "0", "--calibration", calibration_}),
                  1, {in_, "c.weight", "positive definite", "damping"});
  EXPECT_EQ(names_in(folder_.path()), before);
}

TEST_F(Refusals, WhatIsNotACheckpointToConvert) {
  ASSERT_EQ(
      run({"pack", in_, folder_ / "packed", "--pattern", "2:4", "--by-magnitude", "--any-size"})
          .code,
      0);
  expect_one_line(run({"convert", folder_ / "packed", folder_ / "out", "--pattern", "2:4"}), 1,
                  {folder_ / "packed", "packed", "weft unpack"});
  write_raw(folder_ / "ints", {RawTensor{"a.weight", Dtype::kI32, {2, 4}, std::string(32, 1)}});
  expect_one_line(run({"convert", folder_ / "ints", folder_ / "out", "--pattern", "2:4"}), 1,
                  {folder_ / "ints", "no layer", "a.weight", "I32"});
  expect_one_line(run({"convert", in_, folder_ / "out", "--pattern", "2:4", "--method", "wanda",
                       "--calibration", folder_ / "none"}),
                  1, {folder_ / "none"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(Refusals, WrongUsage) {
  const auto refused = [&](std::vector<std::string> flags, const std::vector<std::string>& parts) {
    std::vector<std::string> args = {"convert", in_, folder_ / "out"};
    args.insert(args.end(), flags.begin(), flags.end());
    expect_one_line(run(args), 2, parts);
  };
  for (const std::string method : {"wanda", "sparsegpt", "adaprune"}) {
    refused({"--pattern", "2:4", "--method", method}, {method, "--calibration"});
  }
  refused({"--pattern", "2:4", "--method", "absorption", "--support", "wanda"}, {"--calibration"});
  refused({}, {"--pattern"});
  refused({"--pattern", "5:4"}, {"--pattern"});
  refused({"--pattern", "2:4", "--density", "0.5"}, {"--density", "auto"});
  refused({"--pattern", "2:4", "--group", "16"}, {"--group", "auto"});
  refused({"--pattern", "auto", "--density", "0.5", "--confidence", "0.9"}, {"--confidence"});
  refused({"--pattern", "2:4", "--samples", "100"}, {"--samples", "--model-dir"});
  refused({"--pattern", "2:4", "--tolerance", "0.1"}, {"--tolerance", "adaprune"});
  refused({"--pattern", "2:4", "--damping", "0.1"}, {"--damping", "sparsegpt"});
  refused({"--pattern", "2:4", "--method", "obd"}, {"--method", "obd", "adaprune"});
  refused({"--pattern", "2:4", "--support", "wanda"}, {"--support", "magnitude"});
  refused({"--pattern", "2:4", "--method", "sparsegpt", "--support", "magnitude"},
          {"--support", "sparsegpt"});
  refused({"--pattern", "2:4", "--method", "absorption", "--support", "sparsegpt"},
          {"--support", "magnitude and wanda"});
  refused({"--pattern", "2:4", "--method", "adaprune", "--support", "random"},
          {"--support", "random"});
  refused({"--pattern", "2:4", "--sparse-ends"}, {"--model-dir"});
  if (has_torch()) {
    refused({"--pattern", "2:4", "--calibration", "x", "--model-dir", "y"}, {"--model-dir"});
  }
  refused({"--pattern", "auto", "--group", "1"}, {"--group"});
  refused({"--pattern", "auto", "--density", "1.5"}, {"--density"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

}  // namespace
}  // namespace weft::test
