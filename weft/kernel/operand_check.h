// What every product checks of its operands before it begins.
#pragma once

#include "weft/core/error.h"
#include "weft/core/matrix_view.h"

namespace weft {

template <typename T>
void check_operand(const char* product, const char* name, MatrixView<T> m, int64_t rows,
                   int64_t cols) {
  WEFT_CHECK(m.rows == rows && m.cols == cols && rows >= 0 && cols >= 0 && m.row_stride >= cols,
             "{}: {} is {} x {} with rows {} apart, accepted is {} x {}", product, name, m.rows,
             m.cols, m.row_stride, rows, cols);
  WEFT_CHECK(m.data != nullptr || rows == 0 || cols == 0, "{}: {} is {} x {} at null", product,
             name, rows, cols);
}

// The same where the message need not name the product.
template <typename T>
void check_operand(const char* name, MatrixView<T> m, int64_t rows, int64_t cols) {
  WEFT_CHECK(m.rows == rows && m.cols == cols && rows >= 0 && cols >= 0 && m.row_stride >= cols,
             "{} is {} x {} with rows {} apart where the product takes {} x {}", name, m.rows,
             m.cols, m.row_stride, rows, cols);
  WEFT_CHECK(m.data != nullptr || rows == 0 || cols == 0, "{} is null", name);
}

template <typename T>
void check_data(const char* name, const T* data, int64_t size) {
  WEFT_CHECK(data != nullptr || size == 0, "{} is null", name);
}

inline void check_beta(float beta) {
  WEFT_CHECK(beta == 0 || beta == 1, "beta {}: accepted are 0 and 1", beta);
}
inline void check_beta(const char* product, float beta) {
  WEFT_CHECK(beta == 0 || beta == 1, "{}: beta is {}, accepted is 0 or 1", product, beta);
}

}  // namespace weft
