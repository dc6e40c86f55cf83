// Masks by magnitude, against sorting.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/mask/solver_checks.h"
#include "tests/weights.h"
#include "weft/mask/solver.h"

namespace weft::test {
namespace {

template <typename T>
Mask naive_magnitude(const Weights<T>& weights, const Pattern& pattern) {
  const WeightShape& shape = weights.shape;
  Mask mask(shape.outs, shape.ins);
  for (int64_t r = 0; r < shape.outs; ++r) {
    for (int64_t first = 0; first < shape.ins; first += pattern.group()) {
      std::vector<int64_t> order(
          std::min<size_t>(size_t(pattern.group()), size_t(shape.ins - first)));
      std::iota(order.begin(), order.end(), first);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return weights.magnitude(r, a) > weights.magnitude(r, b);
      });
      order.resize(std::min(order.size(), size_t(pattern.keep())));
      for (const int64_t c : order) mask.set(r, c, true);
    }
  }
  return mask;
}

TEST(Magnitude, KeepsTheLargestAndOfEqualsTheFirst) {
  for (const Pattern& pattern : kPatterns) {
    for (const Kind kind : kAllKinds) {
      for (const int64_t ins :
           {int64_t{1}, pattern.group() - int64_t{1}, pattern.group() + int64_t{1},
            int64_t{4} * pattern.group(), int64_t{21} * pattern.group() - 1}) {
        const WeightShape shape{3, ins};
        SCOPED_TRACE(trace("magnitude", shape, pattern, name_of(kind), 1000));
        const auto narrow = draw_weights<float>(kind, shape, 1000);
        const auto wide = draw_weights<double>(kind, shape, 1000);
        ASSERT_EQ(mask_of(solver("magnitude"), narrow, pattern), naive_magnitude(narrow, pattern));
        ASSERT_EQ(mask_of(solver("magnitude"), wide, pattern), naive_magnitude(wide, pattern));
      }
    }
  }
}

TEST(Magnitude, TellsApartDoublesThatAreEqualAsFloats) {
  const Weights<double> weights{{1, 4}, {1, 1 + 0x1p-52, 1, 1 + 0x1p-51}};
  const Mask mask = mask_of(solver("magnitude"), weights, Pattern(2, 4));
  EXPECT_EQ(mask.bits(0, 0, 4), 0b1010U);
  // In a row long enough for the path through floats: two of one group, among ones apart.
  for (const double scale : {1.0, 1e-310, 1e-45, 1e38, 1e200}) {
    for (size_t a = 0; a < 4; ++a) {
      for (size_t b = 0; b < 4; ++b) {
        auto many = draw_weights<double>(Kind::kGaussian, {1, 200}, 1005);
        for (size_t i = 64; i < 68; ++i) many.values[i] = 0.1 * static_cast<double>(i - 63);
        many.values[64 + a] = 1;
        many.values[64 + b] = 1 + 0x1p-52;
        for (double& weight : many.values) weight *= scale;
        EXPECT_EQ(mask_of(solver("magnitude"), many, Pattern(1, 4)),
                  naive_magnitude(many, Pattern(1, 4)))
            << scale << ", " << a << " and " << b;
      }
    }
  }
}

}  // namespace
}  // namespace weft::test
