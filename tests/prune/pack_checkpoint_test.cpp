// pack_checkpoint, unpack_checkpoint, merge_checkpoint and convert_checkpoint as a program that
// links the library calls them: the reports against known values, the files against those of the
// command line.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "tests/prune/file_functions.h"
#include "weft/kernel/kernels.h"
#include "weft/pack/packed_file.h"
#include "weft/prune/check_checkpoint.h"
#include "weft/prune/convert_checkpoint.h"
#include "weft/prune/mask_checkpoint.h"
#include "weft/prune/merge_checkpoint.h"
#include "weft/prune/pack_checkpoint.h"

namespace weft::test {
namespace {

// ─── pack, unpack ───

TEST(PackCheckpoint, WritesWhatTheCommandLineWritesAndComesBack) {
  const ScratchFolder folder;
  MaskOptions mask;
  mask.in = write_model(folder);
  mask.out.path = folder / "sparse.safetensors";
  mask_checkpoint(mask);
  PackOptions options;
  options.in = mask.out.path;
  options.out.path = folder / "library.safetensors";
  options.any_size = true;
  Heard heard;
  const PackReport report = pack_checkpoint(options, heard.listener());
  heard.expect_all(kModelBytes);
  const std::string cli = folder / "cli.safetensors";
  expect_succeeds({"pack", options.in, cli, "--any-size"});
  expect_same_file(options.out.path, cli);

  EXPECT_EQ(report.format, PackedFormat::kWeft);
  EXPECT_EQ(report.all_tensors, 8u);
  EXPECT_EQ(report.dense_bytes, kModelBytes);
  EXPECT_EQ(report.packed_bytes, Checkpoint::open(cli).bytes());
  EXPECT_EQ(report.out, options.out.path);
  ASSERT_EQ(report.tensors.size(), 4u);
  const PackReport::Tensor& fc1 = report.tensors[0];
  EXPECT_EQ(fc1.info.name, "fc1.weight");
  EXPECT_EQ(fc1.pattern, Pattern(2, 4));
  EXPECT_EQ(fc1.values, Dtype::kF32);
  EXPECT_LT(fc1.packed_bytes, fc1.info.bytes());
  EXPECT_EQ(report.negative_zeros_lost(), 0);
  ASSERT_EQ(report.skipped.size(), 4u);
  EXPECT_EQ(std::get<LeftAlone>(report.skipped[0].reason), LeftAlone::kNotPromised);
  EXPECT_EQ(report.skipped[1].info.name, "double.weight");
  EXPECT_EQ(std::get<PackObstacle>(report.skipped[1].reason), PackObstacle::kDtype);
  EXPECT_EQ(report.skipped[1].promised, Pattern(2, 4));
  EXPECT_EQ(reason_text(report.skipped[1]), "dtype F64: accepted are F32, F16 and BF16");

  UnpackOptions back;
  back.in = options.out.path;
  back.out.path = folder / "back.safetensors";
  const PackReport unpacked = unpack_checkpoint(back);
  expect_same_file(back.out.path, options.in);
  EXPECT_EQ(unpacked.tensors.size(), 4u);
  EXPECT_EQ(unpacked.tensors[0].packed_bytes, fc1.packed_bytes);
  EXPECT_EQ(unpacked.tensors[0].pattern, Pattern(2, 4));
  EXPECT_EQ(unpacked.dense_bytes, kModelBytes);
  EXPECT_EQ(unpacked.packed_bytes, report.packed_bytes);
  EXPECT_EQ(unpacked.all_tensors, 8u);
  EXPECT_TRUE(contains(message_of([&] {
                         unpack_checkpoint({options.in, {folder / "x"}});
                       }),
                       "it is not packed"));
}

// A group size that does not divide the inputs: the last group of a row is short, and keeps `keep`
// of its weights or all. The same in masks, checks, packs, products and back (docs/masks.md).
TEST(PackCheckpoint, AShortLastGroupIsTheSameEverywhere) {
  constexpr int64_t kOuts = 33, kIns = 22, kTokens = 4;
  const ScratchFolder folder;
  std::vector<float> weights, x;  // small integers: products are exact
  for (int64_t i = 0; i < kOuts * kIns; ++i)
    weights.push_back(static_cast<float>(i * 37 % 31 - 15));
  for (int64_t i = 0; i < kTokens * kIns; ++i) x.push_back(static_cast<float>(i * 11 % 7 - 3));
  const std::string in = folder / "in";
  write_file(in, {{"fc.weight", Dtype::kF32, {kOuts, kIns}, weights}});
  for (const Pattern pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(3, 5), Pattern(4, 8),
                                Pattern(2, 16), Pattern(3, 32)}) {
    for (const bool transposable : {false, true}) {
      SCOPED_TRACE(pattern.str() + (transposable ? " transposable" : ""));
      const int64_t keep = pattern.keep(), group = pattern.group(), rest = kIns % group;
      const std::string sparse = folder / "sparse", packed = folder / "packed";
      MaskOptions mask;
      mask.in = in;
      mask.out.path = sparse;
      mask.pattern = pattern;
      mask.solver = &default_solver(transposable);
      const MaskReport masked = mask_checkpoint(mask);
      if (!transposable) {
        EXPECT_EQ(masked.tensors[0].figures.kept,
                  kOuts * (kIns / group * keep + std::min(rest, keep)));
      }
      CheckOptions check;
      check.file = sparse;
      const CheckReport checked = check_checkpoint(check);
      EXPECT_TRUE(checked.valid());
      EXPECT_EQ(checked.tensors[0].in->groups, kOuts * ((kIns + group - 1) / group));
      EXPECT_EQ(checked.tensors[0].in->short_groups, kOuts);

      PackOptions pack;
      pack.in = sparse;
      pack.out.path = packed;
      pack.any_size = true;
      pack_checkpoint(pack);
      const Checkpoint checkpoint = Checkpoint::open(packed);
      const PackedCheckpoint logical(checkpoint);
      const PackedMatrix matrix = logical.matrix(logical.tensors()[0]);
      std::vector<float> y(static_cast<size_t>(kTokens * kOuts));
      LinearCall call;
      call.activations = MatrixView<const float>{x.data(), kTokens, kIns};
      call.packed = &matrix;
      call.result = MatrixView<float>{y.data(), kTokens, kOuts};
      multiply(call);
      const std::vector<float> kept = floats_of(sparse, "fc.weight");
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t o = 0; o < kOuts; ++o) {
          float sum = 0.0F;
          for (int64_t i = 0; i < kIns; ++i) {
            sum += x[static_cast<size_t>(t * kIns + i)] * kept[static_cast<size_t>(o * kIns + i)];
          }
          ASSERT_EQ(y[static_cast<size_t>(t * kOuts + o)], sum) << t << " " << o;
        }
      }
      unpack_checkpoint({packed, {folder / "back"}});
      expect_same_file(folder / "back", sparse);
    }
  }
}

TEST(PackCheckpoint, PrunesByMagnitudeAsMaskDoes) {
  const ScratchFolder folder;
  PackOptions options;
  options.in = write_model(folder);
  options.out.path = folder / "library.safetensors";
  options.pattern = Pattern(2, 4);
  options.values = Dtype::kBf16;
  options.any_size = true;
  EXPECT_THROW(pack_checkpoint(options), NotSparseError);
  options.by_magnitude = true;
  const PackReport report = pack_checkpoint(options);
  EXPECT_EQ(report.tensors[0].values, Dtype::kBf16);
  EXPECT_EQ(report.tensors[2].info.name, "half.weight");
  EXPECT_EQ(report.tensors[2].values, Dtype::kF16);
  const std::string cli = folder / "cli.safetensors";
  expect_succeeds({"pack", options.in, cli, "--pattern", "2:4", "--values", "bf16",
                   "--by-magnitude", "--any-size"});
  expect_same_file(options.out.path, cli);

  options.values.reset();
  pack_checkpoint(options);
  unpack_checkpoint({options.out.path, {folder / "back.safetensors"}});
  MaskOptions mask;
  mask.in = options.in;
  mask.out.path = folder / "masked.safetensors";
  mask_checkpoint(mask);
  EXPECT_EQ(floats_of(folder / "back.safetensors", "conv.weight"),
            floats_of(mask.out.path, "conv.weight"));
}

TEST(PackCheckpoint, SaysWhatTheOtherFormatCannotHold) {
  const ScratchFolder folder;
  MaskOptions mask;
  mask.in = write_model(folder);
  mask.out.path = folder / "sparse.safetensors";
  mask.names.include = "fc1.weight|brain|conv";
  mask_checkpoint(mask);
  mask.in = mask.out.path;
  mask.out = {mask.in, true};
  mask.pattern = Pattern(1, 4);
  mask.names.include = "half";
  mask_checkpoint(mask);
  PackOptions options;
  options.in = mask.in;
  options.out.path = folder / "packed.safetensors";
  options.format = PackedFormat::kBitmask24;
  const PackReport report = pack_checkpoint(options);
  ASSERT_EQ(report.tensors.size(), 1u);
  EXPECT_EQ(report.tensors[0].info.name, "fc1.weight");
  std::map<std::string, PackObstacle> obstacles;
  for (const PackReport::Skipped& one : report.skipped) {
    if (const auto* found = std::get_if<PackObstacle>(&one.reason)) {
      obstacles.emplace(one.info.name, *found);
    }
    if (one.info.name == "half.weight") {
      EXPECT_EQ(reason_text(one), "1:4 is not 2:4");
    }
  }
  EXPECT_EQ(obstacles,
            (std::map<std::string, PackObstacle>{{"conv.weight", PackObstacle::kDimensions},
                                                 {"brain.weight", PackObstacle::kColumns},
                                                 {"half.weight", PackObstacle::kNotTwoOfFour}}));
  options.values = Dtype::kBf16;
  EXPECT_TRUE(contains(message_of([&] { pack_checkpoint(options); }), "accepted are F32 and BF16"));
  options = {};
  options.in = write_model(folder);
  options.out.path = folder / "packed.safetensors";
  EXPECT_EQ(option_refused([&] { pack_checkpoint(options); }), "pattern");
}

// ─── merge ───

TEST(MergeCheckpoint, WritesWhatTheCommandLineWritesAndReportsEveryTensor) {
  const ScratchFolder folder;
  MaskOptions mask;
  mask.in = write_model(folder);
  mask.out.path = folder / "sparse.safetensors";
  mask.names.exclude = "double";
  mask_checkpoint(mask);
  MergeOptions options;
  options.base = mask.out.path;
  options.delta = folder / "delta.safetensors";
  options.out.path = folder / "library.safetensors";
  options.names.exclude = "half";
  write_file(options.delta, {{"fc1.lora_A.weight", Dtype::kF32, {2, 40}, gaussian(80, 20)},
                             {"fc1.lora_B.weight", Dtype::kF32, {24, 2}, gaussian(48, 21)},
                             {"fc1.bias", Dtype::kF32, {24}, gaussian(24, 22)},
                             {"half.weight", Dtype::kF32, {8, 16}, gaussian(128, 23)}});
  Heard heard;
  const MergeReport report = merge_checkpoint(options, heard.listener());
  heard.expect_all(kModelBytes);
  const std::string cli = folder / "cli.safetensors";
  expect_succeeds({"merge", options.base, options.delta, cli, "--exclude", "half"});
  expect_same_file(options.out.path, cli);

  ASSERT_EQ(report.tensors.size(), 1u);
  EXPECT_EQ(report.tensors[0].info.name, "fc1.weight");
  EXPECT_EQ(report.tensors[0].promise.pattern, Pattern(2, 4));
  EXPECT_EQ(report.tensors[0].lora->rank, 2);
  EXPECT_EQ(report.tensors[0].lora->scale, 1.0);
  EXPECT_GT(report.figures().delta_lost(), 0.0);
  EXPECT_TRUE(report.scale_assumed);
  EXPECT_EQ(report.adapter_config, std::nullopt);
  ASSERT_EQ(report.added.size(), 2u);
  EXPECT_EQ(report.added[0].info.name, "fc1.bias");
  EXPECT_EQ(report.added[0].reason, LeftAlone::kNotNamedWeight);
  EXPECT_EQ(report.added[1].info.name, "half.weight");
  EXPECT_EQ(report.added[1].reason, LeftAlone::kExcluded);
  EXPECT_EQ(report.added[1].no_longer_promised, Pattern(2, 4));
  EXPECT_EQ(reason_text(report.added[1]), "excluded: no longer promised to be 2:4");
  ASSERT_EQ(report.unchanged.size(), 5u);
  EXPECT_EQ(reason_text(report.unchanged[0]), "no delta: keeps its 2:4");  // conv.weight
  EXPECT_EQ(report.unchanged[2].info.name, "double.weight");
  EXPECT_TRUE(report.unchanged[2].selected);
  EXPECT_FALSE(report.unchanged[3].selected);  // embed_tokens.weight
}

TEST(MergeCheckpoint, ADryRunWritesNothingAndOptionsThatDoNotFitAreNamed) {
  const ScratchFolder folder;
  MergeOptions options;
  options.base = write_model(folder);
  options.delta = folder / "delta.safetensors";
  options.out.path = folder / "out.safetensors";
  write_file(options.delta, {{"fc1.weight", Dtype::kF32, {24, 40}, gaussian(960, 20)}});
  EXPECT_EQ(option_refused([&] { merge_checkpoint(options); }), "pattern");
  options.pattern = Pattern(2, 4);
  options.dry_run = true;
  const MergeReport report = merge_checkpoint(options);
  EXPECT_EQ(report.tensors[0].lora, std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(options.out.path));
  options.scale = 2;
  EXPECT_EQ(option_refused([&] { merge_checkpoint(options); }), "scale");
  options.scale.reset();
  options.out.path = options.delta;
  try {
    merge_checkpoint(options);
    FAIL() << "no OverwriteError";
  } catch (const OverwriteError& error) {
    EXPECT_FALSE(error.replaceable());
    EXPECT_TRUE(contains(error.what(), "is also a file of DELTA"));
  }
}

// ─── convert ───

TEST(ConvertCheckpoint, WritesWhatTheCommandLineWritesWithAndWithoutInputs) {
  const ScratchFolder folder;
  ConvertOptions options;
  options.in = write_model(folder);
  options.out.path = folder / "library.safetensors";
  options.conversion.pattern = Pattern(2, 4);
  options.names.include = "fc1.weight|conv";
  const std::string inputs = folder / "inputs.safetensors", cli = folder / "cli.safetensors";
  write_file(inputs, {{"fc1.input", Dtype::kF32, {200, 40}, gaussian(8000, 30)},
                      {"conv.input", Dtype::kF32, {200, 72}, gaussian(14400, 31)}});
  for (const char* method : {"magnitude", "wanda", "adaprune"}) {
    SCOPED_TRACE(method);
    const bool calibrated = std::string(method) != "magnitude";
    options.conversion.method = method_of(method);
    std::vector<std::string> flags = {"convert",         options.in, cli,
                                      "--pattern",       "2:4",      "--include",
                                      "fc1.weight|conv", "--method", method};
    if (calibrated) {
      options.calibration = inputs;
      flags.insert(flags.end(), {"--calibration", inputs});
    }
    Heard heard;
    const ConvertReport report = convert_checkpoint(options, heard.listener());
    if (!calibrated) heard.expect_all(kModelBytes);
    expect_succeeds(flags);
    expect_same_file(options.out.path, cli);
    ASSERT_EQ(report.layers.size(), 2u);
    EXPECT_EQ(report.layers[0].name, "fc1.weight");
    EXPECT_EQ(report.layers[0].pattern, Pattern(2, 4));
    EXPECT_EQ(report.layers[0].error_after.has_value(), calibrated);
    EXPECT_EQ(report.layers[0].groups.groups, 240);
    EXPECT_EQ(report.layers[0].groups.violations, 240);
    EXPECT_EQ(report.norms_estimated, 0u);
    CheckOptions check;
    check.file = cli;
    EXPECT_TRUE(check_checkpoint(check).valid());
  }
}

// A network that says what its layers are and remembers what it was told.
class RememberingModel : public ModelToConvert {
 public:
  RememberingModel(const std::filesystem::path& inputs, std::map<std::string, size_t>& set)
      : inputs_(inputs), set_(set) {}
  const LayerInputs& inputs() const override { return inputs_; }
  std::map<std::string, NetworkObjection> not_converted(bool ends) const override {
    std::map<std::string, NetworkObjection> found;
    if (!ends) found["conv.weight"] = {NotConverted::kFirstLayer, ""};
    return found;
  }
  void set(const std::string& tensor, const std::vector<double>& values) override {
    set_[tensor] = values.size();
  }
  std::set<std::string> norm_tensors() const override { return {"bn.running_mean"}; }
  std::map<std::string, std::vector<double>> estimate_norms() override {
    return {{"bn.running_mean", {7, 8}}};
  }

 private:
  CalibrationFile inputs_;
  std::map<std::string, size_t>& set_;
};

TEST(ConvertCheckpoint, TellsTheNetworkItsNewWeightsAndWritesItsNewNorms) {
  const ScratchFolder folder;
  ConvertOptions options;
  options.in = folder / "model.safetensors";
  options.out.path = folder / "out.safetensors";
  write_file(options.in, {{"fc1.weight", Dtype::kF32, {24, 40}, gaussian(960, 1)},
                          {"conv.weight", Dtype::kF32, {16, 8, 3, 3}, gaussian(1152, 3)},
                          {"bn.running_mean", Dtype::kF32, {2}, {1, 2}}});
  const std::string inputs = folder / "inputs.safetensors";
  write_file(inputs, {{"fc1.input", Dtype::kF32, {200, 40}, gaussian(8000, 30)}});
  options.conversion.method = method_of("adaprune");
  options.conversion.pattern = Pattern(2, 4);
  std::map<std::string, size_t> set;
  options.open_model = [&] { return std::make_unique<RememberingModel>(inputs, set); };
  const ConvertReport report = convert_checkpoint(options);
  ASSERT_EQ(report.layers.size(), 1u);
  EXPECT_TRUE(report.layers[0].changed.empty());
  EXPECT_EQ(report.norms_estimated, 1u);
  EXPECT_EQ(set, (std::map<std::string, size_t>{{"fc1.weight", 960}}));
  EXPECT_EQ(floats_of(options.out.path, "bn.running_mean"), (std::vector<float>{7, 8}));
  ASSERT_EQ(report.left_out.size(), 1u);
  EXPECT_EQ(report.left_out[0].info.name, "conv.weight");
  EXPECT_EQ(report.left_out[0].reason, NotConverted::kFirstLayer);
  EXPECT_EQ(reason_text(report.left_out[0]), "the first layer");
  options.keep_norms = true;
  EXPECT_EQ(convert_checkpoint(options).norms_estimated, 0u);
  EXPECT_EQ(floats_of(options.out.path, "bn.running_mean"), (std::vector<float>{1, 2}));
  options.calibration = inputs;
  EXPECT_TRUE(contains(message_of([&] { convert_checkpoint(options); }), "one of them"));
}

}  // namespace
}  // namespace weft::test
