#include "weft/mask/within.h"

#include <algorithm>
#include <array>
#include <bit>

#include "weft/core/parallel.h"
#include "weft/mask/taps.h"

namespace weft {
namespace {

// A tile of one tap: at most block x block, at [row, col].
struct TilePlace {
  int64_t row, rows, col, cols;
};

// Calls body(first, count) for the groups of [begin, begin + length).
template <typename Body>
void for_each_group(int64_t begin, int64_t length, int group, Body body) {
  for (int64_t i = 0; i < length; i += group) {
    body(begin + i, static_cast<int>(std::min<int64_t>(group, length - i)));
  }
}

// At most `keep` per group of inputs, of the rows that share taken together (verify.h).
bool obeys_along_inputs(const Mask& nonzero, const Pattern& pattern, const TilePlace& tile) {
  bool obeys = true;
  for (int64_t r = 0; obeys && r < std::min<int64_t>(pattern.group(), tile.rows); ++r) {
    for_each_group(tile.col, tile.cols, pattern.group(), [&](int64_t col, int width) {
      uint64_t any = 0;
      for (int64_t row = r; row < tile.rows; row += pattern.group()) {
        any |= nonzero.bits(tile.row + row, col, width);
      }
      obeys &= std::popcount(any) <= pattern.keep();
    });
  }
  return obeys;
}

bool obeys_along_outputs(const Mask& nonzero, const Pattern& pattern, const TilePlace& tile) {
  bool obeys = true;
  for_each_group(tile.row, tile.rows, pattern.group(), [&](int64_t first, int count) {
    std::array<int, Pattern::kMaxGroup> kept{};
    for (int64_t row = first; row < first + count; ++row) {
      uint64_t any = 0;  // of the inputs that share
      for_each_group(tile.col, tile.cols, pattern.group(),
                     [&](int64_t col, int width) { any |= nonzero.bits(row, col, width); });
      for (; any != 0; any &= any - 1) ++kept[static_cast<size_t>(std::countr_zero(any))];
    }
    obeys &= *std::ranges::max_element(kept) <= pattern.keep();
  });
  return obeys;
}

// nonzero, found: [outs, ins]; rows of `to` from first_row on.
void within_tap(const Mask& nonzero, const Mask& found, const Pattern& pattern, Mask& to,
                int64_t first_row) {
  const int64_t block = pattern.block();
  parallel_for((nonzero.rows() + block - 1) / block, [&](int64_t item) {
    TilePlace tile{item * block, std::min(block, nonzero.rows() - item * block), 0, 0};
    for (; tile.col < nonzero.cols(); tile.col += block) {
      tile.cols = std::min(block, nonzero.cols() - tile.col);
      const bool obeys =
          obeys_along_inputs(nonzero, pattern, tile) && obeys_along_outputs(nonzero, pattern, tile);
      for (int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
        for_each_group(tile.col, tile.cols, pattern.group(), [&](int64_t col, int width) {
          const uint64_t kept = obeys ? ~uint64_t{0} : found.bits(row, col, width);
          to.put_bits(first_row + row, col, width, nonzero.bits(row, col, width) & kept);
        });
      }
    }
  });
}

}  // namespace

Mask mask_within(const Mask& nonzero, const Mask& found, const WeightShape& shape,
                 const Pattern& pattern) {
  Mask mask(shape.outs, shape.cols());
  if (shape.taps == 1) {
    within_tap(nonzero, found, pattern, mask, 0);
    return mask;
  }
  Mask of_taps(shape.taps * shape.outs, shape.ins);
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    within_tap(take_tap(nonzero, shape, tap), take_tap(found, shape, tap), pattern, of_taps,
               tap * shape.outs);
  }
  put_taps(of_taps, shape, mask, 0);
  return mask;
}

}  // namespace weft
