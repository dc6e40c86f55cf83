// MatrixView: a row-major matrix; it does not own the memory. Sizes and strides in elements.
#pragma once

#include <cassert>
#include <cstdint>

namespace weft {

template <typename T>
struct MatrixView {
  T* data = nullptr;  // [rows, cols], row r at data + r * row_stride
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;  // >= cols

  MatrixView() = default;
  MatrixView(T* data, int64_t rows, int64_t cols) : MatrixView(data, rows, cols, cols) {}
  MatrixView(T* data, int64_t rows, int64_t cols, int64_t row_stride)
      : data(data), rows(rows), cols(cols), row_stride(row_stride) {}

  T* row(int64_t r) const {
    assert(r >= 0 && r < rows);
    return data + r * row_stride;
  }
  T& at(int64_t r, int64_t c) const {
    assert(c >= 0 && c < cols);
    return row(r)[c];
  }
  MatrixView rows_from(int64_t first, int64_t count) const {
    assert(first >= 0 && count >= 0 && first + count <= rows);
    return MatrixView(data + first * row_stride, count, cols, row_stride);
  }
  MatrixView cols_from(int64_t first, int64_t count) const {
    assert(first >= 0 && count >= 0 && first + count <= cols);
    return MatrixView(data + first, rows, count, row_stride);
  }

  operator MatrixView<const T>() const { return {data, rows, cols, row_stride}; }
};

}  // namespace weft
