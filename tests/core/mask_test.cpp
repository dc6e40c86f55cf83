// Masks against naive ones: bits across words, rows that are appended to, transposes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/support.h"
#include "weft/core/error.h"
#include "weft/core/mask.h"
#include "weft/core/rng.h"

namespace weft {
namespace {

using test::test_seed;

// What a Mask is, in the simplest words: the judge of the packed one.
struct NaiveMask {
  int64_t rows, cols;
  std::vector<bool> kept;

  NaiveMask(int64_t rows, int64_t cols)
      : rows(rows), cols(cols), kept(static_cast<size_t>(rows * cols)) {}
  size_t place(int64_t r, int64_t c) const { return static_cast<size_t>(r * cols + c); }
  uint64_t bits(int64_t r, int64_t c, int count) const {
    uint64_t found = 0;
    for (int i = 0; i < count; ++i) found |= uint64_t{kept[place(r, c + i)]} << i;
    return found;
  }
  void put_bits(int64_t r, int64_t c, int count, uint64_t bits) {
    for (int i = 0; i < count; ++i) kept[place(r, c + i)] = ((bits >> i) & 1) != 0;
  }
};

void expect_same(const Mask& mask, const NaiveMask& naive) {
  ASSERT_EQ(mask.rows(), naive.rows);
  ASSERT_EQ(mask.cols(), naive.cols);
  const auto kept = std::count(naive.kept.begin(), naive.kept.end(), true);
  ASSERT_EQ(mask.count(), kept);
  const auto all = static_cast<double>(naive.kept.size());
  ASSERT_EQ(mask.density(), naive.kept.empty() ? 1.0 : static_cast<double>(kept) / all);
  for (int64_t r = 0; r < naive.rows; ++r) {
    for (int64_t c = 0; c < naive.cols; ++c) {
      ASSERT_EQ(mask.at(r, c), naive.kept[naive.place(r, c)]) << "row " << r << " column " << c;
    }
  }
}

const std::vector<int64_t> kMaskSizes = {0, 1, 2, 63, 64, 65, 127, 128, 129};

TEST(Mask, BitsAcrossWordsAgreeWithANaiveMask) {
  const Rng rng(test_seed());
  uint64_t draw = 0;
  for (const int64_t rows : {0, 1, 3}) {
    for (const int64_t cols : kMaskSizes) {
      SCOPED_TRACE(fmt::format("shape {} x {}, seed {}", rows, cols, test_seed()));
      Mask mask(rows, cols);
      NaiveMask naive(rows, cols);
      ASSERT_NO_FATAL_FAILURE(expect_same(mask, naive));
      for (int step = 0; step < 300 && rows * cols > 0; ++step) {
        const auto r = static_cast<int64_t>(rng.below(draw++, static_cast<uint64_t>(rows)));
        const auto c = static_cast<int64_t>(rng.below(draw++, static_cast<uint64_t>(cols)));
        const auto longest = static_cast<uint64_t>(std::min<int64_t>(64, cols - c));
        const int count = static_cast<int>(rng.below(draw++, longest + 1));
        const uint64_t bits = rng.bits(draw++);  // the ones past `count` must be ignored
        mask.put_bits(r, c, count, bits);
        naive.put_bits(r, c, count, bits);
        const auto from = static_cast<int64_t>(rng.below(draw++, static_cast<uint64_t>(cols)));
        const int width = static_cast<int>(std::min<int64_t>(64, cols - from));
        ASSERT_EQ(mask.bits(r, from, width), naive.bits(r, from, width))
            << "row " << r << " columns " << from << " + " << width;
      }
      ASSERT_NO_FATAL_FAILURE(expect_same(mask, naive));
    }
  }
}

TEST(Mask, EveryRunOfBitsAtAWordEdgeIsReadBack) {
  for (int64_t col = 0; col <= 129; ++col) {
    for (int count = 0; count <= 64 && col + count <= 129; ++count) {
      Mask mask(2, 129);
      mask.put_bits(1, col, count, ~uint64_t{0});
      ASSERT_EQ(mask.count(), count) << "columns " << col << " + " << count;
      if (count > 0) {
        ASSERT_TRUE(mask.at(1, col) && mask.at(1, col + count - 1)) << col << " + " << count;
      }
      mask.put_bits(1, col, count, 0);
      ASSERT_EQ(mask, Mask(2, 129)) << "columns " << col << " + " << count;
    }
  }
}

TEST(Mask, RowWriterWritesWhatWasAppended) {
  const Rng rng(test_seed(), 2);
  uint64_t draw = 0;
  for (const int longest : {1, 5, 63, 64}) {
    for (const int64_t cols : kMaskSizes) {
      Mask written(3, cols), put(3, cols);
      MaskRowWriter writer(written.row_words(1));
      for (int64_t col = 0; col < cols;) {
        const auto left = static_cast<uint64_t>(std::min<int64_t>(longest, cols - col));
        const auto count = static_cast<int>(1 + rng.below(draw++, left));
        const auto words = rng.words(draw++);
        const uint64_t bits = words[0] | uint64_t{words[1]} << 32;
        writer.append(bits, count);
        put.put_bits(1, col, count, bits);
        col += count;
      }
      writer.finish();
      ASSERT_EQ(written, put) << cols << " columns, at most " << longest << " at once";
    }
  }
}

TEST(Mask, TransposedTwiceIsTheSame) {
  const Rng rng(test_seed(), 1);
  uint64_t draw = 0;
  for (const int64_t rows : kMaskSizes) {
    for (const int64_t cols : kMaskSizes) {
      SCOPED_TRACE(fmt::format("shape {} x {}, seed {}", rows, cols, test_seed()));
      Mask mask(rows, cols);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) mask.set(r, c, rng.below(draw++, 3) == 0);
      }
      const Mask turned = mask.transposed();
      ASSERT_EQ(turned.rows(), cols);
      ASSERT_EQ(turned.cols(), rows);
      ASSERT_EQ(turned.count(), mask.count());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(turned.at(c, r), mask.at(r, c));
      }
      ASSERT_EQ(turned.transposed(), mask);
    }
  }
}

TEST(Mask, ASliceHasItsRows) {
  const Rng rng(test_seed(), 2);
  uint64_t draw = 0;
  for (const int64_t cols : kMaskSizes) {
    Mask mask(9, cols);
    for (int64_t r = 0; r < 9; ++r) {
      for (int64_t c = 0; c < cols; ++c) mask.set(r, c, rng.below(draw++, 2) == 0);
    }
    const Mask slice = mask.slice_rows(2, 5);
    ASSERT_EQ(slice.rows(), 5);
    ASSERT_EQ(slice.cols(), cols);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(slice.at(r, c), mask.at(r + 2, c));
    }
    EXPECT_EQ(mask.slice_rows(0, 9), mask);
    EXPECT_EQ(mask.slice_rows(9, 0).rows(), 0);
  }
}

TEST(Mask, EqualityIsOfShapeAndBits) {
  EXPECT_EQ(Mask(), Mask(0, 0));
  EXPECT_NE(Mask(0, 1), Mask(0, 0));
  EXPECT_NE(Mask(1, 2), Mask(2, 1));
  EXPECT_NE(Mask(2, 64), Mask(2, 63));  // the words are the same, the shape is not
  Mask one(3, 65), other(3, 65);
  one.set(2, 64, true);
  EXPECT_NE(one, other);
  other.put_bits(2, 60, 5, 0xfff0);  // only the lowest five of these bits count
  EXPECT_EQ(one, other);
  other.set(2, 64, false);
  EXPECT_EQ(other, Mask(3, 65));
}

TEST(Mask, RefusesSizesThatAreNegativeOrOverflow) {
  const int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(Mask(-1, 4), Error);
  EXPECT_THROW(Mask(4, -1), Error);
  EXPECT_THROW(Mask(kLargest, kLargest), Error);
  EXPECT_THROW(Mask(int64_t{1} << 40, int64_t{1} << 40), Error);
  // A legal empty tensor may have such a shape.
  EXPECT_EQ(Mask(0, kLargest).count(), 0);
  EXPECT_EQ(Mask(kLargest, 0).count(), 0);
}

}  // namespace
}  // namespace weft
