// weft/core: patterns, masks, random numbers, threads, text for terminals, files that appear whole,
// and the choice of the instruction set.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/core/atomic_file.h"
#include "weft/core/error.h"
#include "weft/core/isa.h"
#include "weft/core/json.h"
#include "weft/core/machine_load.h"
#include "weft/core/mask.h"
#include "weft/core/masked_copy.h"
#include "weft/core/matrix_view.h"
#include "weft/core/median.h"
#include "weft/core/parallel.h"
#include "weft/core/pattern.h"
#include "weft/core/rng.h"
#include "weft/core/text.h"
#include "weft/core/weight_shape.h"

namespace weft {
namespace {

using test::contains;
using test::contents;
using test::message_of;
using test::names_in;
using test::put;
using test::ScratchFolder;
using test::test_seed;

namespace fs = std::filesystem;
using ::testing::TempDir;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// ---- Pattern

TEST(Pattern, ParsesWhatItPrints) {
  for (int group = 1; group <= Pattern::kMaxGroup; ++group) {
    for (int keep = 1; keep <= group; ++keep) {
      for (int share = 1; share <= Pattern::kMaxShare; share *= 2) {
        const Pattern pattern(keep, group, share);
        ASSERT_EQ(Pattern::parse(pattern.str()), pattern) << pattern.str();
        ASSERT_EQ(pattern.block(), group * share);
      }
    }
  }
  EXPECT_EQ(Pattern(2, 4).str(), "2:4");
  EXPECT_EQ(Pattern(2, 4, 2).str(), "2:4x2");
  EXPECT_EQ(Pattern::parse("16:32x8"), Pattern(16, 32, 8));
  EXPECT_EQ(Pattern::parse("2:4x1"), Pattern(2, 4));
}

TEST(Pattern, RefusesTextAndSaysWhatIsAccepted) {
  for (const char* text :
       {"4:2",   "0:4",  "2:4x3", "abc",   "",     "2:65",          "02:4",  "2:4x",   "2:4x64",
        " 2:4",  "2:4 ", "2:4x0", "-1:4",  "2:04", "99999999999:4", "2:4\n", "2:4x02", "+2:4",
        "2 : 4", "2:",   ":4",    "2:4:2", "0:0",  "2:99999999999", "2/4",   "2:4X2",  "0x2:4"}) {
    const std::string message = message_of([&] { Pattern::parse(text); });
    EXPECT_TRUE(contains(message, "accepted is keep:group")) << '\'' << text << "': " << message;
    EXPECT_TRUE(contains(message, fmt::format("'{}'", printable(text)))) << message;
    EXPECT_TRUE(contains(message, "2:4x2")) << message;
  }
}

TEST(Pattern, RefusalOfTextFromAFileStaysOneLine) {
  const std::string message = message_of([] { Pattern::parse("2:4\n\x1b[31mred"); });
  EXPECT_FALSE(contains(message, "\n")) << message;
  EXPECT_FALSE(contains(message, "\x1b")) << message;
  EXPECT_LT(message_of([] { Pattern::parse(std::string(100'000, '2')); }).size(), 1000u);
}

TEST(Pattern, RefusesNumbersOutOfRange) {
  const int kLargest = std::numeric_limits<int>::max();
  for (const auto& [keep, group, share] : std::vector<std::array<int, 3>>{{0, 4, 1},
                                                                          {5, 4, 1},
                                                                          {-1, 4, 1},
                                                                          {1, 65, 1},
                                                                          {1, kLargest, 1},
                                                                          {2, 4, 0},
                                                                          {2, 4, -2},
                                                                          {2, 4, 3},
                                                                          {2, 4, 64},
                                                                          {2, 4, kLargest}}) {
    EXPECT_THROW(Pattern(keep, group, share), Error) << keep << ':' << group << 'x' << share;
  }
}

// ---- Mask

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

// ---- Masked copies

// What a mask does not keep is plus zero, whatever it was; what it keeps has the same bits.
template <typename T>
void expect_masked_copy(int64_t rows, int64_t cols) {
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  const Rng rng(test_seed(), 3);
  uint64_t draw = 0;
  std::vector<T> from(static_cast<size_t>(rows * cols));
  Mask mask(rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double u = rng.uniform(draw++);
    from[static_cast<size_t>(i)] = u < 0.2 ? kNan : u < 0.4 ? T{-1} : static_cast<T>(u);
    mask.set(i / cols, i % cols, rng.uniform(draw++) < 0.5);
  }
  std::vector<T> apart(from.size() + 1, T{7}), in_place = from;
  masked_copy(from.data(), mask, apart.data());
  masked_copy(in_place.data(), mask, in_place.data());
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto at = static_cast<size_t>(i);
    const T wanted = mask.at(i / cols, i % cols) ? from[at] : T{0};
    ASSERT_EQ(std::memcmp(&apart[at], &wanted, sizeof(T)), 0)
        << rows << " x " << cols << ", " << i << ", seed " << test_seed();
    ASSERT_EQ(std::memcmp(&in_place[at], &wanted, sizeof(T)), 0);
  }
  EXPECT_EQ(apart.back(), T{7});
  if constexpr (std::is_same_v<T, float>) {
    std::vector<Bf16> rounded(from.size());
    masked_copy(from.data(), mask, rounded.data());
    for (size_t i = 0; i < from.size(); ++i) ASSERT_EQ(rounded[i], to_bf16(apart[i])) << i;
  }
}

TEST(MaskedCopy, KeepsBitsAndClearsTheRestAndRoundsWhenAsked) {
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{0, 5},
                                                                           {5, 0},
                                                                           {1, 1},
                                                                           {3, 4},
                                                                           {2, 63},
                                                                           {5, 64},
                                                                           {3, 130},
                                                                           {7, 201},
                                                                           {600, 300},
                                                                           {2, 70000}}) {
    expect_masked_copy<float>(rows, cols);
    expect_masked_copy<double>(rows, cols);
  }
}

// ---- MatrixView and WeightShape

TEST(MatrixView, RowsAreAStrideApart) {
  std::vector<int> cells(12);
  for (int i = 0; i < 12; ++i) cells[static_cast<size_t>(i)] = i;
  const MatrixView<int> view(cells.data(), 3, 2, 4);
  EXPECT_EQ(view.at(2, 1), 9);
  const MatrixView<const int> below = view.rows_from(1, 2);
  EXPECT_EQ(below.rows, 2);
  EXPECT_EQ(below.at(0, 0), 4);
  const MatrixView<int> right = view.cols_from(1, 1);
  EXPECT_EQ(right.cols, 1);
  EXPECT_EQ(right.at(2, 0), 9);
  EXPECT_EQ(MatrixView<int>(cells.data(), 3, 4).row(2), cells.data() + 8);
}

TEST(WeightShape, TakesLinearAndConvolution) {
  const std::vector<int64_t> linear = {8, 5}, convolution = {8, 5, 3, 2}, vector = {8};
  EXPECT_EQ(WeightShape::of(linear).cols(), 5);
  EXPECT_EQ(WeightShape::of(convolution).taps, 6);
  EXPECT_EQ(WeightShape::of(convolution).cols(), 30);
  EXPECT_TRUE(contains(message_of([&] { WeightShape::of(vector); }), "accepted are 2"));
}

TEST(WeightShape, IndexOfAColumnIsWhereTheTensorHasIt) {
  const std::vector<int64_t> linear = {2, 5}, convolution = {2, 3, 4, 5}, empty = {2, 3, 0, 5};
  EXPECT_EQ(WeightShape::index_of(linear, 1, 4), (std::vector<int64_t>{1, 4}));
  const auto index = [&](int64_t out, int64_t col) {
    return WeightShape::index_of(convolution, out, col);
  };
  int64_t place = 0;  // in the memory of the tensor
  for (int64_t o = 0; o < 2; ++o) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t y = 0; y < 4; ++y) {
        for (int64_t x = 0; x < 5; ++x, ++place) {
          EXPECT_EQ(index(place / 60, place % 60), (std::vector<int64_t>{o, i, y, x}));
        }
      }
    }
  }
  EXPECT_TRUE(contains(message_of([&] { index(2, 0); }), "(2, 0) is not in a matrix of 2 x 60"));
  EXPECT_THROW(index(0, 60), Error);
  EXPECT_THROW(index(-1, 0), Error);
  EXPECT_THROW(index(0, -1), Error);
  EXPECT_THROW(WeightShape::index_of(empty, 0, 0), Error);
}

// ---- Rng

// The known answers that Random123 publishes for philox4x32 with ten rounds (kat_vectors):
// counter = (index, stream), key = seed.
TEST(Rng, GivesTheKnownAnswersOfPhilox) {
  using Words = std::array<uint32_t, 4>;
  const uint64_t ones = ~uint64_t{0};
  EXPECT_EQ(Rng(0, 0).words(0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Rng(ones, ones).words(ones), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Rng(0x299f31d0a4093822, 0x0370734413198a2e).words(0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, IsAPureFunctionOfSeedStreamAndIndex) {
  const uint64_t seed = test_seed();
  const Rng rng(seed, 5);
  std::set<uint64_t> drawn;
  for (uint64_t index = 0; index < 1000; ++index) {
    ASSERT_EQ(rng.bits(index), Rng(seed, 5).bits(index)) << "index " << index;
    drawn.insert(rng.bits(index));
    drawn.insert(Rng(seed, 6).bits(index));
    drawn.insert(Rng(seed, 5 + (uint64_t{1} << 32)).bits(index));
    drawn.insert(Rng(seed + 1, 5).bits(index));
    drawn.insert(Rng(seed + (uint64_t{1} << 32), 5).bits(index));
    drawn.insert(rng.bits(index + (uint64_t{1} << 32)));
  }
  EXPECT_EQ(drawn.size(), 6000u) << "two of (seed, stream, index) gave the same 64 bits";
}

// With n draws, a mean of x^k lies within five standard errors but once in two million runs; the
// standard error is sqrt(variance of x^k / n).
TEST(Rng, MomentsOfUniformAndNormalAreWithinFiveStandardErrors) {
  const Rng rng(test_seed(), 2);
  constexpr uint64_t kDraws = 200'000;
  std::array<double, 3> uniform{};
  std::array<double, 5> normal{};
  for (uint64_t index = 0; index < kDraws; ++index) {
    const double u = rng.uniform(index), z = rng.normal(index);
    ASSERT_TRUE(u >= 0 && u < 1) << u;
    ASSERT_TRUE(std::isfinite(z)) << z;
    for (size_t k = 1; k < uniform.size(); ++k) uniform[k] += std::pow(u, k) / kDraws;
    for (size_t k = 1; k < normal.size(); ++k) normal[k] += std::pow(z, k) / kDraws;
  }
  const auto bound = [](double variance) { return 5 * std::sqrt(variance / kDraws); };
  EXPECT_NEAR(uniform[1], 1.0 / 2, bound(1.0 / 12));
  EXPECT_NEAR(uniform[2], 1.0 / 3, bound(4.0 / 45));
  EXPECT_NEAR(normal[1], 0, bound(1));
  EXPECT_NEAR(normal[2], 1, bound(2));
  EXPECT_NEAR(normal[3], 0, bound(15));
  EXPECT_NEAR(normal[4], 3, bound(96));
}

TEST(Rng, TheTwoNormalsOfAPairAreUncorrelated) {
  const Rng rng(test_seed(), 3);
  constexpr int kPairs = 100'000;
  double product = 0;
  for (uint64_t index = 0; index < kPairs; ++index) {
    const auto [a, b] = rng.normals(index);
    ASSERT_EQ(rng.normal(2 * index), a);
    ASSERT_EQ(rng.normal(2 * index + 1), b);
    product += a * b / kPairs;
  }
  EXPECT_NEAR(product, 0, 5 / std::sqrt(kPairs));
}

TEST(Rng, BelowStaysInRangeAndReachesEveryNumber) {
  const Rng rng(test_seed(), 4);
  for (const uint64_t bound : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{10}}) {
    std::vector<int> seen(bound);
    for (uint64_t index = 0; index < 10'000; ++index) ++seen.at(rng.below(index, bound));
    const double expected = 10'000.0 / static_cast<double>(bound);
    for (const int count : seen) EXPECT_NEAR(count, expected, 5 * std::sqrt(expected)) << bound;
  }
  for (const uint64_t bound : {(uint64_t{1} << 63) + 1, ~uint64_t{0}}) {
    for (uint64_t index = 0; index < 1000; ++index) ASSERT_LT(rng.below(index, bound), bound);
  }
}

// ---- parallel_for

class ParallelFor : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_threads(GetParam()); }
  void TearDown() override { set_threads(before_); }

 private:
  int before_ = threads();
};

TEST_P(ParallelFor, RunsEveryItemOnce) {
  EXPECT_EQ(threads(), GetParam());
  for (const int64_t items : {0, 1, 2, 3, 1000}) {
    std::vector<int> runs(static_cast<size_t>(items));
    parallel_for(items, [&](int64_t item) { ++runs.at(static_cast<size_t>(item)); });
    EXPECT_EQ(std::count(runs.begin(), runs.end(), 1), items);
  }
}

TEST_P(ParallelFor, ResultDoesNotDependOnTheThreads) {
  const Rng rng(1);
  std::vector<double> result(500);
  parallel_for(500, [&](int64_t item) {
    const auto index = static_cast<uint64_t>(item);
    for (uint64_t i = 0; i <= index; ++i) result[index] += rng.normal(index * 1000 + i);
  });
  for (uint64_t index = 0; index < 500; ++index) {
    double expected = 0;
    for (uint64_t i = 0; i <= index; ++i) expected += rng.normal(index * 1000 + i);
    ASSERT_EQ(result[index], expected) << "item " << index;
  }
}

TEST_P(ParallelFor, TheExceptionOfTheLowestItemWins) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::vector<int> runs(200);
    const std::string message = message_of([&] {
      parallel_for(200, [&](int64_t item) {
        ++runs[static_cast<size_t>(item)];
        if (item % 50 == 17) throw Error(fmt::format("item {}", item));
      });
    });
    ASSERT_EQ(message, "item 17");
    // What lies below the failure is done in any case, so that the choice is a fair one.
    ASSERT_EQ(std::count(runs.begin(), runs.begin() + 18, 1), 18);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelFor, ::testing::Values(1, 2, 3));

TEST(Threads, RefusesCountsOutOfRange) {
  const int before = threads();
  for (const int count : {0, -1, kMaxThreads + 1}) {
    EXPECT_TRUE(contains(message_of([&] { set_threads(count); }), "accepted is 1 to 1024"));
  }
  EXPECT_EQ(threads(), before);
}

// ---- printable

TEST(Printable, LeavesWellFormedTextAlone) {
  for (const char* text : {"", "layer.0.weight", "größe", "重み", "\U0001f9f5", "a\\nb \"quoted\"",
                           "\u00a0", "\ud7ff", "\ue000", "\U0010ffff"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(printable("\x1b[31m\x7f"), "\\x1b[31m\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\u0085\u009b"), "\\xc2\\x85\\xc2\\x9b");  // C1: next line, CSI
}

TEST(Printable, EscapesIllFormedUtf8) {
  EXPECT_EQ(printable("\xff"), "\\xff");
  EXPECT_EQ(printable("\x80z"), "\\x80z");                  // a tail without a lead
  EXPECT_EQ(printable("\xc3"), "\\xc3");                    // a lead without a tail
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");           // cut short
  EXPECT_EQ(printable("\xe2\x82z"), "\\xe2\\x82z");         //
  EXPECT_EQ(printable("\xc0\x8a"), "\\xc0\\x8a");           // overlong newline
  EXPECT_EQ(printable("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");  // the same in three bytes
  EXPECT_EQ(printable("\xf0\x80\x80\x8a"), "\\xf0\\x80\\x80\\x8a");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past U+10FFFF
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
}

TEST(Printable, CutsLongTextAndNeverInsideACharacter) {
  EXPECT_EQ(printable(std::string(120, 'a')), std::string(120, 'a'));
  EXPECT_EQ(printable(std::string(121, 'a')), std::string(120, 'a') + "...");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("aäöü", 2), "aä...");
  EXPECT_LT(printable(std::string(1'000'000, '\n')).size(), 130u);
}

TEST(ShapeText, ListsTheDimensions) {
  EXPECT_EQ(shape_text(std::vector<int64_t>{}), "[]");
  EXPECT_EQ(shape_text(std::vector<int64_t>{768, 3072}), "[768, 3072]");
}

// ---- Json

TEST(Json, IsWrittenInTheOrderInWhichItWasMade) {
  const Json document = {{"z", 1},
                         {"a", {1.5, true, nullptr, "\u2713 \"\n"}},
                         {"empty", Json::object()},
                         {"none", Json::array()},
                         {"pair", Json{"a text", "another"}}};
  EXPECT_EQ(document.dump(),
            "{\"z\":1,\"a\":[1.5,true,null,\"\u2713 \\\"\\n\"],\"empty\":{},\"none\":[],"
            "\"pair\":[\"a text\",\"another\"]}");
  EXPECT_EQ((Json{{"a", {1, 2}}, {"b", Json::object()}}.dump(2)),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
}

TEST(Json, NumbersAreReadBackAsTheyWere) {
  EXPECT_EQ((Json{INT64_MIN, UINT64_MAX, -1, 0u, 1.0, 0.1, 1e300, std::nan("")}.dump()),
            "[-9223372036854775808,18446744073709551615,-1,0,1.0,0.1,1e+300,null]");
  const Json numbers = Json::parse("[-9223372036854775808,18446744073709551615,0.1]", "text");
  EXPECT_EQ(numbers[0].get<int64_t>(), INT64_MIN);
  EXPECT_EQ(numbers[1].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(numbers[2].get<double>(), 0.1);
  EXPECT_TRUE(numbers[1].is_number_unsigned());
  EXPECT_FALSE(numbers[0].is_number_unsigned());
}

TEST(Json, EqualsWhatSaysTheSame) {
  EXPECT_EQ(Json::parse(R"({"b": [1, 2.0], "a": null})", "text"),
            (Json{{"b", {1u, 2}}, {"a", nullptr}}));
  EXPECT_FALSE(Json(-1) == Json(UINT64_MAX));
  EXPECT_FALSE(Json(1) == Json(true));
  EXPECT_FALSE(Json("1") == Json(1));
  EXPECT_FALSE(Json(false) == Json(nullptr));
  EXPECT_FALSE(Json(false) == Json(true));
  EXPECT_FALSE((Json{{"a", 1}} == Json{{"b", 1}}));
  EXPECT_FALSE((Json{{"a", 1}} == Json{{"a", 1}, {"b", 1}}));
  EXPECT_FALSE(Json::array() == Json::object());
}

TEST(Json, MembersOfWhatIsReadStandSorted) {
  EXPECT_EQ(Json::parse(R"({"b": {"d": 1, "c": 2}, "a": []})", "text").dump(),
            R"({"a":[],"b":{"c":2,"d":1}})");
}

TEST(Json, WhatIsNotStrictlyJsonIsRefused) {
  const auto refused = [](std::string_view text) {
    return message_of([&] { Json::parse(text, "file"); });
  };
  EXPECT_TRUE(Json::parse_or_null("{").is_null());
  EXPECT_EQ(Json::parse_or_null("[1]"), Json{1});
  EXPECT_TRUE(contains(refused("{"), "file: not valid JSON: "));
  EXPECT_TRUE(contains(refused("[1] 2"), "file: not valid JSON: "));
  EXPECT_TRUE(contains(refused("\"\xff\""), "UTF-8"));
  EXPECT_EQ(refused(std::string_view("[]\0", 3)), "file: not valid JSON: it has a NUL byte");
  EXPECT_EQ(refused(R"([{"a": 1, "a": 2}])"), "file: name 'a' appears twice");
  EXPECT_EQ(refused(std::string(17, '[') + std::string(17, ']')), "file: nested more than 16 deep");
  EXPECT_EQ(refused(std::string(16, '[') + std::string(16, ']')), "(no Error)");
}

TEST(Json, TextThatIsNotUtf8IsRefusedOrReplaced) {
  const Json wrong = {{"a\xff", "b\xc3"}};
  EXPECT_TRUE(contains(message_of([&] { wrong.dump(); }), "UTF-8"));
  EXPECT_EQ(wrong.dump(-1, Json::BadText::kReplace), "{\"a\ufffd\":\"b\ufffd\"}");
}

TEST(Json, WrongKindsAreErrors) {
  const Json document = {{"text", "a"}, {"number", 1}};
  EXPECT_TRUE(contains(message_of([&] { document.at("more"); }), "no 'more'"));
  EXPECT_NE(message_of([&] { document["text"].get<int>(); }), "(no Error)");
  EXPECT_NE(message_of([&] { document["number"].get<std::string>(); }), "(no Error)");
  EXPECT_NE(message_of([&] { document["number"].get<bool>(); }), "(no Error)");
  EXPECT_NE(message_of([&] { Json(1).push_back(2); }), "(no Error)");
  EXPECT_NE(message_of([&] { Json(1).append("a", 2); }), "(no Error)");
}

// ---- AtomicFile

TEST(AtomicFile, NothingIsUnderTheTargetBeforeCommit) {
  const ScratchFolder folder;
  AtomicFile file(folder / "out");
  file.write_at(3, bytes_of("lo"));
  file.write_at(0, bytes_of("hel"));
  file.sync();
  EXPECT_FALSE(fs::exists(folder / "out"));
  file.commit();
  EXPECT_EQ(contents(folder / "out"), "hello");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
}

TEST(AtomicFile, DestroyedWithoutCommitLeavesNothing) {
  const ScratchFolder folder;
  {
    AtomicFile file(folder / "new");
    file.write_at(0, bytes_of("x"));
    const AtomicFile moved(std::move(file));
    EXPECT_EQ(names_in(folder.path()).size(), 1u);
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AtomicFile, ReplacesAFileAndKeepsItsMode) {
  const ScratchFolder folder;
  put(folder / "out", "a longer text than the new one");
  ASSERT_EQ(::chmod((folder / "out").c_str(), 0640), 0);
  write_file_atomically(folder / "out", "new");
  EXPECT_EQ(contents(folder / "out"), "new");
  struct stat status {};
  ASSERT_EQ(::stat((folder / "out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
}

TEST(AtomicFile, ANewFileObeysTheUmask) {
  const ScratchFolder folder;
  const mode_t before = ::umask(027);
  write_file_atomically(folder / "out", "new");
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat((folder / "out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
}

// No space left, in the form that needs no second disk: a limit on the size of files.
TEST(AtomicFile, AFailedWriteLeavesTheTargetAsItWas) {
  const ScratchFolder folder;
  put(folder / "out", "old");
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit tight = before;
  tight.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string message =
      message_of([&] { write_file_atomically(folder / "out", std::string(8192, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);

  EXPECT_TRUE(contains(message, (folder / "out").string())) << message;
  EXPECT_TRUE(contains(message, "cannot write")) << message;
  EXPECT_EQ(contents(folder / "out"), "old");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
}

TEST(AtomicFile, AFailedRenameLeavesTheTargetAsItWas) {
  const ScratchFolder folder;
  {
    AtomicFile file(folder / "out");
    fs::create_directory(folder / "out");  // in the way since the file was begun
    const std::string message = message_of([&] { file.commit(); });
    EXPECT_TRUE(contains(message, (folder / "out").string())) << message;
  }
  EXPECT_TRUE(fs::is_directory(folder / "out"));
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
}

TEST(AtomicFile, RefusesWhatIsNotARegularFile) {
  const ScratchFolder folder;
  fs::create_directory(folder / "folder");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", folder / "link to null");
  fs::create_symlink("nowhere", folder / "dangling link");
  fs::create_symlink("circle", folder / "circle");
  const std::set<std::string> before = names_in(folder.path());
  // Never committed: should AtomicFile take /dev/null, the machine must survive the test.
  for (const fs::path& path :
       {fs::path("/dev/null"), fs::path("/dev/stdout/"), fs::path("/"), folder / "folder",
        folder / "folder/", folder / "pipe", folder / "link to null", folder / "dangling link",
        folder / "circle", folder / "pipe/out", folder / "new folder/"}) {
    const std::string message = message_of([&] { const AtomicFile file(path); });
    EXPECT_TRUE(contains(message, path.string() + ": cannot write")) << path << ": " << message;
  }
  EXPECT_THROW(AtomicFile(""), Error);
  EXPECT_EQ(names_in(folder.path()), before);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(AtomicFile, AMissingFolderIsAnErrorThatNamesThePath) {
  const ScratchFolder folder;
  const fs::path path = folder / "missing/out";
  const std::string message = message_of([&] { write_file_atomically(path, "x"); });
  EXPECT_TRUE(contains(message, path.string())) << message;
  EXPECT_TRUE(contains(message, "No such file or directory")) << message;
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AtomicFile, FollowsASymbolicLink) {
  const ScratchFolder folder;
  fs::create_directory(folder / "elsewhere");
  put(folder / "elsewhere/real", "old");
  fs::create_symlink("elsewhere/real", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_FALSE(fs::is_symlink(folder / "elsewhere/real"));
  EXPECT_EQ(contents(folder / "elsewhere/real"), "new");
}

// In a container the process has the same id in every run: what a killed run left behind must not
// stop all later ones.
TEST(AtomicFile, LeftoversOfAKilledProcessWithTheSameIdAreRemoved) {
  const ScratchFolder folder;
  for (int i = 0; i < 300; ++i) put(folder / fmt::format(".out.weft-{}-{}", ::getpid(), i), "old");
  write_file_atomically(folder / "out", "new");
  EXPECT_EQ(contents(folder / "out"), "new");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
}

// A child that begins a file, says so, and waits to be killed.
class Writer {
 public:
  explicit Writer(const fs::path& target) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      AtomicFile file(target);
      file.write_at(0, bytes_of("half"));
      if (::write(ends[1], "x", 1) == 1) ::pause();
      ::_exit(1);
    }
    ::close(ends[1]);
    char begun = 0;
    EXPECT_EQ(::read(ends[0], &begun, 1), 1);
    ::close(ends[0]);
  }
  ~Writer() { kill(); }
  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

TEST(AtomicFile, TemporaryFilesOfTheDeadAreRemovedAndThoseOfTheLivingAreNot) {
  const ScratchFolder folder;
  Writer living(folder / "out"), dead(folder / "out"), of_another(folder / "other");
  dead.kill();
  of_another.kill();
  ASSERT_EQ(names_in(folder.path()).size(), 3u);
  put(folder / ".out.weft-notes", "of the user");
  put(folder / ".out.weft-1-2.txt", "of the user");
  write_file_atomically(folder / "out", "new");
  std::set<std::string> names = names_in(folder.path());
  EXPECT_EQ(names.size(), 5u);
  const auto has = [&](const std::string& part) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.starts_with(part); });
  };
  EXPECT_TRUE(has(fmt::format(".out.weft-{}-", living.pid()))) << "still written";
  EXPECT_TRUE(has(".other.weft-")) << "another target's";
  EXPECT_TRUE(has(".out.weft-notes") && has(".out.weft-1-2.txt"));

  // The id of a process that died may be that of another one now: ours, for example.
  living.kill();
  put(folder / fmt::format(".out.weft-{}-0", ::getpid()), "half");
  write_file_atomically(folder / "out", "newer");
  names = names_in(folder.path());
  EXPECT_EQ(names.size(), 4u);
  remove_stale_temporaries(folder.path());
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"out", ".out.weft-notes", ".out.weft-1-2.txt"}));
}

// What one process removes as stale, another may just have begun.
TEST(AtomicFile, ManyWritersOfOneTargetDoNotTakeEachOthersFiles) {
  const ScratchFolder folder;
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) write_file_atomically(folder / "out", "whole");
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"out"});
  EXPECT_EQ(contents(folder / "out"), "whole");
}

TEST(AtomicFile, TakesTheLongestNamesAndARelativePath) {
  const ScratchFolder folder;
  const std::string longest(255, 'n');
  write_file_atomically(folder / longest, "x");
  EXPECT_EQ(contents(folder / longest), "x");

  const fs::path before = fs::current_path();
  fs::current_path(folder / "");
  write_file_atomically("relative", "y");
  fs::current_path(before);
  EXPECT_EQ(contents(folder / "relative"), "y");
}

TEST(AtomicFile, ACommittedFileRefusesMore) {
  const ScratchFolder folder;
  AtomicFile file(folder / "out");
  file.commit();
  EXPECT_THROW(file.write_at(0, bytes_of("late")), Error);
  EXPECT_THROW(file.commit(), Error);
  EXPECT_EQ(contents(folder / "out"), "");
}

TEST(RemoveUnfinishedFiles, RemovesTheTemporaryFilesAndNothingElse) {
  const ScratchFolder folder;
  put(folder / "bystander", "stays");
  write_file_atomically(folder / "done", "stays");
  {
    AtomicFile first(folder / "first"), second(folder / "second");
    EXPECT_EQ(names_in(folder.path()).size(), 4u);
    remove_unfinished_files();
    EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"bystander", "done"}));
    EXPECT_THROW(first.commit(), Error);  // its bytes are gone: it must not claim success
  }
  write_file_atomically(folder / "next", "x");
  remove_unfinished_files();
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"bystander", "done", "next"}));
}

TEST(RemoveUnfinishedFiles, RemovesAFolderAfterTheFilesInIt) {
  const ScratchFolder folder;
  for (const char* name : {"made", "released", "full"}) fs::create_directory(folder / name);
  put(folder / "full/bystander", "stays");
  {
    const UnfinishedPath made(folder / "made"), full(folder / "full");
    UnfinishedPath released(folder / "released");
    released = {};
    const AtomicFile file(folder / "made/file"), other(folder / "full/file");
    errno = ENOTTY;
    remove_unfinished_files();
    EXPECT_EQ(errno, ENOTTY);  // the interrupted code may be about to look at it
    EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"full", "released"}));
    EXPECT_EQ(names_in(folder / "full"), std::set<std::string>{"bystander"});
  }
  fs::create_directory(folder / "made");
  remove_unfinished_files();
  EXPECT_TRUE(fs::exists(folder / "made"));
}

TEST(UnfinishedPath, IsTrackedByTheObjectItWasMovedTo) {
  const ScratchFolder folder;
  put(folder / "a", "");
  put(folder / "b", "");
  UnfinishedPath a(folder / "a");
  UnfinishedPath moved(std::move(a));
  a = UnfinishedPath(folder / "b");
  moved = std::move(a);  // "a" is released, "b" is tracked
  remove_unfinished_files();
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"a"});
}

TEST(UnfinishedPath, WhatFindsNoRoomIsNotTrackedAndSlotsAreUsedAgain) {
  const ScratchFolder folder;
  put(folder / "late", "");
  for (int round = 0; round < 2; ++round) {
    std::vector<UnfinishedPath> many;
    for (int i = 0; i < 2000; ++i) many.emplace_back(folder / fmt::format("missing {}", i));
    const UnfinishedPath late(folder / "late"), nothing(""), long_one(std::string(5000, 'p'));
    remove_unfinished_files();
    EXPECT_TRUE(fs::exists(folder / "late"));
  }
  const UnfinishedPath late(folder / "late");
  remove_unfinished_files();
  EXPECT_FALSE(fs::exists(folder / "late"));
}

// Slots change hands while paths are removed: a file is committed whole, or its commit fails.
TEST(RemoveUnfinishedFiles, WhileThreadsWriteTakesNoCommittedFile) {
  const ScratchFolder folder;
  std::array<std::set<std::string>, 3> committed;
  std::atomic<int> writing{3};
  std::vector<std::thread> writers;
  for (size_t t = 0; t < committed.size(); ++t) {
    writers.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string name = fmt::format("{} {}", t, i);
        try {
          write_file_atomically(folder / name, "whole");
          committed[t].insert(name);
        } catch (const Error&) {
        }
      }
      writing.fetch_sub(1);
    });
  }
  while (writing.load() > 0) remove_unfinished_files();
  for (std::thread& writer : writers) writer.join();
  std::set<std::string> expected;
  for (const std::set<std::string>& names : committed) expected.insert(names.begin(), names.end());
  EXPECT_EQ(names_in(folder.path()), expected);
  for (const std::string& name : expected) EXPECT_EQ(contents(folder / name), "whole");
}

// ---- isa

class Isa : public ::testing::Test {
 protected:
  void TearDown() override { restore_isa(); }
};

TEST_F(Isa, CurrentFollowsForcedAndGoesBack) {
  restore_isa();
  const std::vector<std::string> all = available_isas();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(current_isa(), all.front());
  for (const std::string& name : all) {
    force_isa(name);
    EXPECT_EQ(current_isa(), name);
  }
  restore_isa();
  EXPECT_EQ(current_isa(), all.front());
  EXPECT_EQ(available_isas(), all);
}

TEST_F(Isa, AnUnknownNameIsAnErrorThatNamesTheAvailableOnes) {
  restore_isa();
  const std::vector<std::string> all = available_isas();
  for (const std::string name : {"abacus", "", "AVX2 ", "\x1b[31m\n"}) {
    const std::string message = message_of([&] { force_isa(name); });
    EXPECT_TRUE(contains(message, fmt::format("'{}'", printable(name)))) << message;
    for (const std::string& known : all) EXPECT_TRUE(contains(message, known)) << message;
    EXPECT_EQ(current_isa(), all.front());
  }
}

TEST_F(Isa, ARefusedNameLeavesTheForcedOneInPlace) {
  restore_isa();
  const std::string last = available_isas().back();
  force_isa(last);
  EXPECT_THROW(force_isa("abacus"), Error);
  EXPECT_EQ(current_isa(), last);
}

TEST_F(Isa, ObeysTheEnvironment) {
  const char* set = std::getenv("WEFT_ISA");
  const std::optional<std::string> before = set ? std::optional<std::string>(set) : std::nullopt;
  restore_isa();
  const std::string last = available_isas().back();
  ::setenv("WEFT_ISA", last.c_str(), 1);
  force_isa_from_environment();
  EXPECT_EQ(current_isa(), last);
  ::setenv("WEFT_ISA", "abacus", 1);
  const std::string message = message_of([] { force_isa_from_environment(); });
  EXPECT_TRUE(message.starts_with("WEFT_ISA: ")) << message;
  restore_isa();
  const std::string best = current_isa();
  ::setenv("WEFT_ISA", "", 1);
  force_isa_from_environment();
  EXPECT_EQ(current_isa(), best);
  before ? ::setenv("WEFT_ISA", before->c_str(), 1) : ::unsetenv("WEFT_ISA");
}

TEST(Median, AndOtherQuantiles) {
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({4.0, 1.0, 2.0, 3.0}), 2.5);
  EXPECT_EQ(quantile({5.0, 1.0, 3.0, 2.0, 4.0}, 0.25), 2.0);
  EXPECT_EQ(quantile({5.0, 1.0, 3.0, 2.0, 4.0}, 1.0), 5.0);
  EXPECT_EQ(quantile({0.0, 10.0}, 0.75), 7.5);
  EXPECT_THROW(median({}), Error);
}

// Columns: user nice system idle iowait irq softirq steal.
TEST(MachineLoad, CountsTheBusyTimeOfTheCpusThatItMayUse) {
  const char* stat =
      "cpu  9 9 9 9 9 9 9 9 0 0\n"
      "cpu0 100 20 30 5000 600 1 2 3 0 0\n"
      "cpu1 1000 0 0 5000 0 0 0 0 0 0\n"
      "intr 12345 1 2 3\n";
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  EXPECT_DOUBLE_EQ(MachineLoad::busy_seconds(stat, {0}), 156 / ticks);
  EXPECT_DOUBLE_EQ(MachineLoad::busy_seconds(stat, {0, 1}), 1156 / ticks);
  EXPECT_EQ(MachineLoad::busy_seconds("", {0}), 0.0);
}

TEST(MachineLoad, LeavesOutThisProcess) {
  EXPECT_DOUBLE_EQ(MachineLoad::others(/*busy=*/3.0, /*own=*/2.0, /*wall=*/2.0), 0.5);
  EXPECT_EQ(MachineLoad::others(1.9, 2.0, 2.0), 0.0) << "ticks are coarse";
  EXPECT_EQ(MachineLoad::others(0.04, 0.0, 0.01), 0.0) << "too short to say";
}

}  // namespace
}  // namespace weft
