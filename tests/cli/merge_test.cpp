// weft merge as its users meet it: what is added, and which mask stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/cli/merges.h"
#include "tests/support.h"
#include "weft/mask/solver.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

std::vector<double> in_double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
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
  EXPECT_EQ(report["skipped"][0]["reason"], "no delta: unchanged");
  const std::string told = run({"merge", base, delta, out, "--pattern", "8:8", "--verbose"}).out;
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
    EXPECT_GT(std::ranges::count_if(found, [](float w) { return w != 0; }), 48) << "of 64";
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
  const auto size = static_cast<double>(out.size());
  EXPECT_NEAR(static_cast<double>(std::ranges::count(out, 0.0F)), 0.5 * size, 0.01 * size);
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

}  // namespace
}  // namespace weft::test
