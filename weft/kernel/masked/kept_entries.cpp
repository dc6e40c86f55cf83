#include "weft/kernel/masked/kept_entries.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "weft/core/bits.h"
#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// Columns of a block: whole groups that keep a multiple of 8, or as many as L1 likes. Wider blocks
// would save loads of g, but leave no room for the tokens.
int64_t block_for(const Pattern& pattern) {
  constexpr int64_t kWidest = 256;
  const int64_t group = pattern.group();
  const int64_t block = group * (8 / std::gcd(8, pattern.keep()));
  return block <= kWidest ? block : kWidest / group * group;
}

// Tokens of a panel: a block of xᵀ fits L1, and sums are not added up too often. On an AMD Zen 3,
// 2048 tokens, 768 x 3072, against dense in the same run: 2:4 1.0, 1.2, 1.3, 1.2 with 64, 128, 256,
// 512 tokens; 1:4 1.7, 2.2, 2.1 with 64, 128, 256; 1:8 3.0, 3.2, 2.6; 1:16 4.1, 3.9, 3.8.
int64_t tokens_for(int64_t block) { return std::clamp<int64_t>(8192 / block, 64, 256) / 16 * 16; }

}  // namespace

KeptEntries::KeptEntries(const Mask& mask, const Pattern& pattern, int64_t taps)
    : rows_(mask.rows()),
      cols_(mask.cols()),
      taps_(taps),
      block_(block_for(pattern)),
      tokens_(tokens_for(block_)) {
  WEFT_CHECK(taps >= 1 && cols_ % taps == 0, "a mask of {} columns for {} taps", cols_, taps);
  starts_.resize(static_cast<size_t>(blocks() * rows_ + 1));
  struct Place {
    uint32_t block;
    uint16_t index;
  };
  std::vector<Place> places(static_cast<size_t>(cols_));
  for (int64_t col = 0; col < cols_; ++col) {
    const int64_t in = col / taps, tap = col % taps;
    places[static_cast<size_t>(col)] = {static_cast<uint32_t>(in / block_ * taps + tap),
                                        static_cast<uint16_t>(in % block_)};
  }
  // Calls visit(place) for what the mask keeps of a row.
  const auto for_each_kept = [&](int64_t row, auto visit) {
    for (int64_t col = 0; col < cols_; col += 64) {
      const int count = static_cast<int>(std::min<int64_t>(64, cols_ - col));
      for (uint64_t bits = mask.bits(row, col, count); bits != 0; bits &= bits - 1) {
        visit(places[static_cast<size_t>(col + std::countr_zero(bits))]);
      }
    }
  };
  const auto entry = [&](int64_t block, int64_t row) {
    return static_cast<size_t>(block * rows_ + row);
  };
  // As many rows at a time as are worth another thread: some 20 us.
  constexpr int64_t kWeightsPerItem = 1 << 15;
  const int64_t rows_per_item = std::max<int64_t>(1, kWeightsPerItem / std::max<int64_t>(1, cols_));
  const auto for_each_row = [&](auto body) {
    parallel_for(ceil_div(rows_, rows_per_item), [&](int64_t item) {
      std::vector<uint32_t> of_blocks(static_cast<size_t>(blocks()));
      const int64_t end = std::min(rows_, (item + 1) * rows_per_item);
      for (int64_t row = item * rows_per_item; row < end; ++row) body(row, of_blocks);
    });
  };
  for_each_row([&](int64_t row, std::vector<uint32_t>& counts) {
    std::fill(counts.begin(), counts.end(), 0);
    for_each_kept(row, [&](const Place& place) { ++counts[place.block]; });
    for (int64_t b = 0; b < blocks(); ++b)
      starts_[entry(b, row) + 1] = counts[static_cast<size_t>(b)];
  });
  uint64_t size = 0;
  for (uint32_t& start : starts_) {
    size += (start + 3) / 4 * 4;
    WEFT_CHECK(size <= UINT32_MAX, "a mask of {} x {} keeps more than 2^32 entries", rows_, cols_);
    start = static_cast<uint32_t>(size);
  }
  index_.resize(size);
  for_each_row([&](int64_t row, std::vector<uint32_t>& next) {
    for (int64_t b = 0; b < blocks(); ++b) next[static_cast<size_t>(b)] = starts_[entry(b, row)];
    for_each_kept(row, [&](const Place& place) { index_[next[place.block]++] = place.index; });
    for (int64_t b = 0; b < blocks(); ++b) {
      const uint32_t end = starts_[entry(b, row) + 1];
      for (uint32_t e = next[static_cast<size_t>(b)]; e < end; ++e) index_[e] = index_[e - 1];
    }
  });
}

const KeptEntries& KeptOfMask::of(const Mask& mask, const Pattern& pattern, int64_t taps) {
  const bool same = kept_ && kept_->taps() == taps && pattern == pattern_ && mask == mask_;
  if (same) return *kept_;
  kept_.emplace(mask, pattern, taps);
  mask_ = mask;
  pattern_ = pattern;
  return *kept_;
}

}  // namespace weft
