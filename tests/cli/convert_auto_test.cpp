// weft convert --pattern auto: patterns by the zeros of a layer, or by a budget for all layers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cli/calibrated_model.h"
#include "weft/prune/auto_pattern.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// Zeros at random.
Values draw_sparse(int64_t count, double zeros, uint64_t stream) {
  Values values = draw_values(count, stream);
  const Rng rng(test_seed(), stream + 1000);
  for (size_t i = 0; i < values.size(); ++i) {
    if (rng.uniform(i) < zeros) values[i] = 0.0;
  }
  return values;
}

std::string write_sparse_layers(const ScratchFolder& folder) {
  return write_raw(folder / "model.safetensors",
                   {raw("a.weight", Dtype::kF32, {128, 256}, draw_sparse(128 * 256, 0.65, 50)),
                    raw("b.weight", Dtype::kBf16, {64, 64, 3, 3}, draw_sparse(36864, 0.9, 51)),
                    raw("dense.weight", Dtype::kF32, {64, 64}, draw_values(4096, 52))});
}

// Groups of 8 with more than `keep` non-zeros, counted here.
double share_too_full(const Values& w, int64_t taps, int64_t ins, int keep) {
  const int64_t cols = ins * taps, outs = static_cast<int64_t>(w.size()) / cols;
  int64_t groups = 0, full = 0;
  for (int64_t r = 0; r < outs; ++r) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t first = 0; first < ins; first += 8, ++groups) {
        int nonzeros = 0;
        for (int64_t i = first; i < first + 8; ++i) {
          nonzeros += w[static_cast<size_t>(r * cols + i * taps + tap)] != 0.0;
        }
        full += nonzeros > keep;
      }
    }
  }
  return static_cast<double>(full) / static_cast<double>(groups);
}

TEST(ConvertAuto, KeepFollowsTheZerosAndFewGroupsAreTooFull) {
  const ScratchFolder folder;
  const std::string in = write_sparse_layers(folder), out = folder / "o";
  const Outcome outcome = convert(in, out, "auto", {"--group", "8"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json report = outcome.json();
  EXPECT_EQ(report["pattern"], "auto");
  ASSERT_EQ(report["layers"].size(), 2u);
  EXPECT_TRUE(contains(reason_skipped(report, "dense.weight"), "stays dense: 0.0% zeros"));
  EXPECT_EQ(tensor_bytes_of(out, "dense.weight"), tensor_bytes_of(in, "dense.weight"));
  EXPECT_EQ(run({"check", out}).code, 0);
  for (const Json& row : report["layers"]) {
    const auto name = row["name"].get<std::string>();
    SCOPED_TRACE(name);
    const Values before = values_of(in, name), after = values_of(out, name);
    const double zeros =
        static_cast<double>(std::ranges::count(before, 0.0)) / static_cast<double>(before.size());
    EXPECT_NEAR(row["zeros"].get<double>(), zeros, 1e-12);
    const int keep = keep_for_zeros(8, zeros, 0.95);
    EXPECT_EQ(keep, name == "a.weight" ? 5 : 2);
    EXPECT_EQ(row["pattern"], fmt::format("{}:8", keep));
    const double expected = 1 - chance_to_fit(8, keep, zeros);
    EXPECT_NEAR(row["expected_violations"].get<double>(), expected, 1e-12);
    const int64_t taps = name == "a.weight" ? 1 : 9, ins = name == "a.weight" ? 256 : 64;
    const double counted = share_too_full(before, taps, ins, keep);
    EXPECT_NEAR(row["violations"].get<double>(), counted, 1e-12);
    const double groups = static_cast<double>(before.size()) / 8;
    EXPECT_NEAR(counted, expected, 4 * std::sqrt(expected * (1 - expected) / groups));
    EXPECT_GT(counted, 0.0);
    EXPECT_TRUE(contains(row["why"].get<std::string>(), "zeros"));
    EXPECT_EQ(share_too_full(after, taps, ins, keep), 0.0);
  }
  // A user who wants more certainty gets more weights.
  const Json sure = convert(in, out, "auto", {"--group", "8", "--confidence", "0.999"}).json();
  EXPECT_EQ(layer_row(sure, "a.weight")["pattern"], "7:8");
  write_raw(folder / "d", {raw("dense.weight", Dtype::kF32, {8, 8}, draw_values(64, 52))});
  expect_one_line(run({"convert", folder / "d", folder / "x", "--pattern", "auto"}), 1,
                  {folder / "d", "this file is dense", "no layer of 1 has more than 0.0% zeros",
                   "density", "2:4"});
  const Values some = {1, 0, 2, 0, 3, 4, 5, 6};
  write_raw(folder / "s", {raw("some.weight", Dtype::kF32, {1, 8}, some)});
  expect_one_line(run({"convert", folder / "s", folder / "x", "--pattern", "auto"}), 1,
                  {folder / "s", "more than 25.0%, too few", "groups of 8 at confidence 0.95"});
}

TEST(ConvertAuto, AFixedPatternReportsWhatItBreaksAndWhatWasToBeExpected) {
  const ScratchFolder folder;
  const std::string in = write_sparse_layers(folder);
  const Json report = convert(in, folder / "o", "4:8", {"--include", "^a"}).json();
  const Json& row = layer_row(report, "a.weight");
  const auto found = row["violations"].get<double>();
  const auto expected = row["expected_violations"].get<double>();
  EXPECT_NEAR(expected, 0.106, 0.01);
  EXPECT_NEAR(found, expected, 4 * std::sqrt(expected * (1 - expected) / 4096));
  EXPECT_GT(row["retained_l1"].get<double>(), 0.98);
  EXPECT_EQ(row["why"], nullptr);
}

TEST(ConvertAuto, ADensityIsABudgetForAllLayers) {
  const ScratchFolder folder;
  std::vector<RawTensor> tensors = {
      raw("even.weight", Dtype::kF32, {32, 64}, draw_values(2048, 60)),
      raw("conv.weight", Dtype::kF32, {16, 16, 3, 3}, draw_sparse(2304, 0.8, 61)),
      raw("ragged.weight", Dtype::kF32, {64, 12}, draw_values(768, 62)),
      raw("stem.weight", Dtype::kF32, {16, 3, 3, 3}, draw_values(432, 63))};
  for (const bool ragged : {false, true}) {  // groups that the edge cuts
    if (!ragged) {
      write_raw(folder / "m", {tensors[0], tensors[1]});
    } else {
      write_raw(folder / "m", tensors);
    }
    for (const std::string density : {"0.2", "0.4", "0.5", "0.75"}) {
      SCOPED_TRACE(fmt::format("density {} {}", density, ragged ? "ragged" : ""));
      const Outcome outcome = convert(folder / "m", folder / "o", "auto", {"--density", density});
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_EQ(run({"check", folder / "o"}).code, 0);
      const Json report = outcome.json();
      int64_t kept = 0, all = 0;
      for (const RawTensor& one : tensors) {
        if (!fs::exists(folder / "o") || (!ragged && one.shape[1] % 8 != 0)) continue;
        const int64_t ins = one.shape[1], count = static_cast<int64_t>(one.bytes.size()) / 4;
        all += count;
        if (!reason_skipped(report, one.name).empty()) {
          EXPECT_TRUE(contains(reason_skipped(report, one.name), "stays dense"));
          kept += count;
          continue;
        }
        // What the pattern lets stay, whatever is zero already.
        const Pattern pattern =
            Pattern::parse(layer_row(report, one.name)["pattern"].get<std::string>());
        kept +=
            count / ins * (ins / 8 * pattern.keep() + std::min<int64_t>(ins % 8, pattern.keep()));
      }
      EXPECT_LE(static_cast<double>(kept), std::stod(density) * static_cast<double>(all));
      // Not stingy either: one step of the largest layer at most is left over.
      EXPECT_GE(static_cast<double>(kept), (std::stod(density) - 0.2) * static_cast<double>(all));
    }
  }
  // Zeros cost nothing to lose: the sparse layer gives more.
  write_raw(folder / "m", {tensors[0], tensors[1]});
  const Json report = convert(folder / "m", folder / "o", "auto", {"--density", "0.5"}).json();
  const auto keep = [&](const std::string& name) {
    return Pattern::parse(layer_row(report, name)["pattern"].get<std::string>()).keep();
  };
  EXPECT_LT(keep("conv.weight"), keep("even.weight"));
  expect_one_line(
      run({"convert", folder / "m", folder / "x", "--pattern", "auto", "--density", "1"}), 1,
      {"no layer", "stays dense"});
}

TEST(ConvertAuto, ADensityWithInputsWeighsOutputs) {
  const ScratchFolder folder;
  const CalibratedModel model;
  const std::string in = model.write(folder), inputs = model.write_inputs(folder);
  for (const std::string& method : method_names()) {
    SCOPED_TRACE(method);
    const Outcome outcome =
        convert(in, folder / "o", "auto",
                {"--density", "0.5", "--group", "4", "--method", method, "--calibration", inputs});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(run({"check", folder / "o"}).code, 0);
    const Json report = outcome.json();
    for (const Json& row : report["layers"]) {
      EXPECT_TRUE(contains(row["why"].get<std::string>(), "before recovery"));
    }
  }
}

}  // namespace
}  // namespace weft::test
