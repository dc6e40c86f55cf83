// Finds a mask and multiplies with what it keeps, through the installed headers and libraries only.
#include <cstdio>
#include <vector>

#include "weft/checkpoint/safetensors.h"
#include "weft/core/version.h"
#include "weft/kernel/conv/dense_conv.h"
#include "weft/kernel/dense/dense.h"
#include "weft/mask/solver.h"

int main() {
  const std::vector<float> weights = {4, 1, 3, 2, 2, 3, 1, 4, 1, 4, 2, 3, 3, 2, 4, 1};
  const weft::Mask mask = weft::find_mask(weft::solver("exact"), weights.data(), {4, 4, 1},
                                          weft::Pattern::parse("2:4"));
  std::printf("weft %s keeps %d of 16\n", weft::kVersion, static_cast<int>(mask.count()));
  const auto dtype = weft::parse_dtype("BF16");
  std::vector<float> kept(16), y(4);
  for (int i = 0; i < 16; ++i) kept[i] = mask.at(i / 4, i % 4) ? weights[i] : 0;
  const std::vector<float> x = {1, 1, 1, 1};
  weft::dense_forward({x.data(), 1, 4}, {kept.data(), 4, 4}, nullptr, 0, {y.data(), 1, 4});
  weft::dense_conv_forward({1, 4, 1, 1, 4}, x.data(), kept.data(), nullptr, 1, y.data());
  const float sum = y[0] + y[1] + y[2] + y[3];
  return sum == 2 * 28 && mask.count() == 8 && dtype && weft::is_weight_dtype(*dtype) ? 0 : 1;
}
