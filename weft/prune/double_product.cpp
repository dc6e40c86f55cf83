#include "weft/prune/double_product.h"

#include <algorithm>

#include "weft/core/aligned_buffer.h"
#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/prune/double_product.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Four rows by three vectors: twelve sums, three vectors of b and one of a are the sixteen
// registers of AVX2. A block of c is kRows x kCols; its share of a and b, kDepth deep, stays in a
// cache of 512 KB.
constexpr int64_t kTileRows = 4, kTileVectors = 3;
constexpr int64_t kRows = 96, kCols = 144, kDepth = 192;

using D = hn::ScalableTag<double>;

int64_t tile_cols() { return kTileVectors * static_cast<int64_t>(hn::Lanes(D())); }

// a: [depth, kTileRows], b: [depth, tile_cols()], both packed; sums: [kTileRows, tile_cols()]
void tile_product(const double* a, const double* b, int64_t depth, double* sums) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s00 = hn::Zero(d), s01 = s00, s02 = s00;
  auto s10 = s00, s11 = s00, s12 = s00;
  auto s20 = s00, s21 = s00, s22 = s00;
  auto s30 = s00, s31 = s00, s32 = s00;
  for (int64_t k = 0; k < depth; ++k, a += kTileRows, b += kTileVectors * lanes) {
    const auto b0 = hn::Load(d, b), b1 = hn::Load(d, b + lanes), b2 = hn::Load(d, b + 2 * lanes);
    const auto a0 = hn::Set(d, a[0]);
    s00 = hn::MulAdd(a0, b0, s00), s01 = hn::MulAdd(a0, b1, s01), s02 = hn::MulAdd(a0, b2, s02);
    const auto a1 = hn::Set(d, a[1]);
    s10 = hn::MulAdd(a1, b0, s10), s11 = hn::MulAdd(a1, b1, s11), s12 = hn::MulAdd(a1, b2, s12);
    const auto a2 = hn::Set(d, a[2]);
    s20 = hn::MulAdd(a2, b0, s20), s21 = hn::MulAdd(a2, b1, s21), s22 = hn::MulAdd(a2, b2, s22);
    const auto a3 = hn::Set(d, a[3]);
    s30 = hn::MulAdd(a3, b0, s30), s31 = hn::MulAdd(a3, b1, s31), s32 = hn::MulAdd(a3, b2, s32);
  }
  const auto store = [&](int64_t row, const auto& x, const auto& y, const auto& z) {
    double* to = sums + row * kTileVectors * lanes;
    hn::Store(x, d, to), hn::Store(y, d, to + lanes), hn::Store(z, d, to + 2 * lanes);
  };
  store(0, s00, s01, s02);
  store(1, s10, s11, s12);
  store(2, s20, s21, s22);
  store(3, s30, s31, s32);
}

// Slivers of kTileRows rows, each [depth, kTileRows], filled up with zeros.
void pack_rows(MatrixView<const double> a, double* to) {
  for (int64_t r = 0; r < a.rows; r += kTileRows, to += kTileRows * a.cols) {
    for (int64_t i = 0; i < kTileRows; ++i) {
      for (int64_t k = 0; k < a.cols; ++k) {
        to[k * kTileRows + i] = r + i < a.rows ? a.row(r + i)[k] : 0.0;
      }
    }
  }
}

// Slivers of tile_cols() columns, each [depth, tile_cols()], filled up with zeros.
void pack_cols(MatrixView<const double> b, double* to) {
  const int64_t width = tile_cols();
  for (int64_t c = 0; c < b.cols; c += width, to += width * b.rows) {
    const int64_t count = std::min(width, b.cols - c);
    for (int64_t k = 0; k < b.rows; ++k) {
      std::copy_n(b.row(k) + c, count, to + k * width);
      std::fill(to + k * width + count, to + (k + 1) * width, 0.0);
    }
  }
}

void add_tile(double alpha, const double* sums, MatrixView<double> c) {
  const int64_t width = tile_cols();
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t i = 0; i < c.cols; ++i) c.row(r)[i] += alpha * sums[r * width + i];
  }
}

void add_block(double alpha, MatrixView<const double> a, MatrixView<const double> b,
               MatrixView<double> c) {
  const int64_t width = tile_cols();
  const auto padded_rows = static_cast<size_t>(ceil_div(c.rows, kTileRows) * kTileRows);
  const auto padded_cols = static_cast<size_t>(ceil_div(c.cols, width) * width);
  const AlignedBuffer<double> rows(padded_rows * kDepth), cols(padded_cols * kDepth);
  const AlignedBuffer<double> sums(static_cast<size_t>(kTileRows * width));
  for (int64_t k = 0; k < a.cols; k += kDepth) {
    const int64_t depth = std::min(kDepth, a.cols - k);
    pack_rows(a.cols_from(k, depth), rows.data());
    pack_cols(b.rows_from(k, depth), cols.data());
    for (int64_t j = 0; j < c.cols; j += width) {
      for (int64_t i = 0; i < c.rows; i += kTileRows) {
        tile_product(rows.data() + i * depth, cols.data() + j * depth, depth, sums.data());
        add_tile(alpha, sums.data(),
                 c.rows_from(i, std::min(kTileRows, c.rows - i))
                     .cols_from(j, std::min(width, c.cols - j)));
      }
    }
  }
}

void add_product_on(double alpha, MatrixView<const double> a, MatrixView<const double> b,
                    MatrixView<double> c) {
  const int64_t down = ceil_div(c.rows, kRows), across = ceil_div(c.cols, kCols);
  parallel_for(down * across, [&](int64_t block) {
    const int64_t row = block / across * kRows, col = block % across * kCols;
    const int64_t rows = std::min(kRows, c.rows - row), cols = std::min(kCols, c.cols - col);
    add_block(alpha, a.rows_from(row, rows), b.cols_from(col, cols),
              c.rows_from(row, rows).cols_from(col, cols));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(add_product_on);

void add_product(double alpha, MatrixView<const double> a, MatrixView<const double> b,
                 MatrixView<double> c) {
  WEFT_CHECK(a.rows == c.rows && a.cols == b.rows && b.cols == c.cols,
             "a product of [{}, {}] and [{}, {}] is not [{}, {}]", a.rows, a.cols, b.rows, b.cols,
             c.rows, c.cols);
  HWY_DYNAMIC_DISPATCH(add_product_on)(alpha, a, b, c);
}

}  // namespace weft
#endif
