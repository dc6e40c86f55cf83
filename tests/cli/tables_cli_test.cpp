// What commands print of a real model: tables that fit a terminal, and counts instead of lists.
#include <gtest/gtest.h>

#include "tests/cli/bert.h"
#include "tests/cli/table_text.h"
#include "tests/support.h"

namespace weft::test {
namespace {

constexpr int kLayers = 6;

std::ptrdiff_t lines_of(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

// A model in a scratch folder, and what was made of it. Names without folders: a line that ends in
// a file name is as long as that is.
class Tables : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::current_path(folder_.path());
    write_file("model.safetensors", bert_tensors(kLayers));
    write_deltas();
    ASSERT_EQ(run({"mask", "model.safetensors", "sparse.safetensors", "--pattern", "2:4"}).code, 0);
    ASSERT_EQ(run({"pack", "sparse.safetensors", "packed.safetensors"}).code, 0);
  }
  void TearDown() override { std::filesystem::current_path("/"); }

  static void write_deltas() {
    std::vector<NamedTensor> deltas;
    for (NamedTensor& tensor : bert_tensors(kLayers)) {
      if (tensor.name.starts_with("encoder.layer.0")) deltas.push_back(std::move(tensor));
    }
    write_file("delta.safetensors", deltas);
  }

  ScratchFolder folder_;
};

const std::vector<std::vector<std::string>> kCommands = {
    {"mask", "model.safetensors", "out.safetensors", "--pattern", "2:4"},
    {"mask", "model.safetensors", "out.safetensors", "--pattern", "2:4", "--transposable",
     "--solver", "greedy-keep"},
    {"check", "sparse.safetensors"},
    {"check", "sparse.safetensors", "--axis", "both"},
    {"check", "model.safetensors", "--pattern", "2:4"},
    {"convert", "model.safetensors", "out.safetensors", "--pattern", "2:4"},
    {"convert", "model.safetensors", "out.safetensors", "--pattern", "auto", "--density", "0.4"},
    {"pack", "sparse.safetensors", "out.safetensors"},
    {"pack", "model.safetensors", "out.safetensors", "--pattern", "2:4", "--by-magnitude",
     "--values", "bf16"},
    {"merge", "sparse.safetensors", "delta.safetensors", "out.safetensors"},
    {"info", "model.safetensors"},
    {"info", "packed.safetensors"},
    {"diversity", "--pattern", "2:4", "--checkpoint", "model.safetensors"},
};
const std::vector<std::vector<std::string>> kOthers = {
    {"unpack", "packed.safetensors", "out.safetensors"},
    {"ladder", "model.safetensors"},
    {"diversity"},
    {"recipes"},
    {"study", "list"},
    {"study", "diversity", "--short", "--seeds", "2"},
    {"study", "approximation", "--short", "--seeds", "2"},
    {"solvers"},
    {"kernels"},
    {"plan", "--shape", "64x64x64", "--conv", "2x16x8x8:16x3x3,pad=1"},
    {"bench", "gemm", "--shape", "64x64x64", "--pattern", "2:4x16", "--rounds", "1", "--threads",
     "1"},
    {"bench", "conv", "--conv", "1x128x28x28:128x3x3,stride=2,pad=1", "--pattern", "1:4",
     "--rounds", "1", "--threads", "1"},
    {"bench", "solve", "--size", "64", "--rounds", "1"},
    {"bench", "attention", "--batch", "1", "--tokens", "16", "--heads", "2", "--width", "32",
     "--rounds", "1"},
    {"bench", "convert", "--layer", "64x64", "--samples", "100"}};

TEST_F(Tables, FitATerminalAndCountWhatIsLeftAlone) {
  const size_t all = bert_tensors(kLayers).size();
  for (const auto& command : kCommands) {
    SCOPED_TRACE(fmt::format("{} {}", command[0], command[1]));
    const std::string text = run(command).out;
    EXPECT_LE(widest_line(text), kColumns) << text;
    EXPECT_TRUE(contains(text, "--verbose lists them")) << text;
    EXPECT_FALSE(contains(text, "LayerNorm")) << text;
    EXPECT_LT(lines_of(text), 2 * static_cast<std::ptrdiff_t>(bert_weights(kLayers)) + 15) << text;

    std::vector<std::string> with = command;
    with.emplace_back("--verbose");
    const std::string verbose = run(with).out;
    EXPECT_LE(widest_line(verbose), kColumns) << verbose;
    EXPECT_TRUE(contains(verbose, "encoder.layer.5.output.LayerNorm.weight")) << verbose;
    if (command[0] != "diversity") {
      EXPECT_GE(lines_of(verbose), static_cast<std::ptrdiff_t>(all));
    }
  }
  for (const auto& command : kOthers) {
    const std::string text = run(command).out;
    EXPECT_GT(lines_of(text), 3) << command[0];
    EXPECT_LE(widest_line(text), kColumns) << text;
  }
}

TEST_F(Tables, CountByReason) {
  const std::string text = run(kCommands[0]).out;
  // Per layer six weights, eight biases and two norms; five embeddings, one with a bias; a pooler.
  const size_t all = bert_tensors(kLayers).size(), left = all - bert_weights(kLayers);
  EXPECT_TRUE(contains(text, fmt::format("{} of {} tensors left alone: name does not end in "
                                         "'weight' ({})",
                                         left, all, 8 * kLayers + 2)))
      << text;
  EXPECT_TRUE(contains(text, fmt::format("normalisation ({})", 2 * kLayers))) << text;
  EXPECT_TRUE(contains(text, "embedding (4)")) << text;
  const Outcome only = run({"mask", "model.safetensors", "out.safetensors", "--pattern", "2:4",
                            "--include", ".", "--exclude", "bias|Norm"});
  EXPECT_FALSE(contains(only.out, "normalisation")) << only.out;
  EXPECT_TRUE(contains(only.out, "excluded (")) << only.out;
}

TEST_F(Tables, HaveAllColumnsWithWide) {
  const std::string narrow = run(kCommands[0]).out;
  EXPECT_FALSE(contains(narrow.substr(0, narrow.find('\n')), "time")) << narrow;
  std::vector<std::string> command = kCommands[0];
  command.emplace_back("--wide");
  const std::string wide = run(command).out;
  for (const char* column :
       {"tensor", "shape", "density", "retained L1", "solver", "gap", "time"}) {
    EXPECT_TRUE(contains(wide.substr(0, wide.find('\n')), column)) << wide;
  }
  EXPECT_TRUE(contains(run({"recipes", "--wide"}).out, "dense for the last 0.167\n"));
  EXPECT_TRUE(contains(run({"recipes", "--wide"}).out, "lambda"));
  const std::vector<std::string> bench = {"bench", "solve", "--size", "64", "--rounds", "1"};
  EXPECT_FALSE(contains(run(bench).out, "x read"));
  std::vector<std::string> wide_bench = bench;
  wide_bench.emplace_back("--wide");
  EXPECT_TRUE(contains(run(wide_bench).out, "x read"));
}

// A name that no table has room for.
TEST_F(Tables, CutNamesThatAreTooLong) {
  const std::string name = "model.vision_tower." + std::string(100, 'x') + ".q_proj.weight";
  write_file("long.safetensors", {{name, Dtype::kF32, {8, 8}, gaussian(64)}});
  const std::string text =
      run({"mask", "long.safetensors", "out.safetensors", "--pattern", "2:4"}).out;
  EXPECT_LE(widest_line(text), kColumns) << text;
  EXPECT_TRUE(contains(text, "\nmodel.vision_tower.x")) << text;
  EXPECT_TRUE(contains(text, "x.q_proj.weight ")) << text;
  EXPECT_TRUE(contains(
      run({"mask", "long.safetensors", "out.safetensors", "--pattern", "2:4", "--wide"}).out,
      name));
}

}  // namespace
}  // namespace weft::test
