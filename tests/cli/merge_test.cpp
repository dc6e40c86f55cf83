// weft merge as its users meet it: what is added, which mask stays, what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"
#include "weft/mask/solver.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// Small integers, whose sums and products are exact; no zeros.
std::vector<float> integers(int64_t count, uint64_t stream) {
  std::vector<float> values = gaussian(count, stream);
  for (float& value : values) value = std::copysign(1 + std::floor(std::abs(3 * value)), value);
  return values;
}

std::vector<double> in_double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// scale * B A, the obvious way. a: [rank, cols], b: [outs, rank]
std::vector<double> lora_product(const std::vector<float>& a, const std::vector<float>& b,
                                 size_t rank, double scale) {
  const size_t cols = a.size() / rank, outs = b.size() / rank;
  std::vector<double> d(outs * cols);
  for (size_t o = 0; o < outs; ++o) {
    for (size_t c = 0; c < cols; ++c) {
      for (size_t k = 0; k < rank; ++k)
        d[o * cols + c] += double{b[o * rank + k]} * a[k * cols + c];
      d[o * cols + c] *= scale;
    }
  }
  return d;
}

// base + delta where the base is not zero.
std::vector<float> merged_within(const std::vector<float>& base, const std::vector<double>& delta) {
  std::vector<float> sum(base.size());
  for (size_t i = 0; i < base.size(); ++i) {
    sum[i] = base[i] == 0 ? 0 : static_cast<float>(double{base[i]} + delta[i]);
  }
  return sum;
}

// The weights of write_model, pruned by `weft mask`.
std::string write_sparse(const ScratchFolder& folder, const std::vector<std::string>& flags) {
  const std::string model = write_model(folder), sparse = folder / "sparse.safetensors";
  std::vector<std::string> args = {"mask", model, sparse};
  args.insert(args.end(), flags.begin(), flags.end());
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return sparse;
}

// Integers of [8, 16] as 'fc.weight', pruned to 2:4.
std::string write_integer_base(const ScratchFolder& folder) {
  const std::string dense = folder / "dense.safetensors", base = folder / "base.safetensors";
  write_file(dense, {{"fc.weight", Dtype::kF32, {8, 16}, integers(128, 1)}});
  EXPECT_EQ(run({"mask", dense, base, "--pattern", "2:4"}).code, 0);
  return base;
}

Json merged_json(std::vector<std::string> args) {
  args.insert(args.begin(), "merge");
  args.push_back("--json");
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? outcome.json() : Json::object();
}

void expect_checked(const std::string& path) {
  const Outcome checked = run({"check", path});
  EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
}

TEST(Merge, ALoraPairIsAddedWhereTheBaseIsNotZero) {
  const ScratchFolder folder;
  const std::string base = write_integer_base(folder), delta = folder / "d", out = folder / "o";
  const auto a = integers(3 * 16, 2), b = integers(8 * 3, 3);
  const auto expected = merged_within(floats_of(base, "fc.weight"), lora_product(a, b, 3, 0.5));
  for (const std::string prefix : {"", "base_model.model."}) {
    for (const std::string ending : {".weight", "", ".default.weight", ".default"}) {
      SCOPED_TRACE(prefix + ending);
      write_file(delta, {{prefix + "fc.lora_A" + ending, Dtype::kF32, {3, 16}, a},
                         {prefix + "fc.lora_B" + ending, Dtype::kF32, {8, 3}, b}});
      const Json report = merged_json({base, delta, out, "--scale", "0.5"});
      EXPECT_EQ(floats_of(out, "fc.weight"), expected);
      ASSERT_EQ(report["tensors"].size(), 1u);
      EXPECT_EQ(report["tensors"][0]["rank"], 3);
      EXPECT_EQ(report["tensors"][0]["pattern"], "2:4");
      EXPECT_TRUE(report["pattern"].is_null());
      expect_checked(out);
    }
  }
}

TEST(Merge, LoraOfConvolutionsIsFlatOrUnfolded) {
  const ScratchFolder folder;
  const std::string base = write_sparse(folder, {"--pattern", "2:4"}), out = folder / "o";
  const auto a = gaussian(2 * 8 * 9, 11), b = gaussian(16 * 2, 12);
  const auto expected = merged_within(floats_of(base, "conv.weight"), lora_product(a, b, 2, 1));
  for (const std::vector<int64_t>& a_shape :
       {std::vector<int64_t>{2, 72}, std::vector<int64_t>{2, 8, 3, 3}}) {
    for (const std::vector<int64_t>& b_shape :
         {std::vector<int64_t>{16, 2}, std::vector<int64_t>{16, 2, 1, 1}}) {
      write_file(folder / "d", {{"conv.lora_A.weight", Dtype::kF32, a_shape, a},
                                {"conv.lora_B.weight", Dtype::kF32, b_shape, b}});
      merged_json({base, folder / "d", out});
      const auto found = floats_of(out, "conv.weight");
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
        EXPECT_EQ(found[i] == 0, expected[i] == 0) << i;
      }
      expect_checked(out);
    }
  }
}

TEST(Merge, FullDeltasAreAddedAndEverythingElseIsCopied) {
  const ScratchFolder folder;
  const std::string base = folder / "b", delta = folder / "d", out = folder / "o";
  write_file(base,
             {{"fc.weight", Dtype::kF32, {4, 8}, integers(32, 1)},
              {"other.weight", Dtype::kF32, {4, 8}, integers(32, 2)},
              {"fc.bias", Dtype::kF32, {4}, integers(4, 3)},
              {"logit_scale", Dtype::kF32, {}, {2.5F}},
              {"cube", Dtype::kF32, {2, 3, 2}, integers(12, 4)},
              {"steps", Dtype::kI32, {2}, {1, 2}},
              {"none.weight", Dtype::kF32, {0, 8}, {}}},
             {{"author", "somebody"}});
  write_file(delta, {{"fc.weight", Dtype::kF32, {4, 8}, integers(32, 5)},
                     {"fc.bias", Dtype::kF32, {4}, integers(4, 6)},
                     {"logit_scale", Dtype::kF32, {}, {-1.0F}},
                     {"cube", Dtype::kF32, {2, 3, 2}, integers(12, 7)},
                     {"none.weight", Dtype::kF32, {0, 8}, {}}});
  const Json report = merged_json({base, delta, out, "--pattern", "8:8"});
  for (const std::string name : {"fc.weight", "fc.bias", "logit_scale", "cube"}) {
    EXPECT_EQ(floats_of(out, name),
              merged_within(floats_of(base, name), in_double(floats_of(delta, name))))
        << name;
  }
  for (const std::string name : {"other.weight", "steps"}) {
    EXPECT_EQ(tensor_bytes_of(out, name), tensor_bytes_of(base, name)) << name;
  }
  EXPECT_EQ(Checkpoint::open(out).shard(0).header().metadata.at("author"), "somebody");
  ASSERT_EQ(report["tensors"].size(), 2u);
  EXPECT_EQ(report["tensors"][0]["name"], "fc.weight");
  EXPECT_TRUE(report["tensors"][0]["rank"].is_null());
  EXPECT_EQ(report["tensors"][0]["delta_lost"], 0.0);
  EXPECT_EQ(report["tensors"][0]["retained_l1"], 1.0);
  EXPECT_EQ(report["pattern"], "8:8");
  ASSERT_EQ(report["added"].size(), 3u);
  EXPECT_EQ(report["added"][0]["name"], "fc.bias");
  ASSERT_EQ(report["skipped"].size(), 2u);
  EXPECT_EQ(report["skipped"][0]["name"], "other.weight");
  EXPECT_EQ(report["skipped"][0]["reason"], "no delta: a weight left as it is");
  const std::string told = run({"merge", base, delta, out, "--pattern", "8:8"}).out;
  for (const std::string part :
       {"fc.weight", "full", "added without a pattern", "cube", "2 of 7"}) {
    EXPECT_TRUE(contains(told, part)) << part << "\n" << told;
  }
}

// Gaussian sums are never zero, so the mask is what is not zero. The greedy masks are not full, and
// some are part of no full one.
TEST(Merge, ABaseThatHasThePatternKeepsItsMask) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--pattern", "2:4"},
           {"--pattern", "3:5"},
           {"--pattern", "2:4x2"},
           {"--pattern", "2:4", "--transposable"},
           {"--pattern", "4:8x2", "--transposable"},
           {"--pattern", "2:4", "--transposable", "--solver", "greedy-prune"},
           {"--pattern", "4:8", "--transposable", "--solver", "greedy-keep"}}) {
    SCOPED_TRACE(Json(flags).dump());
    const ScratchFolder folder;
    const std::string base = write_sparse(folder, flags), out = folder / "o";
    const auto delta = gaussian(960, 20), conv = gaussian(1152, 21), wide = gaussian(144, 22);
    write_file(folder / "d", {{"fc1.weight", Dtype::kF32, {24, 40}, delta},
                              {"conv.weight", Dtype::kF32, {16, 8, 3, 3}, conv},
                              {"double.weight", Dtype::kF32, {12, 12}, wide}});
    const Json report = merged_json({base, folder / "d", out});
    for (const Json& tensor : report["tensors"]) EXPECT_EQ(tensor["changed_bits"], 0);
    EXPECT_EQ(floats_of(out, "fc1.weight"),
              merged_within(floats_of(base, "fc1.weight"), in_double(delta)));
    EXPECT_EQ(floats_of(out, "conv.weight"),
              merged_within(floats_of(base, "conv.weight"), in_double(conv)));
    EXPECT_EQ(tensor_bytes_of(out, "half.weight"), tensor_bytes_of(base, "half.weight"));
    expect_checked(out);
    EXPECT_EQ(run({"check", out, "--json"}).json()["tensors"].size(), 5u) << "all promises stay";
  }
}

TEST(Merge, ADenseBaseIsPrunedWithinItsOwnZeros) {
  const ScratchFolder folder;
  std::vector<float> weights = integers(8 * 16, 1);
  for (size_t i = 0; i < weights.size(); i += 5) weights[i] = 0;
  const auto delta = integers(8 * 16, 2);
  write_file(folder / "b", {{"fc.weight", Dtype::kF32, {8, 16}, weights}});
  write_file(folder / "d", {{"fc.weight", Dtype::kF32, {8, 16}, delta}});
  for (const bool transposable : {false, true}) {
    std::vector<std::string> args = {folder / "b", folder / "d", folder / "o", "--pattern", "2:4"};
    if (transposable) args.push_back("--transposable");
    const Json report = merged_json(args);
    EXPECT_EQ(report["tensors"][0]["axis"], transposable ? "both" : "in");
    EXPECT_GT(report["tensors"][0]["changed_bits"].get<int64_t>(), 0);
    const auto found = floats_of(folder / "o", "fc.weight");
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(found[i] == 0 || (weights[i] != 0 && found[i] == weights[i] + delta[i])) << i;
    }
    expect_checked(folder / "o");
  }
}

// The first tile is 2:4 both ways, but part of no full mask: the last row would find two columns
// full. The second one has to be pruned.
TEST(Merge, BlocksThatObeyKeepTheirMaskBesideOthersThatDoNot) {
  const ScratchFolder folder;
  const std::vector<float> weights = {0, 5, 5, 0, 5, 0, 5, 0, 5, 5, 0, 0, 0, 0, 0, 0,
                                      1, 2, 3, 4, 2, 3, 4, 1, 3, 4, 1, 2, 4, 1, 2, 3};
  const std::vector<float> delta(32, 1.0F);
  write_file(folder / "b", {{"fc.weight", Dtype::kF32, {8, 4}, weights}});
  write_file(folder / "d", {{"fc.weight", Dtype::kF32, {8, 4}, delta}});
  merged_json({folder / "b", folder / "d", folder / "o", "--pattern", "2:4", "--transposable"});
  EXPECT_EQ(floats_of(folder / "o", "fc.weight"),
            (std::vector<float>{0, 6, 6, 0, 6, 0, 6, 0, 6, 6, 0, 0, 0, 0, 0, 0,
                                0, 0, 4, 5, 0, 4, 5, 0, 4, 5, 0, 0, 5, 0, 0, 4}));
  expect_checked(folder / "o");
}

TEST(Merge, ANewMaskKeepsTheLargestOfTheSums) {
  for (const bool transposable : {false, true}) {
    const ScratchFolder folder;
    const std::vector<float> delta = gaussian(960, 30);
    std::vector<std::string> flags = {"--pattern", "4:8"};
    if (transposable) flags.push_back("--transposable");
    const std::string base = write_sparse(folder, flags), out = folder / "o";
    write_file(folder / "d", {{"fc1.weight", Dtype::kF32, {24, 40}, delta}});
    const Json row = merged_json({base, folder / "d", out, "--mask", "new"})["tensors"][0];

    const auto before = floats_of(base, "fc1.weight"), found = floats_of(out, "fc1.weight");
    std::vector<double> sum(960);
    for (size_t i = 0; i < 960; ++i) sum[i] = double{before[i]} + delta[i];
    const Mask mask =
        find_mask(default_solver(transposable), sum.data(), {24, 40, 1}, Pattern(4, 8));
    double lost = 0, squares = 0, kept = 0, total = 0;
    int64_t changed = 0;
    for (size_t i = 0; i < 960; ++i) {
      const bool in_mask = mask.at(static_cast<int64_t>(i / 40), static_cast<int64_t>(i % 40));
      EXPECT_EQ(found[i], in_mask ? static_cast<float>(sum[i]) : 0.0F) << i;
      changed += (before[i] != 0) != (found[i] != 0);
      squares += double{delta[i]} * delta[i];
      lost += in_mask ? 0 : double{delta[i]} * delta[i];
      total += std::abs(sum[i]);
      kept += in_mask ? std::abs(sum[i]) : 0;
    }
    EXPECT_GT(changed, 0);
    EXPECT_EQ(row["changed_bits"], changed);
    EXPECT_NEAR(row["delta_lost"].get<double>(), lost / squares, 1e-12);
    EXPECT_NEAR(row["retained_l1"].get<double>(), kept / total, 1e-12);
    expect_checked(out);
  }
}

TEST(Merge, APatternAlongOutputsIsRestoredThere) {
  const ScratchFolder folder;
  const Metadata plan = {{"weft.sparsity",
                          R"({"version":1,"tensors":{"fc.weight":{"pattern":"1:4","axis":"out"},)"
                          R"("conv.weight":{"pattern":"2:4x2","axis":"out"}}})"}};
  std::vector<float> one(64, 0.0F), larger(64, 0.0F);
  for (size_t c = 0; c < 8; ++c) one[c] = larger[8 + c] = 1;  // first row; second row
  write_file(folder / "b",
             {{"fc.weight", Dtype::kF32, {8, 8}, one},
              {"conv.weight", Dtype::kF32, {10, 9, 1, 2}, gaussian(180, 1)}},
             plan);
  for (float& value : larger) value *= 3;
  write_file(folder / "d", {{"fc.weight", Dtype::kF32, {8, 8}, larger},
                            {"conv.weight", Dtype::kF32, {10, 9, 1, 2}, gaussian(180, 2)}});
  merged_json({folder / "b", folder / "d", folder / "base"});
  EXPECT_EQ(floats_of(folder / "base", "fc.weight"), one);
  expect_checked(folder / "base");
  merged_json({folder / "b", folder / "d", folder / "new", "--mask", "new"});
  EXPECT_EQ(floats_of(folder / "new", "fc.weight"), larger);
  expect_checked(folder / "new");
}

TEST(Merge, HalvesAreRoundedOnceToTheNearest) {
  const ScratchFolder folder;
  // Half a unit in the last place of 1 in BF16 is 2^-8, in F16 2^-11; ties go to even. In float,
  // 1 + 2^-8 + 2^-30 would be a tie.
  const auto expect_rounded = [&](Dtype dtype, float half, uint16_t bits_of_one) {
    write_file(folder / "b", {{"fc.weight", dtype, {1, 4}, {1, 1, 1, 1}}});
    write_file(
        folder / "d",
        {{"fc.weight", Dtype::kF64, {1, 4}, {half, 3 * half, half + 0x1p-30F, half - 0x1p-30F}}});
    merged_json({folder / "b", folder / "d", folder / "o", "--pattern", "4:4"});
    const std::string bytes = tensor_bytes_of(folder / "o", "fc.weight");
    ASSERT_EQ(bytes.size(), 8u);
    std::vector<uint16_t> bits(4);
    std::memcpy(bits.data(), bytes.data(), 8);
    const uint16_t one = bits_of_one;
    const auto up = [&](int units) { return static_cast<uint16_t>(one + units); };
    EXPECT_EQ(bits, (std::vector<uint16_t>{one, up(2), up(1), one}));
  };
  expect_rounded(Dtype::kBf16, 0x1p-8F, 0x3f80);
  expect_rounded(Dtype::kF16, 0x1p-11F, 0x3c00);
}

TEST(Merge, ShardedInShardedOut) {
  const ScratchFolder folder;
  fs::create_directory(folder / "in");
  write_file(folder / "in/m-1.safetensors", {{"a.weight", Dtype::kF32, {8, 8}, integers(64, 1)}});
  write_file(folder / "in/m-2.safetensors", {{"b.weight", Dtype::kF32, {8, 8}, integers(64, 2)},
                                             {"b.bias", Dtype::kF32, {8}, integers(8, 3)}});
  put(folder / "in/m.safetensors.index.json",
      R"({"metadata": {"total_size": 544}, "weight_map": {"a.weight": "m-1.safetensors",)"
      R"("b.weight": "m-2.safetensors", "b.bias": "m-2.safetensors"}})");
  ASSERT_EQ(run({"mask", folder / "in", folder / "sparse", "--pattern", "2:4"}).code, 0);
  const auto delta = integers(64, 4);
  write_file(folder / "d", {{"b.weight", Dtype::kF32, {8, 8}, delta}});
  const Json report = merged_json({folder / "sparse", folder / "d", folder / "out"});
  EXPECT_EQ(floats_of(folder / "out", "b.weight"),
            merged_within(floats_of(folder / "sparse", "b.weight"), in_double(delta)));
  EXPECT_EQ(tensor_bytes_of(folder / "out", "a.weight"),
            tensor_bytes_of(folder / "sparse", "a.weight"));
  EXPECT_EQ(report["skipped"][0]["reason"], "no delta: keeps its 2:4");
  expect_checked(folder / "out");
  expect_one_line(run({"merge", folder / "sparse", folder / "d", folder / "o.safetensors"}), 1,
                  {"sharded"});
  fs::create_directory(folder / "clash");
  write_file(folder / "clash/m-2.safetensors", {{"b.weight", Dtype::kF32, {8, 8}, delta}});
  const std::string before = contents(folder / "clash/m-2.safetensors");
  expect_one_line(
      run({"merge", folder / "sparse", folder / "clash/m-2.safetensors", folder / "clash"}), 2,
      {"m-2.safetensors", "DELTA"});
  EXPECT_EQ(names_in(folder / "clash"), std::set<std::string>{"m-2.safetensors"});
  EXPECT_EQ(contents(folder / "clash/m-2.safetensors"), before);
}

TEST(Merge, PatternsComeFromTheFlagOrFromThePlan) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), base = folder / "b", out = folder / "o";
  ASSERT_EQ(run({"mask", model, base, "--pattern", "2:4", "--include", "fc1.weight"}).code, 0);
  ASSERT_EQ(run({"mask", base, base, "--pattern", "1:4", "--include", "embed", "--in-place"}).code,
            0);
  const auto fc1 = gaussian(960, 1), conv = gaussian(1152, 2), embed = gaussian(256, 3);
  write_file(folder / "d", {{"fc1.weight", Dtype::kF32, {24, 40}, fc1},
                            {"embed_tokens.weight", Dtype::kF32, {16, 16}, embed}});
  const Json planned = merged_json({base, folder / "d", out});
  ASSERT_EQ(planned["tensors"].size(), 2u);
  EXPECT_EQ(planned["tensors"][0]["pattern"], "2:4");
  EXPECT_EQ(planned["tensors"][1]["pattern"], "1:4") << "promised, though an embedding";
  expect_checked(out);

  const Json given = merged_json({base, folder / "d", out, "--pattern", "1:8", "--mask", "new"});
  EXPECT_EQ(given["tensors"][0]["pattern"], "1:8");
  EXPECT_EQ(given["tensors"][1]["pattern"], "1:4");
  expect_checked(out);

  // Excluded: added as it is, and no longer promised.
  const Json excluded = merged_json({base, folder / "d", out, "--exclude", "fc1"});
  EXPECT_EQ(excluded["added"][0]["name"], "fc1.weight");
  EXPECT_TRUE(contains(excluded["added"][0]["reason"].get<std::string>(), "no longer promised"));
  expect_checked(out);
  EXPECT_EQ(run({"check", out, "--json"}).json()["tensors"].size(), 1u);

  fs::remove(out);
  write_file(folder / "d", {{"conv.weight", Dtype::kF32, {16, 8, 3, 3}, conv}});
  expect_one_line(run({"merge", base, folder / "d", out}), 2, {"--pattern", "conv.weight"});
  expect_one_line(run({"merge", model, folder / "d", out}), 2, {"--pattern", "conv.weight"});
  EXPECT_FALSE(fs::exists(out));
}

TEST(Merge, ADryRunReportsAndWritesNothing) {
  const ScratchFolder folder;
  const std::string base = write_integer_base(folder);
  write_file(folder / "d", {{"fc.weight", Dtype::kF32, {8, 16}, integers(128, 5)}});
  const std::set<std::string> before = names_in(folder.path());
  Json dry = merged_json({base, folder / "d", folder / "o", "--dry-run"});
  EXPECT_EQ(names_in(folder.path()), before);
  Json real = merged_json({base, folder / "d", folder / "o"});
  dry["tensors"][0]["seconds"] = real["tensors"][0]["seconds"] = 0;
  EXPECT_EQ(dry.dump(), real.dump());
  expect_one_line(run({"merge", base, folder / "d", folder / "d", "--dry-run"}), 2, {"DELTA"});
}

TEST(Merge, AFileMayBecomeItsOwnBase) {
  const ScratchFolder folder;
  const std::string base = write_integer_base(folder);
  const auto weights = floats_of(base, "fc.weight"), delta = integers(128, 5);
  write_file(folder / "d", {{"fc.weight", Dtype::kF32, {8, 16}, delta}});
  merged_json({base, folder / "d", base, "--in-place"});
  EXPECT_EQ(floats_of(base, "fc.weight"), merged_within(weights, in_double(delta)));
}

// Large enough for several bands of rows, and items of every parallel loop.
TEST(Merge, IsTheSameFileForAnyNumberOfThreads) {
  const ScratchFolder folder;
  write_file(folder / "b", {{"fc.weight", Dtype::kF32, {1301, 1024}, gaussian(1301 * 1024, 1)},
                            {"norm.bias", Dtype::kBf16, {200'000}, gaussian(200'000, 2)}});
  const auto a = gaussian(5 * 1024, 3), b = gaussian(1301 * 5, 4);
  write_file(folder / "d", {{"fc.lora_A.weight", Dtype::kF32, {5, 1024}, a},
                            {"fc.lora_B.weight", Dtype::kF32, {1301, 5}, b},
                            {"norm.bias", Dtype::kF32, {200'000}, gaussian(200'000, 5)}});
  for (const std::string mask : {"base", "new"}) {
    const auto merged = [&](const std::string& threads) {
      Json report = merged_json({folder / "b", folder / "d", folder / threads, "--pattern", "2:4x2",
                                 "--transposable", "--mask", mask, "--threads", threads});
      report["tensors"][0]["seconds"] = 0;
      return report.dump();
    };
    EXPECT_EQ(merged("1"), merged("2"));
    EXPECT_TRUE(contents(folder / "1") == contents(folder / "2"));
    expect_checked(folder / "2");
  }
  const auto delta = lora_product(a, b, 5, 1);
  const auto weights = floats_of(folder / "b", "fc.weight"),
             out = floats_of(folder / "1", "fc.weight");
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == 0) continue;
    ASSERT_NEAR(out[i], weights[i] + delta[i], 1e-5) << i;
  }
}

TEST(Merge, MemoryDoesNotGrowWithTheTensor) {
  if (emulated()) GTEST_SKIP() << "the peak memory would be the emulator's";
  if (sanitized()) GTEST_SKIP() << "its own memory would hide what is measured";
  const ScratchFolder folder;
  write_file(folder / "b",
             {{"fc.weight", Dtype::kF32, {24 << 10, 1 << 10}, std::vector<float>(24 << 20, 1.0F)}});
  const Outcome merged =
      run({"merge", folder / "b", folder / "b", folder / "o", "--pattern", "2:4"});
  ASSERT_EQ(merged.code, 0) << merged.err;
  EXPECT_LT(merged.peak_bytes, 80'000'000) << "of a tensor of 100 MB";
}

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
  expect_refused({lora_a_}, {"/d", "fc1.lora_A.weight", "no lora_B"});
  expect_refused({lora_b_}, {"/d", "fc1.lora_B.weight", "no lora_A"});
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

// ---- Adapters of PEFT

// A folder as PEFT saves it, for a base of the layers `model.layers.<i>.<name>`.
struct Adapter {
  explicit Adapter(const ScratchFolder& folder) : path(folder / "adapter") {
    fs::create_directory(path);
  }
  void add(const std::string& layer, int64_t outs, int64_t ins, int64_t rank,
           const std::string& ending = ".weight") {
    const auto stream = static_cast<uint64_t>(tensors.size());
    tensors.push_back({"base_model.model." + layer + ".lora_A" + ending,
                       Dtype::kF32,
                       {rank, ins},
                       integers(rank * ins, 50 + stream)});
    tensors.push_back({"base_model.model." + layer + ".lora_B" + ending,
                       Dtype::kF32,
                       {outs, rank},
                       integers(outs * rank, 51 + stream)});
  }
  void write(const std::string& config) const {
    write_file(path / "adapter_model.safetensors", tensors);
    if (!config.empty()) put(path / "adapter_config.json", config);
  }
  // scale * B A of the i-th layer that was added.
  std::vector<double> product(size_t i, double scale) const {
    return lora_product(tensors[2 * i].values, tensors[2 * i + 1].values,
                        static_cast<size_t>(tensors[2 * i].shape[0]), scale);
  }

  fs::path path;
  std::vector<NamedTensor> tensors;
};

// W + D, rounded once.
std::vector<float> sum_of(const std::vector<float>& base, const std::vector<double>& delta) {
  std::vector<float> sum;
  for (size_t i = 0; i < base.size(); ++i) {
    sum.push_back(static_cast<float>(double{base[i]} + delta[i]));
  }
  return sum;
}

std::vector<double> turned_over(const std::vector<double>& d, size_t rows, size_t cols) {
  std::vector<double> to(d.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) to[c * rows + r] = d[r * cols + c];
  }
  return to;
}

const std::vector<std::string> kLayers = {"model.layers.0.self_attn.q_proj",
                                          "model.layers.0.self_attn.v_proj",
                                          "model.layers.1.self_attn.q_proj", "model.layers.1.proj"};

std::string write_layers(const ScratchFolder& folder, const std::string& name = "base") {
  std::vector<NamedTensor> tensors;
  for (const std::string& layer : kLayers) {
    tensors.push_back({layer + ".weight", Dtype::kF32, {8, 12}, integers(96, 10 + tensors.size())});
  }
  write_file(folder / name, tensors);
  return folder / name;
}

// The scales of kLayers, by adapter_config.json; the ranks are those of the tensors.
TEST(Peft, TheScaleOfEveryLayerIsThatOfItsConfig) {
  struct Case {
    std::string config;
    std::vector<int64_t> ranks;
    std::vector<double> scales;
  };
  const double root2 = std::sqrt(2.0);
  for (const auto& [config, ranks, scales] : std::vector<Case>{
           {R"("r": 2, "lora_alpha": 8)", {2, 2, 2, 2}, {4, 4, 4, 4}},
           {R"("r": 4, "lora_alpha": 1.0)", {4, 4, 4, 4}, {.25, .25, .25, .25}},
           {R"("r": 4, "lora_alpha": 8, "use_rslora": true)", {4, 4, 4, 4}, {4, 4, 4, 4}},
           {R"("r": 2, "lora_alpha": 2, "use_rslora": true)",
            {2, 2, 2, 2},
            {root2, root2, root2, root2}},
           // A name for all layers, for one, a regular expression; `proj` is no end of `q_proj`.
           {R"("r": 2, "lora_alpha": 8, "alpha_pattern": {"q_proj": 16, "proj": 2})",
            {2, 2, 2, 2},
            {8, 4, 8, 1}},
           {R"("r": 2, "lora_alpha": 8, "alpha_pattern": {"model.layers.0.self_attn.q_proj": 1})",
            {2, 2, 2, 2},
            {.5, 4, 4, 4}},
           {R"("r": 2, "lora_alpha": 8, "alpha_pattern": {"layers\\.1\\..*": 32})",
            {2, 2, 2, 2},
            {4, 4, 16, 16}},
           {R"("r": 2, "lora_alpha": 8, "rank_pattern": {"v_proj": 4, "layers.1.proj": 1})",
            {2, 4, 2, 1},
            {4, 2, 4, 8}},
           {R"("r": 2, "lora_alpha": 8, "rank_pattern": {"v_proj": 4}, "use_rslora": true,
               "alpha_pattern": {"v_proj": 3})",
            {2, 4, 2, 2},
            {8 / root2, 1.5, 8 / root2, 8 / root2}}}) {
    SCOPED_TRACE(config);
    const ScratchFolder folder;
    const std::string base = write_layers(folder), out = folder / "o";
    Adapter adapter(folder);
    for (size_t i = 0; i < kLayers.size(); ++i) adapter.add(kLayers[i], 8, 12, ranks[i]);
    adapter.write(R"({"peft_type": "LORA", "bias": "none", "modules_to_save": null,
                      "use_dora": false, "target_modules": ["q_proj"], )" +
                  config + "}");
    // The folder, and the file in it.
    for (const fs::path& given : {adapter.path, adapter.path / "adapter_model.safetensors"}) {
      const Json report = merged_json({base, given, out, "--pattern", "4:4"});
      EXPECT_EQ(report["adapter_config"], (adapter.path / "adapter_config.json").string());
      ASSERT_EQ(report["tensors"].size(), kLayers.size());
      for (size_t i = 0; i < kLayers.size(); ++i) {
        const std::string name = kLayers[i] + ".weight";
        EXPECT_DOUBLE_EQ(report["tensors"][i]["scale"].get<double>(), scales[i]) << name;
        EXPECT_EQ(report["tensors"][i]["rank"], ranks[i]);
        EXPECT_EQ(floats_of(out, name),
                  sum_of(floats_of(base, name), adapter.product(i, scales[i])))
            << name;
      }
    }
  }
}

TEST(Peft, AScaleThatIsGivenGoesBeforeTheConfigAndWithoutEitherItIsSaid) {
  const ScratchFolder folder;
  const std::string base = write_layers(folder), out = folder / "o", name = kLayers[0] + ".weight";
  Adapter adapter(folder);
  adapter.add(kLayers[0], 8, 12, 2, ".default.weight");
  adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 8})");
  merged_json({base, adapter.path, out, "--pattern", "4:4", "--scale", "0.5"});
  EXPECT_EQ(floats_of(out, name), sum_of(floats_of(base, name), adapter.product(0, 0.5)));
  fs::remove(adapter.path / "adapter_config.json");
  const Outcome outcome = run({"merge", base, adapter.path, out, "--pattern", "4:4"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.err, "no adapter_config.json")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "at scale 1 ")) << outcome.err;
  EXPECT_EQ(floats_of(out, name), sum_of(floats_of(base, name), adapter.product(0, 1)));
  const Outcome told = run({"merge", base, adapter.path, out, "--pattern", "4:4", "--scale", "1"});
  EXPECT_EQ(told.err, "");
}

TEST(Peft, AFolderMayHoldOtherFilesOfTensors) {
  const ScratchFolder folder;
  const std::string base = write_layers(folder);
  Adapter adapter(folder);
  adapter.add(kLayers[0], 8, 12, 2);
  adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 8})");
  write_layers(folder, "adapter/model.safetensors");
  EXPECT_EQ(run({"merge", base, adapter.path, folder / "o", "--pattern", "4:4"}).code, 0);
}

// GPT-2 from its hub: names without `transformer.`, weights [ins, outs], the square one too.
TEST(Peft, AnAdapterOfGpt2IsAddedTransposedWhereWeftKnowsTheBaseOrTheConfigSaysSo) {
  const ScratchFolder folder;
  const std::string dense = folder / "gpt2", sparse = folder / "sparse", out = folder / "o";
  const std::string attn = "h.0.attn.c_attn.weight", proj = "h.0.attn.c_proj.weight";
  write_file(dense, {{attn, Dtype::kF32, {8, 24}, integers(192, 1)},
                     {proj, Dtype::kF32, {8, 8}, integers(64, 2)}});
  ASSERT_EQ(run({"mask", dense, sparse, "--pattern", "2:4"}).code, 0);
  Adapter adapter(folder);
  adapter.add("transformer.h.0.attn.c_attn", 24, 8, 2);
  adapter.add("transformer.h.0.attn.c_proj", 8, 8, 2);
  for (const std::string word : {"true", "false"}) {
    SCOPED_TRACE(word);
    adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "fan_in_fan_out": )" + word +
                  "}");
    const Json report = merged_json({sparse, adapter.path, out});
    EXPECT_EQ(floats_of(out, attn),
              merged_within(floats_of(sparse, attn), turned_over(adapter.product(0, 2), 24, 8)));
    EXPECT_EQ(floats_of(out, proj),
              merged_within(floats_of(sparse, proj), turned_over(adapter.product(1, 2), 8, 8)));
    EXPECT_TRUE(report["tensors"][0]["transposed"].get<bool>());
    expect_checked(out);
    // With a new mask, found along inputs, and without any pattern.
    merged_json({sparse, adapter.path, out, "--mask", "new"});
    expect_checked(out);
    merged_json({dense, adapter.path, out, "--exclude", "c_", "--pattern", "2:4"});
    EXPECT_EQ(floats_of(out, attn),
              sum_of(floats_of(dense, attn), turned_over(adapter.product(0, 2), 24, 8)));
  }
}

TEST(Peft, FanInFanOutTransposesWhatIsKnownFromNoOtherPlace) {
  const ScratchFolder folder;
  const std::string base = folder / "b", out = folder / "o";
  write_file(base, {{"square.weight", Dtype::kF32, {8, 8}, integers(64, 1)},
                    {"wide.weight", Dtype::kF32, {8, 12}, integers(96, 2)},
                    {"linear.weight", Dtype::kF32, {8, 12}, integers(96, 3)}});
  Adapter adapter(folder);
  adapter.add("square", 8, 8, 2);
  adapter.add("wide", 12, 8, 2);    // stored [ins, outs]
  adapter.add("linear", 8, 12, 2);  // [outs, ins], as PEFT finds out by its class
  adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "fan_in_fan_out": true})");
  const auto expect_sums = [&] {
    EXPECT_EQ(floats_of(out, "square.weight"),
              sum_of(floats_of(base, "square.weight"), turned_over(adapter.product(0, 1), 8, 8)));
    EXPECT_EQ(floats_of(out, "wide.weight"),
              sum_of(floats_of(base, "wide.weight"), turned_over(adapter.product(1, 1), 12, 8)));
    EXPECT_EQ(floats_of(out, "linear.weight"),
              sum_of(floats_of(base, "linear.weight"), adapter.product(2, 1)));
  };
  merged_json({base, adapter.path, out, "--pattern", "4:4"});
  expect_sums();
  merged_json({base, adapter.path, out, "--pattern", "4:4", "--transposed", "square|wide"});
  expect_sums();
  adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "fan_in_fan_out": false})");
  expect_one_line(run({"merge", base, adapter.path, out, "--pattern", "4:4"}), 1,
                  {"'base_model.model.wide.lora_A.weight'", "[2, 8]", "accepted is [2, 12]"});
}

TEST(Peft, WhatIsNotPlainLoraOrMalformedIsOneLineWithFileAndKey) {
  const ScratchFolder folder;
  const std::string base = write_layers(folder), out = folder / "o";
  Adapter adapter(folder);
  adapter.add(kLayers[0], 8, 12, 2);
  const std::string config = adapter.path / "adapter_config.json";
  const std::string usual = R"("peft_type": "LORA", "r": 2, "lora_alpha": 4)";
  struct Case {
    std::string text;
    std::vector<std::string> parts;
  };
  for (const auto& [text, parts] : std::vector<Case>{
           {"{", {"not valid JSON"}},
           {"[1]", {"not an object"}},
           {"{}", {"'peft_type'", "accepted is \"LORA\""}},
           {R"({"peft_type": "IA3", "r": 2, "lora_alpha": 4})", {"'peft_type' is \"IA3\""}},
           {R"({"peft_type": 3, "r": 2, "lora_alpha": 4})", {"'peft_type' is 3"}},
           {R"({"peft_type": "LORA", "lora_alpha": 4})", {"no 'r'"}},
           {R"({"peft_type": "LORA", "r": 2})", {"no 'lora_alpha'"}},
           {R"({"peft_type": "LORA", "r": "2", "lora_alpha": 4})",
            {"'r' is \"2\"", "whole number"}},
           {R"({"peft_type": "LORA", "r": 0, "lora_alpha": 4})", {"'r' is 0", "1 or more"}},
           {R"({"peft_type": "LORA", "r": -2, "lora_alpha": 4})", {"'r' is -2"}},
           {R"({"peft_type": "LORA", "r": 2.5, "lora_alpha": 4})", {"'r' is 2.5"}},
           {R"({"peft_type": "LORA", "r": 2, "lora_alpha": "4"})", {"'lora_alpha' is \"4\""}},
           {R"({"peft_type": "LORA", "r": 3, "lora_alpha": 4})", {"'r' is 3", "rank 2"}},
           {"{" + usual + R"(, "use_rslora": 1})", {"'use_rslora' is 1", "true or false"}},
           {"{" + usual + R"(, "fan_in_fan_out": "no"})", {"'fan_in_fan_out' is \"no\""}},
           {"{" + usual + R"(, "use_dora": true})", {"'use_dora' is true"}},
           {"{" + usual + R"(, "lora_bias": true})", {"'lora_bias' is true"}},
           {"{" + usual + R"(, "modules_to_save": ["score"]})",
            {"'modules_to_save' is [\"score\"]"}},
           {"{" + usual + R"(, "layer_replication": [[0, 1]]})", {"'layer_replication'"}},
           {"{" + usual + R"(, "init_lora_weights": "pissa_niter_4"})",
            {"'init_lora_weights' is \"pissa_niter_4\""}},
           {"{" + usual + R"(, "alpha_pattern": [1]})", {"'alpha_pattern' is [1]"}},
           {"{" + usual + R"(, "alpha_pattern": {"q_proj": "x"}})", {"'alpha_pattern.q_proj'"}},
           {"{" + usual + R"(, "rank_pattern": {"q_proj": 0}})", {"'rank_pattern.q_proj' is 0"}},
           {"{" + usual + R"(, "rank_pattern": {"q_(": 2}})",
            {"'rank_pattern.q_('", "not a regular expression"}},
           {"{" + usual + R"(, "rank_pattern": {"q_proj": 8}})", {"'r' is 8", "rank 2"}},
           {"{" + usual + R"(, "alpha_pattern": {"q_proj": 8, "self_attn.q_proj": 2}})",
            {"'alpha_pattern'", "'q_proj' and 'self_attn.q_proj'", "accepted is one"}}}) {
    SCOPED_TRACE(text);
    adapter.write(text);
    std::vector<std::string> all = parts;
    all.push_back(config);
    expect_one_line(run({"merge", base, adapter.path, out, "--pattern", "4:4"}), 1, all);
    EXPECT_FALSE(fs::exists(out));
  }
}

TEST(Peft, WholeWeightsBesidePairsAreRefused) {
  for (const std::string prefix : {"base_model.model.", ""}) {
    const ScratchFolder folder;
    const std::string base = write_layers(folder);
    Adapter adapter(folder);
    adapter.add(kLayers[0], 8, 12, 2);
    adapter.tensors.push_back(
        {prefix + kLayers[1] + ".weight", Dtype::kF32, {8, 12}, integers(96, 3)});
    adapter.write(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "lora_only"})");
    expect_one_line(
        run({"merge", base, adapter.path, folder / "o", "--pattern", "4:4"}), 1,
        {kLayers[1] + ".weight", "adapter_config.json", "neither biases nor modules_to_save"});
  }
}

}  // namespace
}  // namespace weft::test
