// weft pack and weft unpack as their users meet them.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"
#include "weft/core/bf16.h"
#include "weft/pack/packed_file.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// Threads of small work on a busy machine mostly wait for each other; --threads still counts.
[[maybe_unused]] const int kOneThread = ::setenv("OMP_NUM_THREADS", "1", 1);

// The model of cli_test, pruned.
std::string write_sparse_model(const ScratchFolder& folder, const std::string& pattern) {
  const std::string model = write_model(folder), sparse = folder / "sparse.safetensors";
  const Outcome outcome = run({"mask", model, sparse, "--pattern", pattern});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return sparse;
}

const Json* row_of(const Json& report, const std::string& name) {
  for (const Json& row : report["tensors"]) {
    if (row["name"] == name) return &row;
  }
  return nullptr;
}

TEST(Pack, UnpackGivesTheSameFile) {
  for (const std::string pattern : {"2:4", "1:2", "1:4", "4:8", "5:7", "3:64", "2:4x2", "1:4x8"}) {
    SCOPED_TRACE(pattern);
    const ScratchFolder folder;
    const std::string sparse = write_sparse_model(folder, pattern);
    for (const std::string values : {"same", "fp32"}) {
      const std::string packed = folder / "packed.safetensors", back = folder / "back.safetensors";
      const Outcome outcome =
          run({"pack", sparse, packed, "--any-size", "--values", values, "--json"});
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      const Json report = outcome.json();
      EXPECT_EQ(report["tensors"].size(), 4u);  // fc1, conv, half, brain
      EXPECT_EQ((*row_of(report, "half.weight"))["values"], values == "same" ? "F16" : "F32");
      EXPECT_EQ((*row_of(report, "conv.weight"))["pattern"], pattern);
      bool told = false;
      for (const Json& skipped : report["skipped"]) {
        told |= skipped["name"] == "double.weight" &&
                contains(skipped["reason"].get<std::string>(), "F64");
      }
      EXPECT_TRUE(told);
      const Outcome unpacked = run({"unpack", packed, back});
      ASSERT_EQ(unpacked.code, 0) << unpacked.err;
      EXPECT_TRUE(contents(back) == contents(sparse));
    }
  }
}

TEST(Pack, ASparseFileShrinksToItsShare) {
  const ScratchFolder folder;
  const std::string model = folder / "m", sparse = folder / "s", packed = folder / "p";
  write_file(model, {{"a.weight", Dtype::kF32, {256, 512}, gaussian(256 * 512)},
                     {"b.weight", Dtype::kF32, {128, 256}, gaussian(128 * 256, 1)},
                     {"b.bias", Dtype::kF32, {128}, gaussian(128, 2)}});
  ASSERT_EQ(run({"mask", model, sparse, "--pattern", "2:4"}).code, 0);
  const auto share = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"pack", sparse, packed};
    args.insert(args.end(), flags.begin(), flags.end());
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return static_cast<double>(fs::file_size(packed)) / static_cast<double>(fs::file_size(model));
  };
  EXPECT_LE(share({}), 0.57);
  EXPECT_LE(share({"--values", "bf16"}), 0.30);
  EXPECT_LE(share({"--format", "sparse-24-bitmask"}), 0.57);
  ASSERT_EQ(run({"mask", model, sparse, "--pattern", "1:8"}).code, 0);
  EXPECT_LE(share({}), 0.15);
  EXPECT_GT(share({"--pattern", "2:4"}), 0.5) << "packed wider than need be, but right";
}

// Sixteen rows are stored together, and indices take their share.
TEST(Pack, LeavesAloneWhatWouldGrow) {
  const ScratchFolder folder;
  const std::string file = folder / "f";
  write_file(file, {{"a.weight", Dtype::kF32, {32, 64}, gaussian(2048)},
                    {"few_rows.weight", Dtype::kF32, {5, 64}, gaussian(320, 1)},
                    {"enough_rows.weight", Dtype::kF32, {10, 64}, gaussian(640, 2)},
                    {"half.weight", Dtype::kF16, {16, 64}, gaussian(1024, 3)}});
  const auto pack = [&](const std::string& pattern, std::vector<std::string> flags) {
    flags.insert(flags.begin(),
                 {"pack", file, folder / "p", "--by-magnitude", "--pattern", pattern, "--json"});
    return run(flags).json();
  };
  const auto left = [](const Json& report) {
    std::set<std::string> names;
    for (const Json& skipped : report["skipped"]) {
      EXPECT_EQ(skipped["reason"], "larger when packed");
      names.insert(skipped["name"].get<std::string>());
    }
    return names;
  };
  const Json half = pack("2:4", {});
  EXPECT_EQ(left(half), std::set<std::string>{"few_rows.weight"});
  for (const Json& row : half["tensors"]) EXPECT_LE(row["ratio"].get<double>(), 1.0) << row;
  // By magnitude nothing is pruned that is not packed.
  EXPECT_EQ(tensor_bytes_of(folder / "p", "few_rows.weight"),
            tensor_bytes_of(file, "few_rows.weight"));
  EXPECT_EQ(run({"check", folder / "p", "--json"}).json()["tensors"].size(), 3u);
  EXPECT_EQ(left(pack("7:8", {})),
            (std::set<std::string>{"few_rows.weight", "enough_rows.weight", "half.weight"}));
  EXPECT_EQ(left(pack("7:8", {"--any-size"})), std::set<std::string>());
  // Wider values are asked for, and are not growth.
  EXPECT_EQ(left(pack("2:4", {"--values", "fp32"})), std::set<std::string>{"few_rows.weight"});
  const Outcome told = run({"pack", file, folder / "p", "--pattern", "2:4", "--by-magnitude"});
  EXPECT_TRUE(contains(told.out, "1 of 4 tensors left alone: larger when packed (1)")) << told.out;
  expect_one_line(
      run({"pack", file, folder / "q", "--pattern", "2:4", "--by-magnitude", "--include", "few"}),
      1, {"no tensor to pack", "few_rows.weight", "larger when packed"});
}

TEST(Pack, Bf16ValuesAreRounded) {
  const ScratchFolder folder;
  const std::string sparse = write_sparse_model(folder, "2:4");
  ASSERT_EQ(run({"pack", sparse, folder / "p", "--any-size", "--values", "bf16"}).code, 0);
  ASSERT_EQ(run({"unpack", folder / "p", folder / "u"}).code, 0);
  std::vector<float> expected = floats_of(sparse, "fc1.weight");
  for (float& value : expected) value = bf16_to_float(float_to_bf16(value));
  EXPECT_EQ(floats_of(folder / "u", "fc1.weight"), expected);
  for (const std::string name : {"half.weight", "brain.weight", "double.weight", "fc1.bias"}) {
    EXPECT_EQ(tensor_bytes_of(folder / "u", name), tensor_bytes_of(sparse, name)) << name;
  }
  const Checkpoint checkpoint = Checkpoint::open(folder / "p");
  const PackedCheckpoint packed(checkpoint);
  for (const LogicalTensor& tensor : packed.tensors()) {
    if (tensor.info.name != "fc1.weight") continue;
    EXPECT_EQ(packed.matrix(tensor).value_type(), Precision::kBf16);
  }
}

// Kept weights of any bits: NaNs with payloads, signalling ones, infinities, zeros of both signs.
TEST(Pack, EveryBitOfAKeptWeightComesBack) {
  const ScratchFolder folder;
  const std::string file = folder / "f";
  std::vector<TensorInfo> infos = {{"a.weight", Dtype::kBf16, {1, 8}, 0, 0},
                                   {"b.weight", Dtype::kF16, {1, 8}, 0, 0},
                                   {"c.weight", Dtype::kF32, {1, 8}, 0, 0}};
  const std::vector<uint16_t> a = {0x7f81, 0, 0, 0xff80, 0x8000, 0, 0x0001, 0},
                              b = {0, 0x7c01, 0xfe55, 0, 0x8000, 0x8000, 0, 0};
  const std::vector<uint32_t> c = {0x7f800001, 0xffc12345, 0, 0, 0, 0x80000000, 0, 0x80000000};
  {
    SafetensorsWriter writer(file, infos, {});
    writer.write("a.weight", 0, std::as_bytes(std::span(a)));
    writer.write("b.weight", 0, std::as_bytes(std::span(b)));
    writer.write("c.weight", 0, std::as_bytes(std::span(c)));
    writer.commit();
  }
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--values", "fp32"}, {"--format", "sparse-24-bitmask"}}) {
    std::vector<std::string> args = {"pack",      file,  folder / "p", "--any-size",
                                     "--pattern", "2:4", "--json"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Outcome outcome = run(args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json report = outcome.json();
    for (const Json& row : report["tensors"]) EXPECT_EQ(row["negative_zeros_lost"], 0);
    ASSERT_EQ(run({"unpack", folder / "p", folder / "u"}).code, 0);
    EXPECT_TRUE(contents(folder / "u") == contents(file));
  }
}

TEST(Pack, NegativeZerosThatFindNoPlaceAreCounted) {
  const ScratchFolder folder;
  std::vector<float> weights = {1, -0.0f, 2, -0.0f, -0.0f, -0.0f, 3, 0};
  write_file(folder / "f", {{"a.weight", Dtype::kF32, {1, 8}, weights}});
  const Outcome told = run({"pack", folder / "f", folder / "p", "--any-size", "--pattern", "2:4"});
  ASSERT_EQ(told.code, 0) << told.err;
  EXPECT_TRUE(contains(told.out, "3 negative zeros")) << told.out;
  const Outcome outcome =
      run({"pack", folder / "f", folder / "p", "--any-size", "--pattern", "2:4", "--json"});
  EXPECT_EQ(outcome.json()["tensors"][0]["negative_zeros_lost"], 3);
  ASSERT_EQ(run({"unpack", folder / "p", folder / "u"}).code, 0);
  weights = {1, 0, 2, 0, -0.0f, 0, 3, 0};
  const std::string back = tensor_bytes_of(folder / "u", "a.weight");
  EXPECT_EQ(std::memcmp(back.data(), weights.data(), 32), 0);
}

TEST(Pack, ByMagnitudeIsMaskThenPack) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  for (const std::string pattern : {"2:4", "1:4x2", "5:7"}) {
    ASSERT_EQ(run({"mask", model, folder / "m", "--pattern", pattern, "--exclude", "double"}).code,
              0);
    ASSERT_EQ(run({"pack", folder / "m", folder / "a", "--any-size"}).code, 0);
    const Outcome outcome =
        run({"pack", model, folder / "b", "--any-size", "--pattern", pattern, "--by-magnitude"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(contents(folder / "a") == contents(folder / "b")) << pattern;
  }
}

TEST(Pack, NumberOfThreadsDoesNotMatter) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  for (const std::string threads : {"1", "2", "3"}) {
    ASSERT_EQ(run({"pack", model, folder / threads, "--any-size", "--pattern", "2:4",
                   "--by-magnitude", "--threads", threads})
                  .code,
              0);
    EXPECT_TRUE(contents(folder / threads) == contents(folder / "1"));
  }
}

TEST(Pack, WithoutAPatternThePlanSays) {
  const ScratchFolder folder;
  const std::string model = write_model(folder);
  ASSERT_EQ(run({"mask", model, folder / "a", "--pattern", "4:8", "--include", "fc1"}).code, 0);
  ASSERT_EQ(run({"mask", folder / "a", folder / "b", "--pattern", "2:4", "--include", "conv",
                 "--transposable"})
                .code,
            0);
  const Outcome outcome = run({"pack", folder / "b", folder / "p", "--any-size", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json report = outcome.json();
  ASSERT_EQ(report["tensors"].size(), 2u);
  EXPECT_EQ((*row_of(report, "fc1.weight"))["pattern"], "4:8");
  EXPECT_EQ((*row_of(report, "conv.weight"))["pattern"], "2:4");
  // The plan stays: the packed file is checked along both axes where both are promised.
  const Outcome checked = run({"check", folder / "p", "--json"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_EQ((*row_of(checked.json(), "conv.weight"))["violations_out"], 0);
  EXPECT_EQ((*row_of(checked.json(), "fc1.weight"))["violations_out"], nullptr);

  const Outcome one =
      run({"pack", folder / "b", folder / "p", "--any-size", "--exclude", "conv", "--json"});
  EXPECT_EQ(one.json()["tensors"].size(), 1u);
  const Outcome none =
      run({"pack", folder / "b", folder / "q", "--any-size", "--format", "sparse-24-bitmask"});
  expect_one_line(none, 1, {"no tensor to pack"});

  // A plan in other words, and for tensors that are gone, is nobody's to rewrite.
  write_file(folder / "f", {{"a.weight", Dtype::kF32, {1, 4}, {0, 1, 0, 0}}},
             {{"weft.sparsity",
               R"({ "version": 1, "tensors": {"a.weight": {"axis": "in", "pattern": "1:4"},)"
               R"( "gone": {"axis": "in", "pattern": "1:4"}}})"}});
  ASSERT_EQ(run({"pack", folder / "f", folder / "p", "--any-size"}).code, 0);
  ASSERT_EQ(run({"unpack", folder / "p", folder / "u"}).code, 0);
  EXPECT_TRUE(contents(folder / "u") == contents(folder / "f"));

  write_file(folder / "out",
             {{"a.weight", Dtype::kF32, {4, 4}, {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}},
             {{"weft.sparsity",
               R"({"version":1,"tensors":{"a.weight":{"pattern":"1:4","axis":"out"}}})"}});
  expect_one_line(run({"pack", folder / "out", folder / "q", "--any-size"}), 1,
                  {"along outputs only"});
}

TEST(Pack, RefusesWhatIsNotSparse) {
  const ScratchFolder folder;
  std::vector<float> weights(16 * 8, 0.0f);
  weights[9 * 8 + 4] = weights[9 * 8 + 6] = weights[9 * 8 + 7] = 1;
  write_file(folder / "f", {{"first.weight", Dtype::kF32, {4, 4}, std::vector<float>(16)},
                            {"a.weight", Dtype::kF32, {16, 8}, weights}});
  for (const std::string format : {"weft", "sparse-24-bitmask"}) {
    expect_one_line(run({"pack", folder / "f", folder / "p", "--any-size", "--pattern", "2:4",
                         "--format", format}),
                    1,
                    {folder / "f", "'a.weight'", "[9, 7]", "2:4", "weft mask", "--by-magnitude"});
  }
  weights[0] = std::numeric_limits<float>::infinity();
  write_file(folder / "g", {{"a.weight", Dtype::kF32, {16, 8}, weights}});
  expect_one_line(
      run({"pack", folder / "g", folder / "p", "--any-size", "--pattern", "2:4", "--by-magnitude"}),
      1, {"'a.weight'", "[0, 0]", "inf"});
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"f", "g"}));
}

TEST(Pack, WrongUsageIsOneLineAndExitCode2) {
  const ScratchFolder folder;
  const std::string model = write_model(folder), out = folder / "out";
  const std::vector<std::vector<std::string>> wrong = {
      {"pack"},
      {"pack", model},
      {"pack", model, out},  // no plan
      {"pack", model, out, "--pattern", "4:2"},
      {"pack", model, out, "--pattern", "2:4", "--values", "int8"},
      {"pack", model, out, "--pattern", "2:4", "--format", "zip"},
      {"pack", model, out, "--by-magnitude"},
      {"pack", model, out, "--pattern", "4:8", "--format", "sparse-24-bitmask"},
      {"pack", model, out, "--pattern", "2:4", "--format", "sparse-24-bitmask", "--values", "bf16"},
      {"unpack"},
      {"unpack", model},
      {"unpack", model, out, "--pattern", "2:4"},
  };
  for (const auto& args : wrong) {
    SCOPED_TRACE(Json(args).dump());
    expect_one_line(run(args), 2, {"--help"});
  }
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"model.safetensors"});
}

TEST(Pack, WhatIsPackedIsNotPackedAgain) {
  const ScratchFolder folder;
  const std::string sparse = write_sparse_model(folder, "2:4");
  for (const std::string format : {"weft", "sparse-24-bitmask"}) {
    const std::string packed = folder / "p";
    ASSERT_EQ(run({"pack", sparse, packed, "--any-size", "--format", format}).code, 0);
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"pack", packed, folder / "q", "--pattern", "2:4"},
          {"mask", packed, folder / "q", "--pattern", "2:4"},
          {"ladder", packed}}) {
      expect_one_line(run(args), 1, {packed, "packed", "weft unpack"});
    }
  }
  expect_one_line(run({"unpack", sparse, folder / "q"}), 1, {sparse, "not packed"});
  EXPECT_FALSE(fs::exists(folder / "q"));
}

TEST(Pack, ATakenNameIsAnError) {
  const ScratchFolder folder;
  write_file(folder / "f", {{"a.weight", Dtype::kF32, {4, 4}, std::vector<float>(16)},
                            {"a.weight.weft_values", Dtype::kF32, {1}, {1}},
                            {"a.shape", Dtype::kF32, {1}, {1}}});
  expect_one_line(run({"pack", folder / "f", folder / "p", "--any-size", "--pattern", "2:4"}), 1,
                  {"a.weight.weft_values"});
  expect_one_line(run({"pack", folder / "f", folder / "p", "--any-size", "--pattern", "2:4",
                       "--format", "sparse-24-bitmask"}),
                  1, {"a.shape"});
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"f"});
}

TEST(Pack, EmptyTensorsAndOddShapes) {
  const ScratchFolder folder;
  write_file(folder / "f", {{"a.weight", Dtype::kF32, {0, 8}, {}},
                            {"b.weight", Dtype::kF32, {8, 0}, {}},
                            {"c.weight", Dtype::kF32, {2, 3, 0, 3}, {}},
                            {"d.weight", Dtype::kF32, {1, 1}, {7}},
                            {"e.weight", Dtype::kF32, {1, 3, 1, 2}, {1, 0, 0, 2, 3, 4}},
                            {"f.weight", Dtype::kBf16, {3, 0, 2, 2}, {}}});
  ASSERT_EQ(run({"pack", folder / "f", folder / "p", "--any-size", "--pattern", "2:4"}).code, 0);
  ASSERT_EQ(run({"unpack", folder / "p", folder / "u"}).code, 0);
  EXPECT_TRUE(contents(folder / "u") == contents(folder / "f"));
  EXPECT_EQ(run({"check", folder / "p"}).code, 0);
  EXPECT_EQ(run({"info", folder / "p"}).code, 0);
}

TEST(Pack, ShardedInShardedOut) {
  const ScratchFolder folder;
  fs::create_directory(folder / "in");
  write_file(folder / "in/m-1.safetensors", {{"a.weight", Dtype::kF32, {32, 8}, gaussian(256)}});
  write_file(folder / "in/m-2.safetensors", {{"b.weight", Dtype::kF32, {32, 8}, gaussian(256, 1)},
                                             {"b.bias", Dtype::kF32, {8}, gaussian(8)}});
  put(folder / "in/m.safetensors.index.json",
      R"({"metadata": {"total_size": 2080}, "weight_map": {"a.weight": "m-1.safetensors",)"
      R"("b.weight": "m-2.safetensors", "b.bias": "m-2.safetensors"}})");
  ASSERT_EQ(run({"mask", folder / "in", folder / "sparse", "--pattern", "2:4"}).code, 0);
  for (const std::string format : {"weft", "sparse-24-bitmask"}) {
    const Outcome outcome =
        run({"pack", folder / "sparse", folder / "packed", "--any-size", "--format", format});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json index =
        Json::parse(contents(folder / "packed/m.safetensors.index.json"), "the index");
    const bool weft = format == "weft";
    EXPECT_EQ(index["metadata"]["total_size"], Checkpoint::open(folder / "packed").bytes());
    EXPECT_EQ(index["weight_map"][weft ? "b.weight.weft_values" : "b.compressed"],
              "m-2.safetensors");
    EXPECT_EQ(run({"check", folder / "packed"}).code, 0);
    ASSERT_EQ(run({"unpack", folder / "packed", folder / "back"}).code, 0);
    for (const std::string& name : names_in(folder / "sparse")) {
      EXPECT_TRUE(contents(folder / "back" / name) == contents(folder / "sparse" / name)) << name;
    }
  }
  expect_one_line(run({"pack", folder / "sparse", folder / "p.safetensors"}), 1, {"sharded"});
}

TEST(Pack, InfoAndCheckSeeThePackedTensors) {
  const ScratchFolder folder;
  const std::string sparse = write_sparse_model(folder, "2:4"), packed = folder / "p";
  ASSERT_EQ(run({"pack", sparse, packed, "--any-size"}).code, 0);
  const Json info = run({"info", packed, "--json"}).json();
  const Json& row = *row_of(info, "fc1.weight");
  EXPECT_EQ(row["packed"], "2:4");
  EXPECT_EQ(row["shape"], Json({24, 40}));
  EXPECT_EQ(row["density"], 0.5);
  EXPECT_LT(row["bytes"].get<double>(), 24 * 40 * 4);
  EXPECT_EQ((*row_of(info, "fc1.bias"))["packed"], nullptr);
  EXPECT_TRUE(contains(run({"info", packed}).out, "4 packed"));
  EXPECT_EQ(run({"check", packed, "--json"}).json()["tensors"].size(), 5u);  // double.weight too

  // Without a plan, what is packed is checked by the pattern it is packed with.
  write_file(folder / "f", {{"a.weight", Dtype::kF32, {1, 4}, {1, 0, 0, 2}}});
  ASSERT_EQ(run({"pack", folder / "f", packed, "--any-size", "--pattern", "3:4"}).code, 0);
  const Outcome checked = run({"check", packed, "--json"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_EQ(checked.json()["pattern"], "3:4");
  EXPECT_EQ(run({"check", packed, "--pattern", "1:4"}).code, 1);
}

TEST(Unpack, ABrokenFileLeavesNothingBehind) {
  const ScratchFolder folder;
  const std::string sparse = write_sparse_model(folder, "2:4"), packed = folder / "p";
  ASSERT_EQ(run({"pack", sparse, packed, "--any-size"}).code, 0);
  std::string bytes = contents(packed);
  bytes.back() = '\xff';  // an index of the last tensor
  put(packed, bytes);
  const std::set<std::string> before = names_in(folder.path());
  expect_one_line(run({"unpack", packed, folder / "u"}), 1, {packed, ".weight'", "unused slot"});
  expect_one_line(run({"info", packed}), 1, {packed, ".weight'"});
  bytes.resize(bytes.size() - 1);
  put(packed, bytes);
  expect_one_line(run({"unpack", packed, folder / "u"}), 1, {packed, "truncated"});
  EXPECT_EQ(names_in(folder.path()), before);
}

TEST(Pack, MemoryDoesNotGrowWithTheCheckpoint) {
  if (emulated()) GTEST_SKIP() << "the peak memory would be the emulator's";
  if (sanitized()) GTEST_SKIP() << "its own memory would hide what is measured";
  const ScratchFolder folder;
  const std::string big = folder / "big.safetensors", packed = folder / "p", back = folder / "u";
  ASSERT_EQ(run({"synth", big, "--width", "512", "--size", "100MB"}).code, 0);
  const Outcome outcome = run({"pack", big, packed, "--pattern", "2:4", "--by-magnitude"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LT(outcome.peak_bytes, 50'000'000) << "of a checkpoint of 100 MB";
  const Outcome unpacked = run({"unpack", packed, back});
  ASSERT_EQ(unpacked.code, 0) << unpacked.err;
  EXPECT_LT(unpacked.peak_bytes, 50'000'000) << "of a checkpoint of 100 MB";
}

}  // namespace
}  // namespace weft::test
