// Views of matrices whose rows are a stride apart.
#include <gtest/gtest.h>

#include <vector>

#include "weft/core/matrix_view.h"

namespace weft {
namespace {

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

}  // namespace
}  // namespace weft
