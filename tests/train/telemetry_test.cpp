// The telemetry of a layer against its masks and weights, counted one by one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <bit>

#include "tests/layers.h"

namespace weft {
namespace {

using test::Kind;
using test::kind_name;
using test::settings_of;
using test::Training;

// Calls body(kept, |w|) for every weight, in order.
template <typename Body>
void for_each_weight(const Mask& mask, const torch::Tensor& weight, Body body) {
  const torch::Tensor sizes = weight.detach().abs().reshape({mask.rows(), mask.cols()});
  const auto at = sizes.accessor<float, 2>();
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.cols(); ++c) body(mask.at(r, c), static_cast<double>(at[r][c]));
  }
}

int64_t count_of(const Mask& mask, const torch::Tensor& weight) {
  int64_t count = 0;
  for_each_weight(mask, weight, [&](bool kept, double) { count += kept ? 1 : 0; });
  return count;
}

TEST(Telemetry, IsWhatTheMasksAndWeightsSay) {
  for (const Kind kind : {Kind::kLinear, Kind::kConv}) {
    for (const char* recipe : {"ste", "transposable+mask_every=1", "bi-mask", "lbc", "s-ste"}) {
      SCOPED_TRACE(std::string(kind_name(kind)) + " " + recipe);
      LayerSettings settings = settings_of(recipe, "2:4");
      settings.telemetry = true;
      Training run(kind, settings);
      LayerModule& layer = *run.layer;
      const auto numel = static_cast<double>(layer.weight.numel());
      Mask before;
      int64_t flips = 0;
      for (int step = 0; step < 4; ++step) {
        run.optimizer.zero_grad();
        run.pass(0, 1.0);
        const LayerState& state = layer.state();
        const LayerTelemetry t = layer.telemetry(/*costly=*/true);
        int64_t changed = 0;
        double kept_size = 0.0, all = 0.0;
        for (int64_t r = 0; r < state.forward.rows() && step > 0; ++r) {
          for (int64_t c = 0; c < state.forward.cols(); ++c) {
            changed += before.at(r, c) != state.forward.at(r, c) ? 1 : 0;
          }
        }
        for_each_weight(state.forward, layer.weight, [&](bool kept, double size) {
          all += size;
          if (kept) kept_size += size;
        });
        const auto kept = static_cast<double>(count_of(state.forward, layer.weight));
        EXPECT_EQ(t.changed_bits, changed);
        EXPECT_DOUBLE_EQ(t.flip_rate, static_cast<double>(changed) / numel);
        EXPECT_DOUBLE_EQ(t.forward_density, kept / numel);
        EXPECT_NEAR(t.retained, kept_size / all, 1e-6);
        const bool bi_mask = state.backward.rows() > 0;
        const double backward =
            bi_mask ? static_cast<double>(count_of(state.backward, layer.weight)) : kept;
        EXPECT_DOUBLE_EQ(t.backward_density, backward / numel);
        EXPECT_DOUBLE_EQ(t.backward_kept, backward / kept);
        EXPECT_EQ(t.cosine.has_value(), bi_mask);
        if (layer.scores.defined()) {
          EXPECT_DOUBLE_EQ(t.figure("alive"), static_cast<double>(state.alive.count()) /
                                                  static_cast<double>(state.alive.rows()));
        }
        before = state.forward;
        flips += changed;
        weft::step(layer, run.optimizer);
      }
      EXPECT_TRUE(flips > 0 || layer.scores.defined());
    }
  }
}

TEST(Telemetry, CountsFlips) {
  LayerSettings settings = settings_of("ste", "2:4");
  settings.telemetry = true;
  Training run(Kind::kLinear, settings);
  run.step();
  run.step();
  const LayerTelemetry moving = run.layer->telemetry();
  EXPECT_GT(moving.flip_rate, 0.0);
  EXPECT_LE(moving.flip_rate, 1.0);
  EXPECT_EQ(moving.changed_bits % 2, 0);  // one in, one out
  const Mask before = run.layer->state().forward;
  run.step();
  for (int64_t r = 0; r < before.rows(); ++r) {
    for (int64_t c = 0; c < before.cols(); c += 4) {
      const uint64_t flips = before.bits(r, c, 4) ^ run.layer->state().forward.bits(r, c, 4);
      EXPECT_EQ(std::popcount(flips) % 2, 0);
    }
  }
  EXPECT_EQ(moving.forward_density, 0.5);
  EXPECT_GT(moving.retained, 0.5);
  EXPECT_EQ(moving.plan_text(), "sparse/sparse/dense");

  Training frozen(Kind::kLinear, settings, 0.0);
  frozen.step();
  frozen.step();
  EXPECT_EQ(frozen.layer->telemetry().changed_bits, 0);
}

TEST(Telemetry, KnowsWhatARecipeHolds) {
  LayerSettings settings = settings_of("bi-mask", "2:4");
  settings.telemetry = true;
  Training bi(Kind::kLinear, settings);
  bi.step();
  EXPECT_LT(bi.layer->telemetry().backward_kept, 1.0);
  EXPECT_GT(bi.layer->telemetry().backward_kept, 0.75);
  EXPECT_GT(bi.layer->telemetry().cosine.value(), 0.8);
  EXPECT_LT(bi.layer->telemetry().cosine.value(), 1.0);
  Training lbc(Kind::kLinear, settings_of("lbc", "2:4"));
  EXPECT_EQ(lbc.layer->telemetry().figure("alive"), 0.0);  // not begun
  lbc.step();
  EXPECT_GT(lbc.layer->telemetry().figure("alive"), 1.0);
  Training soft(Kind::kLinear, settings_of("s-ste", "2:4"));
  soft.step();
  EXPECT_GT(soft.layer->telemetry().figure("beta"), 1.0);
  EXPECT_EQ(soft.layer->telemetry().plan_text(), "sparse/sparse/sparse");
}

}  // namespace
}  // namespace weft
