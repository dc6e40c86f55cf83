// What tests of packed matrices share: matrices and masks to pack, and the check that they come back.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/weights.h"
#include "weft/core/bf16.h"
#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"
#include "weft/core/rng.h"
#include "weft/mask/solver.h"
#include "weft/pack/pack.h"

namespace weft::test {

inline constexpr PackTile kTile{32, 16};

inline const std::vector<std::string> kPatterns = {"1:2",   "2:4",   "1:4",   "3:4",  "4:8",
                                                   "1:16",  "5:7",   "8:16",  "3:64", "64:64",
                                                   "2:4x2", "1:4x4", "2:4x32"};

// Weights whose every bit counts: wide, of both signs, with zeros of both signs.
inline std::vector<float> numbers(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  const Rng rng(test_seed(), stream);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = draw<float>(i % 7 == 3 ? Kind::kZeros : Kind::kWide, rng, i);
  }
  return values;
}

// Sizes of the matrix, of its segments, and from one row to the next.
struct Shape {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t segment = 0;  // 0: all columns
  int64_t gap = 0;      // floats between rows that belong to nobody
};

struct Matrix {
  Shape shape;
  std::vector<float> values;  // [rows, cols + gap]

  Matrix(const Shape& shape, uint64_t stream)
      : shape(shape), values(numbers(shape.rows * (shape.cols + shape.gap), stream)) {}
  MatrixView<const float> view() const {
    return {values.data(), shape.rows, shape.cols, shape.cols + shape.gap};
  }
  float at(int64_t row, int64_t col) const {
    return values[static_cast<size_t>(row * (shape.cols + shape.gap) + col)];
  }
  int64_t segment() const { return shape.segment == 0 ? shape.cols : shape.segment; }
};

// The largest of every group, one segment after the other.
inline Mask largest(const Matrix& matrix, const Pattern& pattern) {
  Mask mask(matrix.shape.rows, matrix.shape.cols);
  const int64_t wide = matrix.segment();
  for (int64_t begin = 0; begin < matrix.shape.cols; begin += wide) {
    std::vector<float> part;
    for (int64_t r = 0; r < matrix.shape.rows; ++r) {
      for (int64_t c = begin; c < begin + wide; ++c) part.push_back(matrix.at(r, c));
    }
    const Mask found =
        find_mask(solver("magnitude"), part.data(), {matrix.shape.rows, wide, 1}, pattern);
    for (int64_t r = 0; r < matrix.shape.rows; ++r) {
      for (int64_t c = 0; c < wide; ++c) mask.set(r, begin + c, found.at(r, c));
    }
  }
  return mask;
}

// The same mask with about a third of its bits gone; rows that share lose the same ones.
inline Mask thinned(const Mask& mask, const Pattern& pattern, uint64_t stream) {
  Mask result = mask;
  const Rng rng(test_seed(), stream);
  for (int64_t r = 0; r < mask.rows(); ++r) {
    const int64_t cell =
        pattern.share() == 1 ? r : r / pattern.block() * pattern.block() + r % pattern.group();
    for (int64_t c = 0; c < mask.cols(); ++c) {
      if (rng.uniform(static_cast<uint64_t>(cell * mask.cols() + c)) < 0.33) {
        result.set(r, c, false);
      }
    }
  }
  return result;
}

inline bool same_bytes(const PackedMatrix& a, const PackedMatrix& b) {
  return std::ranges::equal(a.bytes(), b.bytes());
}

inline void expect_round_trip(const Matrix& matrix, const Mask& mask, const PackedMatrix& packed) {
  const Unpacked back = unpack(packed);
  EXPECT_EQ(back.mask, mask);
  EXPECT_EQ(packed.kept(), mask.count());
  EXPECT_EQ(packed.density(), mask.density());
  ASSERT_EQ(back.values.size(), static_cast<size_t>(mask.rows() * mask.cols()));
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.cols(); ++c) {
      const float value = matrix.at(r, c);
      const float stored =
          packed.value_type() == Precision::kFp32 ? value : bf16_to_float(float_to_bf16(value));
      ASSERT_EQ(std::bit_cast<uint32_t>(back.values[static_cast<size_t>(r * mask.cols() + c)]),
                mask.at(r, c) ? std::bit_cast<uint32_t>(stored) : 0u)
          << "at " << r << ", " << c << " of value " << value;
    }
  }
  const PackedMatrix copy = PackedMatrix::from_bytes(packed.bytes());
  EXPECT_TRUE(same_bytes(copy, packed));
}

// Calls body(matrix, mask, pattern) for patterns, shapes around the tiles of both layouts and of
// the pattern, full and thinned masks.
template <typename Body>
void for_each_case(Body body) {
  uint64_t stream = 1;
  for (const std::string& text : kPatterns) {
    const Pattern pattern = Pattern::parse(text);
    std::vector<Shape> shapes;
    for (const int64_t rows : {0, 1, 15, 16, 17, 33}) shapes.push_back({rows, 37, 0, 3});
    for (const int64_t cols : edges(pattern.group())) shapes.push_back({5, cols, 0, 0});
    for (const int64_t cols : edges(kTile.depth)) shapes.push_back({18, cols, 0, 1});
    shapes.push_back({18, 200, 0, 1});  // whole words of a mask in a panel that is deep enough
    for (const int64_t rows : edges(pattern.block())) {
      if (pattern.share() > 1) shapes.push_back({rows, 9, 0, 0});
    }
    for (const int64_t segment : {1, 3, pattern.group(), pattern.group() + 1}) {
      shapes.push_back({17, 3 * segment, segment, 2});
    }
    for (const Shape& shape : shapes) {
      const Matrix matrix(shape, ++stream);
      const Mask full = largest(matrix, pattern);
      for (const Mask& mask : {full, thinned(full, pattern, stream)}) {
        SCOPED_TRACE(fmt::format("{} on {} x {}, segments of {}, {} kept, seed {} stream {}", text,
                                 shape.rows, shape.cols, matrix.segment(), mask.count(),
                                 test_seed(), stream));
        body(matrix, mask, pattern);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace weft::test
