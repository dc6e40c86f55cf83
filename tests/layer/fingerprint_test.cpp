#include "weft/layer/fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace weft {
namespace {

std::vector<float> some_weights(int64_t size) {
  std::vector<float> weights(static_cast<size_t>(size));
  std::iota(weights.begin(), weights.end(), 1.0f);
  return weights;
}

TEST(Fingerprint, PlacesAreWithinTheWeightsAndInEveryRowAndColumn) {
  for (const int64_t size : {1, 2, 255, 256, 257, 4096, 768 * 3072}) {
    const auto places = fingerprint_places(size);
    EXPECT_GE(*std::ranges::min_element(places), 0) << size;
    EXPECT_LT(*std::ranges::max_element(places), size) << size;
  }
  std::set<int64_t> rows, cols;
  for (const int64_t place : fingerprint_places(16 * 32)) {
    rows.insert(place / 32);
    cols.insert(place % 32);
  }
  EXPECT_EQ(rows.size(), 16u);
  EXPECT_EQ(cols.size(), 32u);
}

TEST(Fingerprint, ChangesWithTheWeightsAndTheirNumberOnly) {
  const std::vector<float> weights = some_weights(4096);
  const uint64_t before = fingerprint(weights.data(), 4096);
  EXPECT_EQ(fingerprint(some_weights(4096).data(), 4096), before);
  EXPECT_NE(fingerprint(weights.data(), 4095), before);
  EXPECT_NE(fingerprint(nullptr, 0), before);
  std::vector<float> moved = weights;  // as an optimiser would: all of them, a little
  for (float& weight : moved) weight *= 1.0f + 1e-6f;
  EXPECT_NE(fingerprint(moved.data(), 4096), before);
  std::vector<float> swapped = weights;
  std::swap(swapped[static_cast<size_t>(fingerprint_places(4096)[1])],
            swapped[static_cast<size_t>(fingerprint_places(4096)[2])]);
  EXPECT_NE(fingerprint(swapped.data(), 4096), before);
}

TEST(Fingerprint, IsThatOfGatheredDoubles) {
  for (const int64_t size : {0, 1, 300, 4096}) {
    const std::vector<float> weights = some_weights(size);
    std::vector<double> gathered;
    for (const int64_t place : fingerprint_places(size)) {
      gathered.push_back(size == 0 ? 0.0 : weights[static_cast<size_t>(place)]);
    }
    EXPECT_EQ(fingerprint_of_places(gathered.data(), size), fingerprint(weights.data(), size));
  }
}

}  // namespace
}  // namespace weft
