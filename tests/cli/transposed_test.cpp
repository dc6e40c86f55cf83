// Weights stored [ins, outs], through every command.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/cli/outcomes.h"
#include "tests/model_files.h"
#include "tests/support.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

std::vector<float> turned(const std::vector<float>& w, int64_t rows, int64_t cols, int64_t taps) {
  std::vector<float> to(w.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t t = 0; t < taps; ++t) {
        to[static_cast<size_t>((c * rows + r) * taps + t)] =
            w[static_cast<size_t>((r * cols + c) * taps + t)];
      }
    }
  }
  return to;
}

constexpr int64_t kOuts = 20, kIns = 14, kTaps = 6;  // ends of groups, in both directions

// The same weights stored [outs, ins] in one file and [ins, outs] in another.
struct Twins {
  ScratchFolder folder;
  std::string plain = folder / "plain.safetensors", stored = folder / "stored.safetensors";
  const std::vector<std::string> flags = {"--transposed", "^fc", "--transposed", "conv"};

  Twins() {
    const auto fc = gaussian(kOuts * kIns, 1), conv = gaussian(kOuts * kIns * kTaps, 2);
    const NamedTensor other{"last.weight", Dtype::kF32, {kOuts, kIns}, gaussian(kOuts * kIns, 3)};
    write_file(plain, {{"fc.weight", Dtype::kF32, {kOuts, kIns}, fc},
                       {"conv.weight", Dtype::kF32, {kOuts, kIns, 2, 3}, conv},
                       other});
    write_file(stored,
               {{"fc.weight", Dtype::kF32, {kIns, kOuts}, turned(fc, kOuts, kIns, 1)},
                {"conv.weight", Dtype::kF32, {kIns, kOuts, 2, 3}, turned(conv, kOuts, kIns, kTaps)},
                other});
  }

  // Runs one command on both, the flags on the second alone.
  void both(const std::string& command, const std::vector<std::string>& more,
            const std::string& out) const {
    std::vector<std::string> args = {command, plain, folder / ("plain-" + out)};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome first = run(args);
    EXPECT_EQ(first.code, 0) << first.err;
    args[1] = stored;
    args[2] = folder / ("stored-" + out);
    args.insert(args.end(), flags.begin(), flags.end());
    const Outcome second = run(args);
    EXPECT_EQ(second.code, 0) << second.err;
  }

  void expect_same(const std::string& out) const {
    const std::string a = folder / ("plain-" + out), b = folder / ("stored-" + out);
    EXPECT_EQ(turned(floats_of(a, "fc.weight"), kOuts, kIns, 1), floats_of(b, "fc.weight"));
    EXPECT_EQ(turned(floats_of(a, "conv.weight"), kOuts, kIns, kTaps), floats_of(b, "conv.weight"));
    EXPECT_EQ(floats_of(a, "last.weight"), floats_of(b, "last.weight"));
  }
};

TEST(Transposed, MasksAreThoseOfTheWeightStoredTheOtherWay) {
  const Twins twins;
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--pattern", "2:4"},
           {"--pattern", "3:8", "--transposable"},
           {"--pattern", "2:4x2"},
           {"--pattern", "2:4x2", "--reorder"},
           {"--pattern", "2:4", "--transposable", "--solver", "greedy-prune"}}) {
    SCOPED_TRACE(Json(flags).dump());
    twins.both("mask", flags, "masked");
    twins.expect_same("masked");
    // Later commands know without the flag.
    const std::string stored = twins.folder / "stored-masked";
    const Json checked = report_of({"check", stored});
    ASSERT_EQ(checked["tensors"].size(), 3u);
    for (const Json& tensor : checked["tensors"]) {
      EXPECT_EQ(tensor["violations_in"], 0);
      EXPECT_EQ(tensor["transposed"].get<bool>(), tensor["name"] != "last.weight");
    }
    const Json plain = report_of({"check", twins.folder / "plain-masked"});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(checked["tensors"][i]["groups_in"], plain["tensors"][i]["groups_in"]);
      EXPECT_EQ(checked["tensors"][i]["short_groups_in"], plain["tensors"][i]["short_groups_in"]);
    }
    const Promise promise = Checkpoint::open(stored).sparsity().tensors.at("fc.weight");
    EXPECT_TRUE(promise.transposed);
  }
}

TEST(Transposed, MaskFilesLieAsTheirWeightsDo) {
  const Twins twins;
  const std::string out = twins.folder / "o", masks = twins.folder / "masks";
  report_of(
      {"mask", twins.stored, out, "--pattern", "2:4", "--masks", masks, "--transposed", "fc|conv"});
  for (const std::string name : {"fc.weight", "conv.weight"}) {
    const auto kept = floats_of(out, name);
    const std::string mask = tensor_bytes_of(masks, name);
    ASSERT_EQ(mask.size(), kept.size());
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(mask[i] != 0, kept[i] != 0) << i;
  }
  EXPECT_EQ(run({"check", masks}).code, 0);
}

TEST(Transposed, CheckNamesTheWeightThatIsOneTooManyByItsPlaceInTheFile) {
  const ScratchFolder folder;
  const std::string file = folder / "m.safetensors";
  std::vector<float> w(8 * 4, 0.0F);
  for (const int row : {4, 5, 7}) w[static_cast<size_t>(row * 4 + 2)] = 1.0F;  // column 2
  write_file(file, {{"fc.weight", Dtype::kF32, {8, 4}, w}});
  EXPECT_EQ(run({"check", file, "--pattern", "2:4"}).code, 0);
  const Outcome outcome = run({"check", file, "--pattern", "2:4", "--transposed", "fc", "--json"});
  EXPECT_EQ(outcome.code, 1);
  const Json tensor = outcome.json()["tensors"][0];
  EXPECT_EQ(tensor["violations_in"], 1);
  EXPECT_EQ(tensor["first_violation"]["index"], (Json{7, 2}));
  expect_one_line(
      run({"pack", "--any-size", file, folder / "p", "--pattern", "2:4", "--transposed", "fc"}), 1,
      {"weight [7, 2] is one more than 2:4 allows"});
}

// mask -> check -> pack -> check -> unpack -> convert, the flag given once.
TEST(Transposed, IsKeptThroughAllCommands) {
  const Twins twins;
  const ScratchFolder& folder = twins.folder;
  for (const std::string pattern : {"2:4", "2:4x2"}) {
    SCOPED_TRACE(pattern);
    const std::string masked = folder / "masked", packed = folder / "packed",
                      unpacked = folder / "unpacked", converted = folder / "converted";
    report_of({"mask", twins.stored, masked, "--pattern", pattern, "--transposed", "fc|conv"});
    EXPECT_EQ(run({"check", masked}).code, 0);
    const auto packed_as = outcomes(report_of({"pack", masked, packed}));
    EXPECT_EQ(packed_as.at("fc.weight"), kMaskedTransposed);
    EXPECT_EQ(packed_as.at("conv.weight"), kMaskedTransposed);
    EXPECT_EQ(packed_as.at("last.weight"), kMasked);
    const Outcome checked = run({"check", packed, "--json"});
    EXPECT_EQ(checked.code, 0) << checked.out;
    EXPECT_EQ(outcomes(checked.json()), packed_as);
    EXPECT_EQ(run({"unpack", packed, unpacked}).code, 0);
    EXPECT_TRUE(contents(unpacked) == contents(masked));
    // What obeys already stays.
    report_of({"convert", unpacked, converted, "--pattern", pattern});
    EXPECT_TRUE(contents(converted) == contents(masked));
    // The parts are those of the weight stored the other way: products need not know.
    twins.both("pack", {"--pattern", pattern, "--by-magnitude"}, "pruned");
    for (const std::string part :
         {"fc.weight.weft_values", "fc.weight.weft_indices", "conv.weight.weft_indices"}) {
      EXPECT_TRUE(tensor_bytes_of(folder / "plain-pruned", part) ==
                  tensor_bytes_of(folder / "stored-pruned", part))
          << part;
    }
    EXPECT_EQ(run({"check", folder / "stored-pruned"}).code, 0);
  }
}

TEST(Transposed, TheBitmaskFormatHasNoPlaceForIt) {
  const Twins twins;
  expect_one_line(
      run({"pack", twins.stored, twins.folder / "p", "--pattern", "2:4", "--by-magnitude",
           "--format", "sparse-24-bitmask", "--transposed", "fc", "--include", "fc"}),
      1, {"'fc.weight'", "stored [ins, outs], which the format cannot record"});
}

TEST(Transposed, LadderAndInfoSeeTheWeight) {
  const Twins twins;
  const Json plain = report_of({"ladder", twins.plain});
  Json stored = report_of({"ladder", twins.stored, "--transposed", "fc|conv"});
  EXPECT_EQ(plain["ladder"], stored["ladder"]);
  const std::string masked = twins.folder / "masked";
  report_of({"mask", twins.stored, masked, "--pattern", "2:4", "--transposed", "fc|conv"});
  const Json info = report_of({"info", masked});
  for (const Json& tensor : info["tensors"]) {
    if (tensor["name"] == "last.weight") continue;
    EXPECT_TRUE(tensor["transposed"].get<bool>());
    EXPECT_TRUE(contains(tensor["patterns_in"].dump(), "2:4"));
    EXPECT_FALSE(contains(tensor["patterns_out"].dump(), "2:4"));
  }
}

TEST(Transposed, ConvertedWeightsAreThoseOfTheWeightStoredTheOtherWay) {
  const Twins twins;
  const std::string inputs = twins.folder / "inputs.safetensors";
  write_file(inputs,
             {{"fc.input", Dtype::kF32, {64, kIns}, gaussian(64 * kIns, 8)},
              {"last.input", Dtype::kF32, {64, kIns}, gaussian(64 * kIns, 9)},
              {"conv.input", Dtype::kF32, {128, kIns * kTaps}, gaussian(128 * kIns * kTaps, 10)}});
  for (const std::string method : {"magnitude", "absorption", "sparsegpt", "adaprune"}) {
    SCOPED_TRACE(method);
    std::vector<std::string> flags = {"--pattern", "2:4", "--method", method};
    if (method != "magnitude") flags.insert(flags.end(), {"--calibration", inputs});
    twins.both("convert", flags, "converted");
    twins.expect_same("converted");
    EXPECT_EQ(run({"check", twins.folder / "stored-converted"}).code, 0);
  }
  twins.both("convert", {"--pattern", "auto", "--group", "4", "--density", "0.5"}, "by-density");
  twins.expect_same("by-density");
}

TEST(Transposed, FullDeltasAreMergedWithThePatternAlongInputs) {
  const Twins twins;
  const std::string masked = twins.folder / "masked", delta = twins.folder / "delta";
  report_of({"mask", twins.stored, masked, "--pattern", "2:4", "--transposed", "fc|conv"});
  const auto fc = gaussian(kOuts * kIns, 21), conv = gaussian(kOuts * kIns * kTaps, 22);
  write_file(delta, {{"fc.weight", Dtype::kF32, {kIns, kOuts}, fc},
                     {"conv.weight", Dtype::kF32, {kIns, kOuts, 2, 3}, conv}});
  for (const std::string mask : {"base", "new"}) {
    SCOPED_TRACE(mask);
    const std::string out = twins.folder / "merged";
    report_of({"merge", masked, delta, out, "--mask", mask});
    EXPECT_EQ(run({"check", out}).code, 0);
    const auto before = floats_of(masked, "fc.weight"), after = floats_of(out, "fc.weight");
    EXPECT_EQ(std::ranges::count(after, 0.0F), std::ranges::count(before, 0.0F));
    for (size_t i = 0; i < after.size(); ++i) {
      const float sum = static_cast<float>(double{before[i]} + fc[i]);
      EXPECT_TRUE(after[i] == 0 || after[i] == sum) << i;
      EXPECT_TRUE(mask == "new" || (after[i] == 0) == (before[i] == 0)) << i;
    }
  }
  // An element that is too large is named by its place in the file.
  std::vector<float> huge(static_cast<size_t>(kOuts * kIns), 0.0F);
  huge[3 * kOuts + 5] = std::numeric_limits<float>::infinity();
  write_file(delta, {{"fc.weight", Dtype::kF32, {kIns, kOuts}, huge}});
  expect_one_line(run({"merge", masked, delta, twins.folder / "m"}), 1,
                  {"tensor 'fc.weight'", "element [3, 5]"});
}

TEST(Transposed, NaNIsNamedByItsPlaceInTheFile) {
  const ScratchFolder folder;
  std::vector<float> w = gaussian(kOuts * kIns, 1);
  w[3 * kOuts + 5] = std::numeric_limits<float>::quiet_NaN();
  write_file(folder / "m", {{"fc.weight", Dtype::kF32, {kIns, kOuts}, w}});
  for (const std::string command : {"mask", "convert"}) {
    expect_one_line(
        run({command, folder / "m", folder / "o", "--pattern", "2:4", "--transposed", "fc"}), 1,
        {"tensor 'fc.weight'", "[3, 5]"});
  }
}

TEST(Transposed, AnExpressionThatMatchesNothingOrIsNoneIsAnError) {
  const Twins twins;
  const std::string out = twins.folder / "o";
  expect_one_line(run({"mask", twins.plain, out, "--pattern", "2:4", "--transposed", "c_attn"}), 1,
                  {twins.plain, "transposed expression 'c_attn'", "no tensor"});
  const Outcome wrong = run({"mask", twins.plain, out, "--pattern", "2:4", "--transposed", "("});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(contains(wrong.err, "--transposed")) << wrong.err;
  EXPECT_FALSE(fs::exists(out));
}

TEST(Transposed, APlanOrAnEntryOfAnotherTypeIsRefused) {
  const ScratchFolder folder;
  const std::string file = folder / "m.safetensors";
  const auto write = [&](const std::string& value) {
    write_file(
        file, {{"w", Dtype::kF32, {4, 4}, std::vector<float>(16)}},
        {{"weft.sparsity", R"({"version": 1, "tensors": {"w": {"pattern": "2:4", "axis": "in",)"
                           R"( "transposed": )" +
                               value + "}}}"}});
    return run({"check", file});
  };
  EXPECT_EQ(write("true").code, 0);
  EXPECT_EQ(write("false").code, 0);
  expect_one_line(write("1"), 1, {file, "weft.sparsity", "'w'", "'transposed' is 1"});
}

}  // namespace
}  // namespace weft::test
