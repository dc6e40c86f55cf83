// What a mask keeps of a row.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/pack/matrices.h"
#include "tests/products.h"
#include "weft/core/mask.h"
#include "weft/core/rng.h"
#include "weft/pack/keep_row.h"

namespace weft::test {
namespace {

// A row with a part of a mask of about `density`, and what keep_row() should make of it.
struct KeptRow {
  Mask mask;
  int64_t begin, count;
  std::vector<float> first, second;
  std::vector<int64_t> kept;

  KeptRow(int64_t begin, int64_t count, double density, uint64_t stream)
      : mask(3, begin + count + 5),
        begin(begin),
        count(count),
        first(numbers(count, stream)),
        second(numbers(count, stream + 1)) {
    const Rng rng(test_seed(), stream + 2);
    for (int64_t c = 0; c < mask.cols(); ++c) {
      mask.set(1, c, rng.uniform(static_cast<uint64_t>(c)) < density);
      if (c >= begin && c < begin + count && mask.at(1, c)) kept.push_back(c - begin);
    }
    if (count > 0) first[0] = std::bit_cast<float>(0x7fa12345);  // a NaN with a payload
  }
};

// Two rows and one, with offsets and without. `more` entries behind the kept ones may be
// overwritten; those behind them are not.
void expect_kept(const KeptRow& row, int64_t more, bool with_offsets) {
  constexpr uint16_t kUntouched = 54321;
  const size_t kept = row.kept.size(), room = kept + static_cast<size_t>(more);
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  for (const size_t rows : {1, 2}) {
    SCOPED_TRACE(fmt::format("{} rows", rows));
    std::vector<uint16_t> offsets(room + 8, kUntouched);
    std::vector<float> values(rows * (room + 8), -7.0f);
    const KeepRow keep{.mask = row.mask,
                       .row = 1,
                       .begin = row.begin,
                       .count = row.count,
                       .offsets = with_offsets ? offsets.data() : nullptr,
                       .step = 192,
                       .room = static_cast<int64_t>(room)};
    rows == 1 ? keep_row(keep, row.first.data(), values.data())
              : keep_two_rows(keep, row.first.data(), row.second.data(), values.data());
    for (size_t i = 0; i < kept; ++i) {
      const auto k = static_cast<size_t>(row.kept[i]);
      ASSERT_EQ(offsets[i], with_offsets ? static_cast<uint16_t>(k * 192) : kUntouched) << i;
      ASSERT_EQ(bits(values[rows * i]), bits(row.first[k])) << i;
      ASSERT_EQ(bits(values[rows * i + rows - 1]), bits((rows == 1 ? row.first : row.second)[k]));
    }
    for (size_t i = room; i < room + 8; ++i) ASSERT_EQ(offsets[i], kUntouched) << i - room;
    for (size_t i = rows * room; i < values.size(); ++i) {
      ASSERT_EQ(values[i], -7.0f) << i - rows * room << " behind the room";
    }
  }
}

TEST(KeepRow, TakesWhatIsKeptAndWritesNowhereElse) {
  test::for_each_isa([](const std::string& isa) {
    uint64_t stream = 900;
    for (const int64_t begin : {0, 64, 37}) {
      for (const int64_t count : {0, 1, 7, 63, 64, 65, 127, 128, 200, 342}) {
        for (const double density : {0.0, 0.06, 0.125, 0.25, 0.5, 0.9, 1.0}) {
          const KeptRow row(begin, count, density, stream += 3);
          for (const int64_t more : {0, 1, 5, 8, 100}) {
            SCOPED_TRACE(fmt::format("{}: columns {} to {}, density {}, {} more", isa, begin,
                                     begin + count, density, more));
            expect_kept(row, more, /*with_offsets=*/true);
            expect_kept(row, more, /*with_offsets=*/false);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace weft::test
