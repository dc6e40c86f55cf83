// Finds a mask and writes it down, through the installed headers and libraries only.
#include <cstdio>
#include <vector>

#include "weft/checkpoint/safetensors.h"
#include "weft/core/version.h"
#include "weft/mask/solver.h"

int main() {
  const std::vector<float> weights = {4, 1, 3, 2, 2, 3, 1, 4, 1, 4, 2, 3, 3, 2, 4, 1};
  const weft::Mask mask = weft::find_mask(weft::solver("exact"), weights.data(), {4, 4, 1},
                                          weft::Pattern::parse("2:4"));
  std::printf("weft %s keeps %d of 16\n", weft::kVersion, static_cast<int>(mask.count()));
  const auto dtype = weft::parse_dtype("BF16");
  return mask.count() == 8 && dtype && weft::is_weight_dtype(*dtype) ? 0 : 1;
}
