#include "weft/pack/group_check.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "weft/core/bits.h"
#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/pack/pack.h"

namespace weft {
namespace {

// Asks of all groups of a word at once, where groups tile words: one after the other they would
// take as long as packing. A field is the bits of a group.
class WordCounter {
 public:
  explicit WordCounter(const Pattern& pattern)
      : keep_(static_cast<uint64_t>(pattern.keep())), group_(pattern.group()) {
    if (64 % group_ != 0) return;
    for (int at = 0; at < 64; at += group_) ones_ |= uint64_t{1} << at;
    tops_ = ones_ << (group_ - 1);
  }

  bool tiles() const { return ones_ != 0; }

  // Some group keeps more than `keep`: what is added carries into its top bit exactly then.
  bool crowded(uint64_t word) const {
    return keep_ < static_cast<uint64_t>(group_) &&
           ((counts(word) + tops_ - ones_ - ones_ * keep_) & tops_) != 0;
  }
  // Every group keeps as many.
  bool full(uint64_t word) const { return counts(word) == ones_ * keep_; }

 private:
  // The kept of every group, in its field.
  uint64_t counts(uint64_t word) const {
    constexpr uint64_t kHalves[] = {0x5555555555555555, 0x3333333333333333, 0x0f0f0f0f0f0f0f0f,
                                    0x00ff00ff00ff00ff, 0x0000ffff0000ffff, 0x00000000ffffffff};
    for (int size = 1, i = 0; size < group_; size *= 2, ++i) {
      word = (word & kHalves[i]) + (word >> size & kHalves[i]);
    }
    return word;
  }

  uint64_t keep_;
  int group_;
  uint64_t ones_ = 0;  // the lowest bit of every field; 0 if groups do not tile words
  uint64_t tops_ = 0;  // the highest
};

// Calls word(bits) for 64 columns of whole groups, and group(first column, width,
// kept) for what is left, until one returns true; whether one did.
template <typename Word, typename Group>
bool any_in_row(const Mask& mask, int64_t row, const Pattern& pattern, int64_t segment, bool tiles,
                Word word, Group group) {
  for (int64_t begin = 0; begin < mask.cols(); begin += segment) {
    const int64_t end = begin + segment;
    int64_t col = begin;
    for (; tiles && col + 64 <= end; col += 64) {
      if (word(mask.bits(row, col, 64))) return true;
    }
    for (; col < end; col += pattern.group()) {
      const int width = static_cast<int>(std::min<int64_t>(pattern.group(), end - col));
      if (group(col, width, popcount64(mask.bits(row, col, width)))) return true;
    }
  }
  return false;
}

// The lowest row for which `bad` holds; rows() if there is none. The mask has columns.
template <typename Bad>
int64_t first_row_where(const Mask& mask, Bad bad) {
  constexpr int64_t kWeightsPerItem = 1 << 18;  // about 10 us: worth another thread
  const int64_t rows = mask.rows();
  const int64_t rows_per_item = std::max<int64_t>(1, kWeightsPerItem / mask.cols());
  std::atomic<int64_t> first{rows};
  parallel_for(ceil_div(rows, rows_per_item), [&](int64_t item) {
    for (int64_t r = item * rows_per_item; r < std::min(rows, (item + 1) * rows_per_item); ++r) {
      if (!bad(r)) continue;
      int64_t seen = first.load();
      while (r < seen && !first.compare_exchange_weak(seen, r)) {
      }
      return;
    }
  });
  return first.load();
}

// Row by row against the row that shares and stands one group above; rows() if all are alike.
int64_t first_unlike_row(const Mask& mask, const Pattern& pattern) {
  if (pattern.share() == 1 || mask.cols() == 0) return mask.rows();
  const int64_t words = (mask.cols() + 63) / 64;
  return first_row_where(mask, [&](int64_t row) {
    if (row % pattern.block() < pattern.group()) return false;
    const uint64_t* above = mask.row_words(row - pattern.group());
    return !std::equal(above, above + words, mask.row_words(row));
  });
}

}  // namespace

std::optional<CrowdedGroup> crowded_group(const Mask& mask, const Pattern& pattern,
                                          int64_t segment) {
  std::optional<CrowdedGroup> found;
  if (mask.cols() == 0) return found;  // a header from outside may name any number of empty rows
  const WordCounter counter(pattern);
  const auto crowded = [&](int64_t, int, int kept) { return kept > pattern.keep(); };
  const int64_t row = first_row_where(mask, [&](int64_t r) {
    return any_in_row(
        mask, r, pattern, segment, counter.tiles(),
        [&](uint64_t bits) { return counter.crowded(bits); }, crowded);
  });
  if (row == mask.rows()) return found;
  any_in_row(  // that row once more, group by group
      mask, row, pattern, segment, false, [](uint64_t) { return false; },
      [&](int64_t col, int width, int kept) {
        if (crowded(col, width, kept)) found = CrowdedGroup{row, col, col + width - 1};
        return found.has_value();
      });
  return found;
}

bool every_group_is_full(const Mask& mask, const Pattern& pattern, int64_t segment) {
  if (mask.cols() == 0) return true;
  const WordCounter counter(pattern);
  return first_row_where(mask, [&](int64_t r) {
           return any_in_row(
               mask, r, pattern, segment, counter.tiles(),
               [&](uint64_t bits) { return !counter.full(bits); },
               [&](int64_t, int width, int kept) {
                 return kept != std::min(width, pattern.keep());
               });
         }) == mask.rows();
}

void require_groups(const Mask& mask, const Pattern& pattern, int64_t segment) {
  const auto crowded = crowded_group(mask, pattern, segment);
  if (!crowded) return;
  throw Error(fmt::format("row {}, columns {} to {}: more than {} kept, so it is not {}",
                          crowded->row, crowded->first_col, crowded->last_col, pattern.keep(),
                          pattern.str()));
}

namespace {

// Whether some tap of a row keeps more than `keep` of a group of units: at_least[k] has the taps
// that keep at least k of the units so far.
bool has_crowded_tap(const Mask& mask, int64_t row, const Pattern& pattern, int taps) {
  std::array<uint64_t, 65> at_least;
  const auto keep = static_cast<size_t>(pattern.keep());
  const int64_t group = int64_t{pattern.group()} * taps;
  for (int64_t begin = 0; begin < mask.cols(); begin += group) {
    std::fill_n(at_least.begin(), keep + 2, 0);
    at_least[0] = ~uint64_t{0};
    for (int64_t col = begin; col < std::min(mask.cols(), begin + group); col += taps) {
      const uint64_t bits = mask.bits(row, col, taps);
      for (size_t k = keep + 1; k > 0; --k) at_least[k] |= at_least[k - 1] & bits;
    }
    if (at_least[keep + 1] != 0) return true;
  }
  return false;
}

}  // namespace

void require_tap_groups(const Mask& mask, const Pattern& pattern, int64_t taps) {
  if (taps == 0 || mask.cols() == 0) return;
  const int64_t units = mask.cols() / taps;
  if (taps > 1 && taps <= 64) {
    const bool good = first_row_where(mask, [&](int64_t row) {
                        return has_crowded_tap(mask, row, pattern, static_cast<int>(taps));
                      }) == mask.rows();
    if (good) return;
  }
  require_groups(tap_major(mask, {mask.rows(), units, taps}), pattern, units);
}

bool rows_share(const Mask& mask, const Pattern& pattern) {
  return first_unlike_row(mask, pattern) == mask.rows();
}

void require_sharing(const Mask& mask, const Pattern& pattern) {
  const int64_t row = first_unlike_row(mask, pattern), above = row - pattern.group();
  if (row == mask.rows()) return;
  for (int64_t k = 0; k < mask.cols(); k += 64) {
    const int width = static_cast<int>(std::min<int64_t>(64, mask.cols() - k));
    WEFT_CHECK(mask.bits(above, k, width) == mask.bits(row, k, width),
               "rows {} and {} differ between columns {} and {}: to be packed as {} they must have "
               "the same mask",
               above, row, k, k + width - 1, pattern.str());
  }
}

}  // namespace weft
