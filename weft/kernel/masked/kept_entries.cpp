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

KeptEntries::KeptEntries(const Mask& mask, const Pattern& pattern)
    : rows_(mask.rows()),
      cols_(mask.cols()),
      block_(block_for(pattern)),
      tokens_(tokens_for(block_)),
      starts_(static_cast<size_t>(blocks() * rows_ + 1)) {
  // Calls body(entry of starts_, column in the block, bits) for up to 64 columns at a time.
  const auto for_each_bits = [&](int64_t row, auto body) {
    for (int64_t b = 0; b < blocks(); ++b) {
      const int64_t end = std::min(cols_, (b + 1) * block_);
      for (int64_t col = b * block_; col < end; col += 64) {
        const int count = static_cast<int>(std::min<int64_t>(64, end - col));
        body(static_cast<size_t>(b * rows_ + row), col - b * block_, mask.bits(row, col, count));
      }
    }
  };
  // As many rows at a time as are worth another thread: some 20 us.
  constexpr int64_t kWeightsPerItem = 1 << 15;
  const int64_t rows_per_item = std::max<int64_t>(1, kWeightsPerItem / std::max<int64_t>(1, cols_));
  const auto for_each_row = [&](auto body) {
    parallel_for(ceil_div(rows_, rows_per_item), [&](int64_t item) {
      const int64_t end = std::min(rows_, (item + 1) * rows_per_item);
      for (int64_t row = item * rows_per_item; row < end; ++row) body(row);
    });
  };
  for_each_row([&](int64_t row) {
    for_each_bits(row, [&](size_t at, int64_t, uint64_t bits) {
      starts_[at + 1] += static_cast<uint32_t>(popcount64(bits));
    });
  });
  uint64_t size = 0;
  for (uint32_t& start : starts_) {
    size += (start + 3) / 4 * 4;
    WEFT_CHECK(size <= UINT32_MAX, "a mask of {} x {} keeps more than 2^32 entries", rows_, cols_);
    start = static_cast<uint32_t>(size);
  }
  index_.resize(size);
  for_each_row([&](int64_t row) {
    size_t current = SIZE_MAX;
    uint32_t next = 0;
    const auto finish = [&] {
      if (current == SIZE_MAX) return;
      for (; next < starts_[current + 1]; ++next) index_[next] = index_[next - 1];
    };
    for_each_bits(row, [&](size_t at, int64_t col, uint64_t bits) {
      if (at != current) {
        finish();
        current = at;
        next = starts_[at];
      }
      for (; bits != 0; bits &= bits - 1) {
        index_[next++] = static_cast<uint16_t>(col + std::countr_zero(bits));
      }
    });
    finish();
  });
}

}  // namespace weft
