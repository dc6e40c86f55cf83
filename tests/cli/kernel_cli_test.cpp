// weft kernels, weft plan and the benchmarks of kernels as their users meet them.
#include <gtest/gtest.h>

#include <set>

#include "tests/program.h"
#include "tests/support.h"

namespace weft::test {
namespace {

[[maybe_unused]] const int kOneThread = ::setenv("OMP_NUM_THREADS", "1", 1);

// Calibrations go to a folder of their own, not to that of the user.
class KernelCommands : public ::testing::Test {
 protected:
  KernelCommands() { ::setenv("XDG_CACHE_HOME", (cache_ / "").c_str(), 1); }
  ScratchFolder cache_;
};

TEST_F(KernelCommands, KernelsAreListed) {
  const Outcome outcome = run({"kernels", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::set<std::string> names;
  const Json report = outcome.json();
  for (const Json& kernel : report["kernels"]) {
    const auto name = kernel["name"].get<std::string>();
    names.insert(name);
    EXPECT_EQ(kernel["compute"], contains(name, "tile") ? "bf16" : "fp32");
    EXPECT_EQ(kernel["layer"], contains(name, "conv") ? "conv" : "linear");
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"panel", "stream", "masked", "dense", "tile", "dense tile",
                                   "conv panel", "conv masked", "conv dense"}));
  const std::string text = run({"kernels"}).out;
  EXPECT_TRUE(contains(text, "instruction set")) << text;
  EXPECT_TRUE(contains(text, "tile unit: ")) << text;
}

TEST_F(KernelCommands, TileUnitsAreForcedAndPlansSayWhichOneMultiplies) {
  ::setenv("WEFT_TILES", "emulated", 1);
  EXPECT_EQ(run({"kernels", "--json"}).json()["tile_unit"], "emulated");
  const std::vector<std::string> plan = {"plan",   "--shape",        "32x64x64", "--pattern",
                                         "2:4x16", "--mode",         "sparse",   "--precision",
                                         "bf16",   "--transposable", "--json"};
  for (const Json& product : run(plan).json()) {
    EXPECT_EQ(product["compute"], "bf16");
    EXPECT_EQ(product["arithmetic"], "bf16 on emulated");
  }
  ::setenv("WEFT_TILES", "none", 1);
  for (const Json& product : run(plan).json()) EXPECT_EQ(product["compute"], "fp32");
  ::setenv("WEFT_TILES", "npu", 1);
  const Outcome impossible = run({"kernels"});
  EXPECT_EQ(impossible.code, 1);
  EXPECT_TRUE(contains(impossible.err, "WEFT_TILES: tile unit 'npu' is not available here"))
      << impossible.err;
  ::unsetenv("WEFT_TILES");
  EXPECT_EQ(run({"plan", "--shape", "8x8x8", "--precision", "fp16"}).code, 2);
}

// It costs a second the next time, and is no reason to fail.
TEST_F(KernelCommands, ACacheThatCannotBeWrittenIsSaidInALine) {
  put(cache_ / "file", "");
  ::setenv("XDG_CACHE_HOME", (cache_ / "file").c_str(), 1);
  const Outcome outcome = run({"plan", "--shape", "64x64x64", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string line =
      "weft: timings are not kept: " + (cache_ / "file/weft").string() + ": cannot make the folder";
  const size_t at = outcome.err.find(line);  // a busy machine has a line of its own
  ASSERT_NE(at, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(line, at + 1), std::string::npos);
  EXPECT_EQ(outcome.json().size(), 3u);
}

// Where nothing is pruned there is nothing to choose, but still two products to time.
TEST_F(KernelCommands, APatternThatKeepsAllIsTimedLikeAnyOther) {
  for (const Json& product :
       run({"plan", "--shape", "32x32x32", "--pattern", "1:1", "--json"}).json()) {
    EXPECT_EQ(product["choice"], "dense");
    EXPECT_LT(product["measured_sparse_ms"].get<double>(), 1e6);
  }
  const Outcome bench = run({"bench", "gemm", "--pattern", "1:1", "--shape", "32x32x32", "--rounds",
                             "1", "--threads", "1", "--op", "fwd", "--json"});
  EXPECT_EQ(bench.code, 0) << bench.err;
}

TEST_F(KernelCommands, BenchComparesBf16WithTheBestDenseProductOfIt) {
  ::setenv("WEFT_TILES", "emulated", 1);
  const Outcome outcome =
      run({"bench", "gemm", "--precision", "bf16", "--shape", "32x64x64", "--pattern", "2:4x16",
           "--pattern", "2:4", "--rounds", "1", "--threads", "1", "--json"});
  ::unsetenv("WEFT_TILES");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const Json& record : outcome.json()) {
    const bool tiles = record["pattern"] == "2:4x16" && record["op"] != "bwd_x_ragged" &&
                       record["op"] != "bwd_w_masked";
    EXPECT_EQ(record["precision"], "bf16");
    EXPECT_EQ(record["arithmetic"], tiles ? "bf16 on emulated" : "bf16 in fp32");
    const bool packed = record["op"] != "bwd_w_masked";
    EXPECT_EQ(record["layout"], !packed ? Json(nullptr) : Json(tiles ? "tile" : "panel"));
    EXPECT_GT(record["dense_fp32_ms"].get<double>(), 0.0);
    EXPECT_TRUE(contains(record["dense_peer"].get<std::string>(), "bf16"));
  }
}

// Where the CPU has bf16 arithmetic, oneDNN's product of it is checked, too: deep enough that
// rounding its operands, but not those it is compared with, would be seen.
TEST_F(KernelCommands, BenchChecksEveryDenseProductOfBf16) {
  const Outcome outcome =
      run({"bench", "gemm", "--precision", "bf16", "--shape", "64x768x128", "--pattern", "2:4x16",
           "--op", "fwd", "--op", "bwd_x", "--op", "bwd_w", "--rounds", "1", "--threads", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(KernelCommands, PlanExplainsThreeProducts) {
  const Outcome outcome = run({"plan", "--shape", "64x32x48", "--pattern", "1:4", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json plan = outcome.json();
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0]["product"], "fwd");
  EXPECT_EQ(plan[1]["product"], "bwd_x_ragged");
  EXPECT_EQ(plan[2]["product"], "bwd_w");
  for (const Json& row : plan) {
    EXPECT_GT(row["predicted_dense_ms"].get<double>(), 0) << row;
    EXPECT_GT(row["measured_sparse_ms"].get<double>(), 0) << row;
    EXPECT_TRUE(row["choice"] == "dense" || row["choice"] == "sparse") << row;
  }
  EXPECT_TRUE(std::filesystem::exists(cache_ / "weft/timings.json"));
}

TEST_F(KernelCommands, PlanTakesConvolutionsBesideLayers) {
  const std::string conv = "2x8x6x6:12x3x3,stride=2x1,pad=1";
  const Outcome outcome = run({"plan", "--shape", "16x16x16", "--conv", conv, "--pattern", "1:4",
                               "--transposable", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json plan = outcome.json();
  ASSERT_EQ(plan.size(), 6u);
  EXPECT_EQ(plan[0]["shape"], "16x16x16");
  EXPECT_EQ(plan[4]["product"], "bwd_x");
  for (size_t i = 3; i < 6; ++i) {
    EXPECT_EQ(plan[i]["shape"], conv);
    EXPECT_EQ(plan[i]["decided_by"], "measurement");
    EXPECT_TRUE(plan[i]["predicted_dense_ms"].is_null());
    EXPECT_GT(plan[i]["measured_dense_ms"].get<double>(), 0);
    EXPECT_TRUE(contains(plan[i]["why"].get<std::string>(), "packing"));
  }
  const Outcome masked =
      run({"plan", "--shape", "16x16x16", "--conv", conv, "--masked-gradient", "--json"});
  ASSERT_EQ(masked.code, 0) << masked.err;
  EXPECT_EQ(masked.json()[2]["product"], "bwd_w_masked");
  EXPECT_EQ(masked.json()[5]["product"], "bwd_w_masked");
  const std::string file = cache_ / "conv.json";
  ASSERT_EQ(run({"plan", "--conv", conv, "--mode", "sparse", "--save", file}).code, 0);
  const Outcome again = run({"plan", "--conv", conv, "--saved", file, "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  for (const Json& row : again.json()) EXPECT_EQ(row["why"], "saved");
  EXPECT_TRUE(contains(run({"plan", "--conv", conv}).out, conv));
}

TEST_F(KernelCommands, PlansAreSavedAndRepeated) {
  const std::string file = cache_ / "plan.json";
  ASSERT_EQ(run({"plan", "--shape", "16x16x16", "--mode", "sparse", "--save", file}).code, 0);
  const Outcome again = run({"plan", "--shape", "16x16x16", "--saved", file, "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  for (const Json& row : again.json()) {
    EXPECT_EQ(row["choice"], "sparse");
    EXPECT_EQ(row["why"], "saved");
  }
  const Outcome other = run({"plan", "--shape", "8x8x8", "--saved", file});
  EXPECT_EQ(other.code, 1);
  EXPECT_TRUE(contains(other.err, "8x8x8")) << other.err;
}

TEST_F(KernelCommands, BenchGemmHasEveryField) {
  const Outcome outcome = run({"bench", "gemm", "--shape", "32x64x48", "--shape", "2x64x48",
                               "--pattern", "2:4", "--rounds", "2", "--threads", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json records = outcome.json();
  std::set<std::string> ops;
  for (const Json& record : records) {
    ops.insert(record["op"].get<std::string>());
    for (const char* field :
         {"op", "pattern", "tokens", "ins", "outs", "threads", "isa", "dense_ms", "sparse_ms",
          "ratio", "ratio_spread", "pack_ms", "mask_ms", "dense_gflops", "peak_gflops", "plan"}) {
      EXPECT_TRUE(record.contains(field)) << field;
    }
    EXPECT_GT(record["ratio"].get<double>(), 0);
    EXPECT_LE(record["ratio_spread"][0].get<double>(), record["ratio_spread"][1].get<double>());
  }
  EXPECT_EQ(ops, (std::set<std::string>{"fwd", "bwd_x", "bwd_x_ragged", "bwd_w", "bwd_w_masked"}));
  EXPECT_EQ(records.size(), 5u + 6u);  // with two tokens, forward in fp32 and in bf16
}

TEST_F(KernelCommands, BenchConvHasEveryProduct) {
  const Outcome outcome = run({"bench", "conv", "--conv", "2x8x6x6:12x3x3,pad=1", "--pattern",
                               "2:4", "--rounds", "2", "--threads", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::set<std::string> ops;
  for (const Json& record : outcome.json()) {
    ops.insert(record["op"].get<std::string>());
    EXPECT_EQ(record["conv"], "2x8x6x6:12x3x3,pad=1");
    EXPECT_EQ(record["threads"], 1);
    const auto peer = record["dense_peer"].get<std::string>();
    EXPECT_TRUE(peer == "oneDNN" || peer == "oneDNN, blocked" || peer == "weft") << peer;
    // What is kept is found once for a mask, not in every step.
    const double pack = record["op"] == "bwd_w_masked" ? 0 : record["pack_ms"].get<double>();
    EXPECT_EQ(record["plan"] == "sparse",
              record["sparse_ms"].get<double>() + pack < record["dense_ms"].get<double>());
    EXPECT_GT(record["ratio"].get<double>(), 0);
    EXPECT_GT(record["pack_ms"].get<double>(), 0);
    EXPECT_LE(record["ratio_spread"][0].get<double>(), record["ratio_spread"][1].get<double>());
  }
  EXPECT_EQ(ops, (std::set<std::string>{"fwd", "bwd_x", "bwd_x_ragged", "bwd_w", "bwd_w_masked"}));
}

TEST_F(KernelCommands, BenchAttentionTimesBothPasses) {
  const Outcome outcome = run({"bench", "attention", "--batch", "2", "--tokens", "70", "--heads",
                               "2", "--width", "24", "--rounds", "2", "--threads", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json records = outcome.json();
  ASSERT_EQ(records.size(), 2u);  // without a mask, and causal
  for (const Json& record : records) {
    for (const char* field : {"fwd_ms", "bwd_ms", "three_steps_ms", "ratio", "fwd_gflops"}) {
      EXPECT_GT(record[field].get<double>(), 0) << field;
    }
  }
  const Outcome wrong = run({"bench", "attention", "--heads", "5"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(contains(wrong.err, "not a multiple of 5 heads")) << wrong.err;
}

TEST_F(KernelCommands, WrongUsageIsNamed) {
  for (const auto& [args, words] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"plan"}, "--shape"},
           {{"plan", "--shape", "0x1x1"}, "0x1x1"},
           {{"plan", "--shape", "100000x100000x8"}, "2^31"},
           {{"plan"}, "--conv"},
           {{"plan", "--conv", "8x8x8"}, "IMAGESxINSxHEIGHTxWIDTH:OUTSxKHxKW"},
           {{"plan", "--conv", "1x8x4x4:8x3x3,steps=2"}, "steps=2"},
           {{"plan", "--conv", "1x8x4x4:8x5x5"}, "more than the 4 x 4"},
           {{"plan", "--conv", "0x8x4x4:8x3x3"}, "must have an image"},
           {{"plan", "--conv", "100000x100000x4x4:8x3x3"}, "2^31"},
           {{"plan", "--shape", "8x8x8", "--mode", "fast"}, "fast"},
           {{"plan", "--shape", "8x8x8", "--pattern", "4:2"}, "4:2"},
           {{"bench", "gemm", "--op", "sideways"}, "sideways"},
           {{"bench", "conv", "--op", "sideways"}, "sideways"},
           {{"bench", "gemm", "--shape", "8x8"}, "8x8"}}) {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 2) << args[1];
    EXPECT_TRUE(contains(outcome.err, words)) << outcome.err;
  }
  const Outcome missing = run({"plan", "--shape", "8x8x8", "--saved", cache_ / "none"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_TRUE(contains(missing.err, "none: cannot open")) << missing.err;
}

}  // namespace
}  // namespace weft::test
