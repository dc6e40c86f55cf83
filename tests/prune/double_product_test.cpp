// Products of doubles against naive ones, exact on integers.
#include "weft/prune/double_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/prune/matrices.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

struct Product {
  int64_t m, k, n;
};

// c lies inside a larger matrix whose other entries must stay.
Matrix framed_product(double alpha, const Matrix& a, const Matrix& b, const Matrix& start) {
  constexpr double kCanary = 12345.0;
  const int64_t m = start.rows, n = start.cols, stride = n + 5;
  const auto strided = [](const Matrix& from, int64_t gap) {
    Matrix to(from.rows, from.cols + gap);
    std::ranges::fill(to.values, std::numeric_limits<double>::quiet_NaN());
    for (int64_t r = 0; r < from.rows; ++r) {
      for (int64_t c = 0; c < from.cols; ++c) to.at(r, c) = from.at(r, c);
    }
    return to;
  };
  const Matrix a_wide = strided(a, 3), b_wide = strided(b, 1);
  Matrix frame(m + 2, stride);
  std::ranges::fill(frame.values, kCanary);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) frame.at(r + 1, c + 2) = start.at(r, c);
  }
  add_product(alpha, a_wide.view().cols_from(0, a.cols), b_wide.view().cols_from(0, b.cols),
              frame.view().rows_from(1, m).cols_from(2, n));
  Matrix found(m, n);
  for (int64_t r = 0; r < m + 2; ++r) {
    for (int64_t c = 0; c < stride; ++c) {
      const bool inside = r >= 1 && r <= m && c >= 2 && c < n + 2;
      if (inside) found.at(r - 1, c - 2) = frame.at(r, c);
      if (!inside) {
        EXPECT_EQ(frame.at(r, c), kCanary) << "at [" << r << ", " << c << "]";
      }
    }
  }
  return found;
}

std::vector<Product> product_shapes() {
  std::vector<Product> shapes = {{0, 3, 3}, {3, 0, 3}, {3, 3, 0}, {0, 0, 0}};
  const std::vector<int64_t> rows = {1, 3, 4, 5, 9, 95, 96, 97, 193};
  const std::vector<int64_t> cols = {1, 5, 6, 7, 11, 12, 13, 23, 24, 25, 143, 144, 145, 289};
  const std::vector<int64_t> depths = {1, 2, 191, 192, 193, 385};
  for (const int64_t m : rows) shapes.push_back({m, 7, 13});
  for (const int64_t n : cols) shapes.push_back({5, 3, n});
  for (const int64_t k : depths) shapes.push_back({5, k, 13});
  shapes.insert(shapes.end(), {{97, 193, 145}, {193, 5, 289}, {1, 385, 1}, {96, 192, 144}});
  return shapes;
}

TEST(AddProduct, IsExactOnIntegersAtEveryEdgeAndStaysInside) {
  for (const auto& [m, k, n] : product_shapes()) {
    SCOPED_TRACE(fmt::format("[{}, {}] x [{}, {}], seed {}", m, k, k, n, test_seed()));
    const Matrix a = draw_matrix(Kind::kIntegers, m, k, 1);
    const Matrix b = draw_matrix(Kind::kIntegers, k, n, 2);
    const Matrix start = draw_matrix(Kind::kIntegers, m, n, 3);
    Matrix expected = naive_product(a, b);
    for (size_t i = 0; i < expected.values.size(); ++i) {
      expected.values[i] = start.values[i] - 2 * expected.values[i];
    }
    EXPECT_EQ(framed_product(-2.0, a, b, start), expected);
  }
}

TEST(AddProduct, IsThatOfDoubleAndHasTheSameBitsOnTwoThreads) {
  const ThreadsGuard guard;
  for (const auto& [m, k, n] : {Product{97, 193, 145}, {193, 31, 289}, {5, 385, 1}}) {
    const Matrix a = draw_matrix(Kind::kGaussian, m, k, 4);
    const Matrix b = draw_matrix(Kind::kGaussian, k, n, 5);
    set_threads(1);
    const Matrix one = framed_product(1.0, a, b, Matrix(m, n));
    set_threads(2);
    EXPECT_EQ(framed_product(1.0, a, b, Matrix(m, n)), one);
    EXPECT_LT(farthest(one, naive_product(a, b)), 1e-12);
  }
}

TEST(AddProduct, RefusesShapesThatDoNotFit) {
  const Matrix a(2, 3), b(4, 2);
  Matrix c(2, 2);
  EXPECT_TRUE(contains(message_of([&] { add_product(1.0, a.view(), b.view(), c.view()); }),
                       "[2, 3] and [4, 2] is not [2, 2]"));
}

}  // namespace
}  // namespace weft
