// The panel layout: what goes in comes out, and lies as docs/format.md says; and its transposes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "tests/pack/matrices.h"
#include "weft/mask/solver.h"
#include "weft/pack/pack.h"

namespace weft::test {
namespace {

TEST(Panel, RoundTrips) {
  for_each_case([](const Matrix& matrix, const Mask& mask, const Pattern& pattern) {
    for (const Precision type : {Precision::kFp32, Precision::kBf16}) {
      for (const PackTile tile : {kTile, PackTile{7, 32}, PackTile{1, 16}, PackTile{1024, 16}}) {
        const PackedMatrix packed =
            pack_panels(matrix.view(), mask, {pattern, tile, type, false, matrix.shape.segment});
        EXPECT_EQ(packed.pattern(), pattern);
        EXPECT_FALSE(packed.ragged());
        expect_round_trip(matrix, mask, packed);
      }
    }
  });
}

// One row of panels after the other, one cell after the other, its entries in order of depth.
void expect_panels_as_described(const Matrix& matrix, const Mask& mask, const Pattern& pattern,
                                const PackTile& tile) {
  const PackedMatrix packed = pack_panels(
      matrix.view(), mask, {pattern, tile, Precision::kFp32, false, matrix.shape.segment});
  const PanelView view = packed.panel();
  const auto* values = static_cast<const float*>(view.values);
  size_t entry = 0;
  for (int64_t p = 0; p < view.panels; ++p) {
    for (int64_t cell = 0; cell < view.cells; ++cell) {
      ASSERT_EQ(view.starts[p * view.cells + cell], entry);
      const int64_t first = pattern.share() == 1
                                ? cell
                                : cell / pattern.group() * pattern.block() + cell % pattern.group();
      const int64_t begin = tile.depth * p;
      for (int64_t k = begin; k < std::min(mask.cols(), begin + tile.depth); ++k) {
        if (first >= mask.rows() || !mask.at(first, k)) continue;
        ASSERT_EQ(view.offsets[entry], (k - begin) * tile.width * 4);
        for (int m = 0; m < pattern.share(); ++m) {
          const int64_t row = first + m * pattern.group();
          const float expected = row < mask.rows() ? matrix.at(row, k) : 0.0f;
          ASSERT_EQ(std::bit_cast<uint32_t>(values[entry * pattern.share() + m]),
                    std::bit_cast<uint32_t>(expected));
        }
        ++entry;
      }
    }
  }
  ASSERT_EQ(view.starts[view.panels * view.cells], entry);
  ASSERT_EQ(packed.header().entries, static_cast<int64_t>(entry));
}

TEST(Panel, LiesAsDescribed) {
  for_each_case([](const Matrix& matrix, const Mask& mask, const Pattern& pattern) {
    for (const PackTile& tile : {kTile, PackTile{150, 48}}) {
      expect_panels_as_described(matrix, mask, pattern, tile);
    }
  });
}

Matrix transposed(const Matrix& matrix) {
  Matrix result({matrix.shape.cols, matrix.shape.rows, 0, 0}, 0);
  for (int64_t r = 0; r < matrix.shape.rows; ++r) {
    for (int64_t c = 0; c < matrix.shape.cols; ++c) {
      result.values[static_cast<size_t>(c * matrix.shape.rows + r)] = matrix.at(r, c);
    }
  }
  return result;
}

TEST(Panel, TransposedIsThePackOfTheTranspose) {
  for_each_case([](const Matrix& matrix, const Mask& mask, const Pattern& pattern) {
    if (pattern.share() > 1) return;  // what shares along outputs does not along inputs
    for (const PackTile tile : {kTile, PackTile{5, 48}}) {
      const PanelOptions ragged{pattern, tile, Precision::kFp32, true};
      const PackedMatrix packed = pack_panels_transposed(matrix.view(), mask, ragged);
      EXPECT_TRUE(packed.ragged());
      const Matrix other = transposed(matrix);
      EXPECT_TRUE(same_bytes(packed, pack_panels(other.view(), mask.transposed(), ragged)));
      expect_round_trip(other, mask.transposed(), packed);
    }
  });
}

TEST(Panel, TransposableMasksPackBothWays) {
  for (const std::string text : {"2:4", "4:8", "1:4", "2:4x2", "2:4x4"}) {
    const Pattern pattern = Pattern::parse(text);
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{64, 96}, {30, 41}, {4, 8}, {64, 300}, {300, 150}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", text, rows, cols));
      const Matrix matrix({rows, cols}, 77);
      const Mask mask = find_mask(solver("exact"), matrix.values.data(), {rows, cols, 1}, pattern);
      const Matrix other = transposed(matrix);
      for (const PackTile& tile : {kTile, PackTile{128, 16}}) {
        const PanelOptions options{pattern, tile};
        expect_round_trip(matrix, mask, pack_panels(matrix.view(), mask, options));
        const PackedMatrix packed = pack_panels_transposed(matrix.view(), mask, options);
        expect_round_trip(other, mask.transposed(), packed);
        EXPECT_TRUE(same_bytes(packed, pack_panels(other.view(), mask.transposed(), options)));
      }
    }
  }
}

}  // namespace
}  // namespace weft::test
