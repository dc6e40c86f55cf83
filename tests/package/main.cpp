// Finds a mask, multiplies with what it keeps and trains a layer for a step, through the installed
// headers and libraries only.
#include <cstdio>
#include <vector>

#include "weft/checkpoint/safetensors.h"
#include "weft/core/version.h"
#include "weft/kernel/kernels.h"
#include "weft/layer/linear_layer.h"
#include "weft/mask/solver.h"

namespace {

bool multiplies() {
  const std::vector<float> weights = {4, 1, 3, 2, 2, 3, 1, 4, 1, 4, 2, 3, 3, 2, 4, 1};
  const weft::Mask mask = weft::find_mask(weft::solver("exact"), weights.data(), {4, 4, 1},
                                          weft::Pattern::parse("2:4"));
  std::printf("weft %s keeps %d of 16\n", weft::kVersion, static_cast<int>(mask.count()));
  std::vector<float> kept(16), y(4);
  for (int i = 0; i < 16; ++i) kept[i] = mask.at(i / 4, i % 4) ? weights[i] : 0;
  const std::vector<float> x = {1, 1, 1, 1};
  weft::LinearCall linear;
  linear.activations = weft::MatrixView<const float>(x.data(), 1, 4);
  linear.dense = weft::MatrixView<const float>(kept.data(), 4, 4);
  linear.result = weft::MatrixView<float>(y.data(), 1, 4);
  weft::multiply(linear);
  weft::ConvCall conv;  // the same once more, of one pixel
  conv.shape = {1, 4, 1, 1, 4};
  conv.activations = x.data();
  conv.dense = kept.data();
  conv.beta = 1;
  conv.result = y.data();
  weft::multiply(conv);
  return y[0] + y[1] + y[2] + y[3] == 2 * 28 && mask.count() == 8;
}

bool trains() {
  weft::LayerSettings settings;
  settings.recipe = weft::Recipe::parse("sr-ste");
  settings.planner = std::make_shared<weft::Planner>(weft::PlanMode::kSparse, "");
  weft::LinearLayer layer(4, 4);
  layer.configure(settings);
  const std::vector<float> w = {4, 1, 3, 2, 2, 3, 1, 4, 1, 4, 2, 3, 3, 2, 4, 1}, x = {1, 1, 1, 1};
  std::vector<float> y(4);
  layer.begin_pass({w.data()}, /*training=*/true);
  layer.forward<float>(w.data(), {x.data(), 1, 4}, nullptr, {y.data(), 1, 4});
  return y[0] == 7 && y[3] == 7 && layer.state().forward.count() == 8;
}

}  // namespace

int main() {
  const auto dtype = weft::parse_dtype("BF16");
  return multiplies() && trains() && dtype && weft::is_weight_dtype(*dtype) ? 0 : 1;
}
