#include "weft/pack/dense_tiles.h"

#include <algorithm>
#include <cstring>

#include "weft/core/ceil_div.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

Bf16 rounded(float value) { return to_bf16(value); }
Bf16 rounded(Bf16 value) { return value; }

// 16 pairs of 16 columns, from element (k, c) at from[k * depth_step + c * col_step].
struct TileSource {
  int64_t depth_step;
  int64_t col_step;
  int64_t depth;  // that is there, of 32
  int64_t cols;   // that are there, of 16
};

// Two rows of depth at a time, interleaved.
template <typename T>
void fill_from_depth(const T* from, const TileSource& at, Bf16* to) {
  for (int64_t k = 0; k < at.depth; k += 2, to += 32) {
    const T* even = from + k * at.depth_step;
    if (k + 1 < at.depth) {
      const T* odd = even + at.depth_step;
      for (int64_t c = 0; c < at.cols; ++c) {
        to[2 * c] = rounded(even[c]);
        to[2 * c + 1] = rounded(odd[c]);
      }
    } else {
      for (int64_t c = 0; c < at.cols; ++c) to[2 * c] = rounded(even[c]);
    }
  }
}

// A column at a time, which is a row of the matrix: its pairs are complete already.
template <typename T>
void fill_from_columns(const T* from, const TileSource& at, Bf16* to) {
  for (int64_t c = 0; c < at.cols; ++c) {
    const T* row = from + c * at.col_step;
    Bf16 column[DenseTiles::kDepth] = {};
    for (int64_t k = 0; k < at.depth; ++k) column[k] = rounded(row[k]);
    for (int pair = 0; pair < 16; ++pair) {
      std::memcpy(to + pair * 32 + 2 * c, column + 2 * pair, 2 * sizeof(Bf16));
    }
  }
}

template <typename T>
void fill_tile(const T* from, const TileSource& at, Bf16* to) {
  if (at.depth < DenseTiles::kDepth || at.cols < 16) std::fill_n(to, 512, Bf16{});
  at.col_step == 1 ? fill_from_depth(from, at, to) : fill_from_columns(from, at, to);
}

}  // namespace

template <typename T>
void DenseTiles::pack_any(MatrixView<const T> w, bool transposed) {
  depth_ = transposed ? w.cols : w.rows;
  cols_ = transposed ? w.rows : w.cols;
  steps_ = ceil_div(depth_, kDepth);
  blocks_ = ceil_div(cols_, kColumns);
  values_.reserve(static_cast<size_t>(blocks_ * steps_ * kDepth * kColumns));
  const int64_t depth_step = transposed ? 1 : w.row_stride,
                col_step = transposed ? w.row_stride : 1;
  parallel_for(blocks_ * 2, [&](int64_t half) {
    const int64_t first = half * 16;
    Bf16* to = values_.data() + half / 2 * steps_ * kDepth * kColumns + half % 2 * 512;
    for (int64_t step = 0; step < steps_; ++step, to += 1024) {
      const int64_t k = step * kDepth;
      const TileSource at{depth_step, col_step, std::min<int64_t>(kDepth, depth_ - k),
                          std::clamp<int64_t>(cols_ - first, 0, 16)};
      const int64_t offset = at.cols == 0 ? 0 : k * depth_step + first * col_step;
      fill_tile(w.data + offset, at, to);
    }
  });
}

void DenseTiles::pack(MatrixView<const float> w, bool transposed) { pack_any(w, transposed); }
void DenseTiles::pack(MatrixView<const Bf16> w, bool transposed) { pack_any(w, transposed); }

}  // namespace weft
