// The exact solver on 4 x 4 tiles: against all full masks, and its quick path against sums in double.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "tests/mask/solver_checks.h"
#include "tests/support.h"
#include "tests/weights.h"
#include "weft/core/isa.h"
#include "weft/mask/algorithms.h"
#include "weft/mask/solver.h"

namespace weft::test {
namespace {

struct SmallTile {
  int keep;
  size_t full_masks;
};
constexpr std::array kTiles4x4 = {SmallTile{1, 24}, SmallTile{2, 90}, SmallTile{3, 24}};

template <typename T>
void expect_best_of_all_4x4_masks(const Solver& solver, int keep, Kind kind, uint64_t stream) {
  constexpr int kCount = 1001;  // odd, so that the last vector of tiles is not full
  const std::vector<TileCode> masks = full_masks(4, 4, keep);
  const auto weights = draw_weights<T>(kind, {4, 4 * kCount}, stream);
  const Pattern pattern(keep, 4);
  SCOPED_TRACE(trace(solver.name, weights.shape, pattern, name_of(kind), stream));
  const Mask mask = mask_of(solver, weights, pattern);
  for (int64_t col = 0; col < weights.shape.ins; col += 4) {
    SCOPED_TRACE(fmt::format("tile at column {}", col));
    expect_same_score(kind, kept_magnitude(weights, mask, 0, col, 4, 4),
                      best_of(masks, weights, col, 4, 4));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Exact4x4, HasAsManyFullMasksAsTheLiteratureSays) {
  for (const SmallTile& tile : kTiles4x4) {
    EXPECT_EQ(full_masks(4, 4, tile.keep).size(), tile.full_masks);
  }
}

TEST(Exact4x4, IsTheBestOfAllFullMasks) {
  uint64_t stream = 1100;
  for (const SmallTile& tile : kTiles4x4) {
    for (const Kind kind : kAllKinds) {
      expect_best_of_all_4x4_masks<float>(solver("exact"), tile.keep, kind, ++stream);
      expect_best_of_all_4x4_masks<double>(solver("exact"), tile.keep, kind, ++stream);
    }
  }
}

// Random tiles might never need one of the masks; here each has its turn, in every lane.
TEST(Exact4x4, FindsEachFullMaskWhereItIsTheOnlyBest) {
  for (const SmallTile& tile : kTiles4x4) {
    const std::vector<TileCode> masks = full_masks(4, 4, tile.keep);
    const auto count = static_cast<int64_t>(masks.size());
    for (int64_t shift = 0; shift < 8; ++shift) {
      auto weights = draw_weights<float>(Kind::kGaussian, {4, 4 * (count + shift)}, 1200);
      for (int64_t t = 0; t < count; ++t) {
        for (int cell = 0; cell < 16; ++cell) {
          const bool kept = (masks[size_t(t)] >> cell) & 1;
          weights.at(cell / 4, 4 * (t + shift) + cell % 4) = kept ? 1.0F : 0.9F;
        }
      }
      SCOPED_TRACE(trace("exact", weights.shape, Pattern(tile.keep, 4), "planted", 1200));
      const Mask mask = mask_of(solver("exact"), weights, Pattern(tile.keep, 4));
      for (int64_t t = 0; t < count; ++t) {
        TileCode found = 0;
        for (int r = 0; r < 4; ++r) {
          found |= static_cast<TileCode>(mask.bits(r, 4 * (t + shift), 4)) << (4 * r);
        }
        ASSERT_EQ(found, masks[size_t(t)]) << "tile " << t;
      }
    }
  }
}

// The quick path with its proofs, and the sums in double alone: what the proofs accept must be what
// the sums find, ties included.
struct Draw {
  std::string_view name;
  float (*draw)(const Rng& rng, uint64_t index);
};

// The last vector of tiles is not full. Sanitizers look for reads outside, which take fewer.
const uint64_t kDrawnCols = 4 * 16 * (test::sanitized() ? 256 : 4096) + 20;

// A number of its own for every 16 tiles, and for every tile.
uint64_t chunk_word(const Rng& rng, uint64_t index) {
  return rng.words(~(index % kDrawnCols / 64))[0];
}
uint64_t tile_word(const Rng& rng, uint64_t index) {
  return rng.words(~(index % kDrawnCols / 4))[1];
}
float normal(const Rng& rng, uint64_t index) { return static_cast<float>(rng.normal(index)); }

constexpr std::array kDraws = {
    Draw{"gaussian", normal},
    Draw{"gaussian in bf16",
         [](const Rng& rng, uint64_t i) {
           return std::bit_cast<float>(std::bit_cast<uint32_t>(normal(rng, i)) & 0xffff0000U);
         }},
    Draw{"gaussian in int8",
         [](const Rng& rng, uint64_t i) { return std::round(40 * normal(rng, i)) * 0.0123F; }},
    Draw{"ulps apart",  // from one to beyond what the proofs ask for
         [](const Rng& rng, uint64_t i) {
           const auto step = static_cast<float>(1U << (tile_word(rng, i) % 12));
           return 1 + 0x1p-23F * step * static_cast<float>(rng.words(i)[0] % 8);
         }},
    Draw{"gaussian of every magnitude",  // from subnormal to the largest there is
         [](const Rng& rng, uint64_t i) {
           const int exponent = static_cast<int>(tile_word(rng, i) % 270) - 145;
           return static_cast<float>(std::ldexp(std::min(rng.normal(i), 3.9), exponent));
         }},
    Draw{"huge next to tiny",
         [](const Rng& rng, uint64_t i) {
           const auto words = rng.words(i);
           const float some = 1 + 0x1p-23F * static_cast<float>(words[1] % 4);
           switch (words[0] % 5) {
             case 0: return 1e30F * some;
             case 1: return 1e-30F * some;
             case 2: return std::numeric_limits<float>::denorm_min() * some;
             case 3: return std::numeric_limits<float>::max();
             default: return some;
           }
         }},
    Draw{"zeros and a tiny power of two",  // of which the reciprocal may not be a number
         [](const Rng& rng, uint64_t i) {
           const uint64_t tile = tile_word(rng, i);
           if (tile % 4 != 0) return normal(rng, i);  // or so many ties would not even be tried
           const int exponent = -100 - static_cast<int>(tile / 4 % 16);
           return static_cast<float>(std::ldexp(rng.words(i)[0] % 2, exponent));
         }},
    Draw{"zeros here and there",
         [](const Rng& rng, uint64_t i) {
           return chunk_word(rng, i) % 2 == 0 ? 0.0F : normal(rng, i);
         }},
    Draw{"nine zeros in ten",
         [](const Rng& rng, uint64_t i) {
           return rng.words(i)[3] % 10 == 0 ? normal(rng, i) : 0.0F;
         }},
};

Mask mask_of_sums_in_double(const Weights<double>& weights, const Pattern& pattern) {
  Mask mask(weights.shape.outs, weights.shape.ins);
  const MatrixView<const double> band(weights.data(), 4, weights.shape.ins);
  exact_4x4_band<double>(band, pattern, std::vector<uint16_t>(chunks_4x4(band.cols), 0xffff), mask,
                         0);
  return mask;
}

TEST(Exact4x4, QuickPathFindsTheMasksOfTheSumsInDoubleOnEveryInstructionSet) {
  struct IsaGuard {
    ~IsaGuard() { restore_isa(); }
  } guard;
  const WeightShape shape{4, static_cast<int64_t>(kDrawnCols)};
  for (const Draw& source : kDraws) {
    const Rng rng(test_seed(), 1250);
    Weights<float> narrow{shape, std::vector<float>(4 * kDrawnCols)};
    for (size_t i = 0; i < narrow.values.size(); ++i) narrow.values[i] = source.draw(rng, i);
    const Weights<double> wide{shape, {narrow.values.begin(), narrow.values.end()}};
    Weights<double> between = wide;  // up to half the distance between floats away from one
    for (size_t i = 0; i < between.values.size(); ++i) {
      between.values[i] *= 1 + 0x1p-24 * (2 * rng.uniform(i) - 1);
    }
    for (const SmallTile& tile : kTiles4x4) {
      const Pattern pattern(tile.keep, 4);
      SCOPED_TRACE(trace("exact", shape, pattern, source.name, 1250));
      restore_isa();
      const Mask expected = mask_of_sums_in_double(wide, pattern);
      const Mask expected_between = mask_of_sums_in_double(between, pattern);
      for (const std::string& isa : available_isas()) {
        force_isa(isa);
        ASSERT_EQ(mask_of(solver("exact"), narrow, pattern), expected) << isa;
        ASSERT_EQ(mask_of(solver("exact"), wide, pattern), expected) << isa;
        ASSERT_EQ(mask_of(solver("exact"), between, pattern), expected_between) << isa;
      }
    }
  }
}

// Magnitudes that as floats are zero, or infinite.
TEST(Exact4x4, QuickPathLeavesDoublesBeyondTheFloatsToTheSumsInDouble) {
  const WeightShape shape{4, 1024};
  for (const double scale : {1e-320, 1e-300, 0x1p-149, 0x1p-120, 1e38, 1e100, 1e250}) {
    auto weights = draw_weights<double>(Kind::kGaussian, shape, 1255);
    for (double& weight : weights.values) weight *= scale;
    for (const SmallTile& tile : kTiles4x4) {
      const Pattern pattern(tile.keep, 4);
      ASSERT_EQ(mask_of(solver("exact"), weights, pattern),
                mask_of_sums_in_double(weights, pattern))
          << scale;
    }
  }
}

}  // namespace
}  // namespace weft::test
