// Flip rates: of sparse runs, and those that a dense run counts for the masks of others.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/run/run_options.h"
#include "weft/run/run_result.h"

namespace weft::test {
namespace {

using Weights = std::map<std::string, torch::Tensor>;

// Whether a mask keeps a weight: the `keep` largest |w| of every four inputs, one row after the
// other.
std::vector<bool> top_n(const torch::Tensor& weight, int keep) {
  const torch::Tensor flat = weight.detach().abs().reshape({-1, 4}).contiguous();
  std::vector<bool> kept;
  for (int64_t group = 0; group < flat.size(0); ++group) {
    const float* w = flat.data_ptr<float>() + 4 * group;
    for (int i = 0; i < 4; ++i) {
      int larger = 0;
      for (int j = 0; j < 4; ++j) larger += w[j] > w[i];
      kept.push_back(larger < keep);
    }
  }
  return kept;
}

// The best of the masks with two of each row and column, tile by tile.
std::vector<bool> transposable_2of4(const torch::Tensor& weight) {
  std::vector<int> masks;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    bool right = true;
    for (int i = 0; i < 4 && right; ++i) {
      int row = 0, col = 0;
      for (int j = 0; j < 4; ++j) {
        row += bits >> (4 * i + j) & 1;
        col += bits >> (4 * j + i) & 1;
      }
      right = row == 2 && col == 2;
    }
    if (right) masks.push_back(bits);
  }
  EXPECT_EQ(masks.size(), 90u);
  const torch::Tensor w = weight.detach().abs().to(torch::kDouble).contiguous();
  const int64_t cols = w.size(1);
  std::vector<bool> kept(static_cast<size_t>(w.numel()));
  for (int64_t row = 0; row < w.size(0); row += 4) {
    for (int64_t col = 0; col < cols; col += 4) {
      double best = -1.0;
      int chosen = 0;
      for (const int bits : masks) {
        double sum = 0.0;
        for (int i = 0; i < 16; ++i) {
          if (bits >> i & 1) sum += w.data_ptr<double>()[(row + i / 4) * cols + col + i % 4];
        }
        if (sum > best) best = sum, chosen = bits;
      }
      for (int i = 0; i < 16; ++i) {
        kept[static_cast<size_t>((row + i / 4) * cols + col + i % 4)] = chosen >> i & 1;
      }
    }
  }
  return kept;
}

using MaskOf = std::function<std::vector<bool>(const std::string& layer, const torch::Tensor&)>;

// Bits that differ per weight, from one of these weights to the other.
double flips_between(const Weights& before, const Weights& after,
                     const std::vector<std::string>& layers, const MaskOf& mask_of) {
  int64_t changed = 0, weights = 0;
  for (const std::string& layer : layers) {
    const std::vector<bool> old_mask = mask_of(layer, before.at(layer + ".weight"));
    const std::vector<bool> new_mask = mask_of(layer, after.at(layer + ".weight"));
    for (size_t i = 0; i < old_mask.size(); ++i) changed += old_mask[i] != new_mask[i];
    weights += static_cast<int64_t>(old_mask.size());
  }
  return static_cast<double>(changed) / static_cast<double>(weights);
}

Weights weights_now(Model& model) {
  Weights all;
  for (const auto& each : model.named_parameters()) all[each.key()] = each.value().detach().clone();
  return all;
}

// Every kind of mask, at every step, against the count of this test, on the layers that a sparse
// run has: block 0's qkv is one of them, the embedding is no layer, the head is the last one.
TEST(DenseFlips, AreThoseThatASparseRunWouldCount) {
  const std::vector<std::string> blocks = {"blocks.0.attention.qkv", "blocks.0.attention.proj",
                                           "blocks.0.fc1", "blocks.0.fc2"};
  const MaskOf two_of_four = [](const std::string&, const torch::Tensor& w) { return top_n(w, 2); };
  const MaskOf one_of_four = [](const std::string&, const torch::Tensor& w) { return top_n(w, 1); };
  const MaskOf tiles = [](const std::string&, const torch::Tensor& w) {
    return transposable_2of4(w);
  };
  const MaskOf by_rule = [](const std::string& layer, const torch::Tensor& w) {
    return top_n(w, layer.ends_with("fc1") ? 1 : 2);
  };
  struct Case {
    std::string counted;
    MaskOf mask;
    int64_t first = 1, last = 12, every = 1;  // steps that are trained with masks
    std::vector<std::string> rules = {}, leave = {};
    bool ends = false;
  };
  const std::vector<Case> cases = {
      {"ste@2:4", two_of_four},
      {"s-ste@1:4", one_of_four},
      {"transposable+mask_every=1@2:4", tiles},
      {"t-sr-ste+mask_every=1@2:4", tiles, 1, 10},        // a dense tail of 2 steps
      {"ste+dense_head=0.3@2:4", two_of_four, 5, 12},     // masks from step 4 on
      {"ste+mask_every=3@2:4", two_of_four, 1, 12, 3},    // and held in between
      {"ste@2:4", by_rule, 1, 12, 1, {".*fc1=ste@1:4"}},  // a pattern of its own
      {"ste@2:4", two_of_four, 1, 12, 1, {".*proj=dense"}, {"blocks.0.attention.proj"}},
      {"ste@2:4", two_of_four, 1, 12, 1, {}, {}, true},
  };
  for (const Case& c : cases) {
    const ScratchFolder scratch;
    RunOptions options = text_run(scratch, "dense");
    options.flips_of = {c.counted};
    options.rules = c.rules;
    options.sparse_ends = c.ends;
    std::vector<std::string> layers;
    for (const std::string& one : blocks) {
      if (std::ranges::find(c.leave, one) == c.leave.end()) layers.push_back(one);
    }
    if (c.ends) layers.push_back("head");
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
    std::vector<Weights> weights = {weights_now(trainer.model())};
    for (int64_t i = 0; i < options.steps; ++i) {
      trainer.advance(1);
      weights.push_back(weights_now(trainer.model()));
    }
    const RunResult result = trainer.finish();
    const std::vector<Json> lines = step_lines(scratch / "run");
    ASSERT_EQ(lines.size(), 12u);
    double sum = 0.0;
    for (int64_t step = 1; step <= 12; ++step) {
      // A mask that follows every step is found after it; others before a training pass, so that
      // what is found of the weights after three steps belongs to the fourth.
      const int64_t found = c.every == 1 ? step : step - 1;
      const bool counts = step >= c.first && step <= c.last && found > 0 && found % c.every == 0;
      const double expected =
          counts ? flips_between(weights[static_cast<size_t>(found - c.every)],
                                 weights[static_cast<size_t>(found)], layers, c.mask)
                 : 0.0;
      const Json& line = lines[static_cast<size_t>(step - 1)];
      EXPECT_NEAR(line["dense_flips"][c.counted].get<double>(), expected, 1e-12)
          << c.counted << " at step " << step;
      EXPECT_EQ(line["flip_rate"], line["dense_flips"][c.counted]);
      sum += expected;
    }
    EXPECT_GT(sum, 0.0) << c.counted;
    const double mean = sum / static_cast<double>(c.last - c.first + 1);
    EXPECT_NEAR(result.dense_flips.at(c.counted), mean, 1e-12) << c.counted;
    EXPECT_EQ(result.flip_rate, result.dense_flips.at(c.counted));
    EXPECT_EQ(read_run_result(scratch / "run").dense_flips, result.dense_flips);

    // The layers are those of the sparse run.
    options.recipe = c.counted.substr(0, c.counted.find('@'));
    options.pattern = c.counted.substr(c.counted.find('@') + 1);
    options.flips_of.clear();
    Trainer sparse = Trainer::begin(scratch / "sparse", make_parts(options));
    sparse.advance(1);
    const Json named = step_lines(scratch / "sparse").at(0)["layers"];
    EXPECT_EQ(named.size(), layers.size()) << c.counted;
    for (const std::string& layer : layers) EXPECT_TRUE(named.contains(layer)) << layer;
  }
}

TEST(DenseFlips, GoOnWhereTheyWere) {
  const ScratchFolder scratch;
  RunOptions options = small_run("mlp", "dense");
  options.pattern = "1:4";
  options.flips_of = {"ste", "ste+mask_every=5@2:4", "sr-ste+order_every=3@2:4x2"};
  const auto whole = scratch / "whole", pieces = scratch / "pieces";
  finished_model(whole, Trainer::begin(whole, make_parts(options)));
  interrupted_model(pieces, options, {3, 4, 5});
  const RunResult expected = read_run_result(whole);
  EXPECT_EQ(read_run_result(pieces).dense_flips, expected.dense_flips);
  EXPECT_EQ(expected.dense_flips.size(), 3u);
  EXPECT_TRUE(expected.dense_flips.contains("ste@1:4")) << "at the pattern of the run";
  for (const auto& [name, rate] : expected.dense_flips) EXPECT_GT(rate, 0.0) << name;
  EXPECT_FALSE(contains(contents(whole / "model.safetensors"), "flips")) << "not exported";
}

TEST(DenseFlips, OfWhatHasNoMasksOrOnlyScoresAreRefused) {
  RunOptions options;
  const OptionField& field = option_field("flips-of", "test");
  EXPECT_TRUE(contains(message_of([&] { field.set(options, {"dense"}); }), "has no masks"));
  EXPECT_TRUE(contains(message_of([&] { field.set(options, {"lbc@2:4"}); }), "scores"));
  EXPECT_TRUE(counted_flips(options).empty());
  options.dense_flips = true;
  EXPECT_TRUE(counted_flips(options).empty()) << "its own masks are counted";
  options.recipe = "dense";
  ASSERT_EQ(counted_flips(options).size(), 1u);
  EXPECT_EQ(counted_flips(options)[0].str(), "ste@2:4");
}

// 12 steps of which some are dense: the mean is over the others.
TEST(Trainer, MeanFlipRatesAreOfTheSparsePhase) {
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {"ste", 12}, {"t-sr-ste+mask_every=1", 10}, {"ste+dense_head=0.5+dense_tail=0.25", 3}};
  for (const auto& [recipe, steps] : cases) {
    const ScratchFolder scratch;
    const RunOptions options = small_run("mlp", recipe);
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
    trainer.advance(options.steps);
    const RunResult result = trainer.finish();
    int64_t changed = 0;
    for (const Json& line : step_lines(scratch / "run")) {
      changed += line["layers"]["hidden1"]["changed_bits"].get<int64_t>();
    }
    EXPECT_GT(changed, 0) << recipe;
    EXPECT_NEAR(result.flip_rate,
                static_cast<double>(changed) / static_cast<double>(16 * 16 * steps), 1e-12)
        << recipe;
  }
}

}  // namespace
}  // namespace weft::test
