#include "weft/kernel/tile/tile_product.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/operand_check.h"
#include "weft/kernel/tile/tile_ops.h"
#include "weft/pack/tiles.h"
#include "weft/pack/transpose_bf16.h"

namespace weft {
namespace {

constexpr int64_t kWidth = kTileColumns;
// Of B, copied for one pass over A. It stays in L2 (2 MB where AMX is) beside what passes through.
constexpr int64_t kStripesBytes = 1 << 20;
constexpr int64_t kMostStripes = 8;

// A stripe of B: panels of [panel depth + 1, 64], columns in the order of panel_place, zeros past
// the edges and in the last row of each panel.
class StripeCopy {
 public:
  StripeCopy(const TileView& a, const TileOperand& b, int64_t cols) : a_(a), b_(b), cols_(cols) {}

  static int64_t size(const TileView& a) { return a.panels * (a.tile.depth + 1) * kWidth; }
  Bf16* panel(Bf16* stripe, int64_t p) const { return stripe + p * (a_.tile.depth + 1) * kWidth; }

  void copy(int64_t stripe, Bf16* to) const {
    for (int64_t p = 0; p < a_.panels; ++p) {
      Bf16* at = panel(to, p);
      const int64_t first = p * a_.tile.depth;
      const int64_t deep = std::min<int64_t>(a_.tile.depth, a_.depth - first);
      b_.transposed ? turn(stripe, first, deep, at) : interleave(stripe, first, deep, at);
      std::fill_n(at + a_.tile.depth * kWidth, kWidth, Bf16{});
    }
  }

 private:
  // Eight columns that are adjacent in the panel: four of one tile, four of the next.
  void turn(int64_t stripe, int64_t first, int64_t deep, Bf16* to) const {
    static constexpr Bf16 kZeros[1024] = {};  // no panel is deeper
    for (int half = 0; half < 2; ++half) {
      for (int quad = 0; quad < 4; ++quad) {
        const Bf16* rows[8];
        for (int i = 0; i < 8; ++i) {
          const int64_t col = stripe * kWidth + half * 32 + i / 4 * 16 + quad * 4 + i % 4;
          rows[i] = col < cols_ ? b_.values.row(col) + first : kZeros;
        }
        transpose_eight(rows, deep, to + half * 32 + quad * 8, kWidth);
      }
    }
  }

  void interleave(int64_t stripe, int64_t first, int64_t deep, Bf16* to) const {
    const int64_t col = stripe * kWidth, cols = std::min(kWidth, cols_ - col);
    for (int64_t k = 0; k < deep; ++k, to += kWidth) {
      const Bf16* row = b_.values.row(first + k) + col;
      Bf16 whole[kWidth];
      if (cols < kWidth) {
        std::copy_n(row, cols, whole);
        std::fill(whole + cols, whole + kWidth, Bf16{});
        row = whole;
      }
      for (int c = 0; c < kWidth; c += 4) std::memcpy(to + panel_place(c), row + c, 8);
    }
  }

  const TileView& a_;
  const TileOperand& b_;
  int64_t cols_;
};

struct StripesScratch {
  AlignedBuffer<Bf16> stripes;  // B
  AlignedBuffer<float> sums;    // C: [rows of a block, 64]; of rows that are gathered all stripes
  TileScratch gathered;
};

// Stripes [first, last) of C, for the blocks of sharing rows [first_block, last_block).
struct StripesJob {
  int64_t first, last;
  int64_t first_block, last_block;
};

class StripesProduct {
 public:
  // places: of rows that are to be gathered, where each of them stands; null: not.
  StripesProduct(const TileView& a, int64_t cols, const TileOperand& b, const TileOps& ops,
                 const int64_t* places)
      : a_(a), cols_(cols), copy_(a, b, cols), ops_(ops), places_(places) {}

  void run(const StripesJob& job, const TileSink& c) const {
    thread_local StripesScratch scratch;
    const int64_t size = StripeCopy::size(a_), count = job.last - job.first;
    scratch.stripes.reserve(static_cast<size_t>(size * count));
    const int64_t in_hand = places_ ? blocks() * block_rows() * kWidth : 0;  // of a stripe
    scratch.sums.reserve(static_cast<size_t>(std::max(in_hand * count, block_rows() * kWidth)));
    for (int64_t s = 0; s < count; ++s) {
      copy_.copy(job.first + s, scratch.stripes.data() + s * size);
    }
    const TileSession session(ops_);
    for (int64_t block = job.first_block; block < job.last_block; ++block) {
      for (int64_t s = 0; s < count; ++s) {
        float* sums =
            scratch.sums.data() + (places_ ? s * in_hand + block * block_rows() * kWidth : 0);
        multiply_block(block, scratch.stripes.data() + s * size, scratch.gathered, sums);
        if (places_ == nullptr) give(c, block, job.first + s, sums);
      }
    }
    for (int64_t s = 0; places_ != nullptr && s < count; ++s) {
      give_all(c, job.first + s, scratch.sums.data() + s * in_hand);
    }
  }

  int64_t block_rows() const { return int64_t{a_.row_stride} * a_.share; }
  int64_t blocks() const { return a_.cells / a_.row_stride; }

 private:
  // Member m of a cell is row cell + m * row_stride of the block: as the sink wants them.
  void multiply_block(int64_t block, Bf16* stripe, TileScratch& gathered, float* sums) const {
    SparseTileJob job;
    job.share = a_.share;
    job.c_stride = a_.row_stride * kWidth;
    job.scratch = &gathered;
    if (a_.panels == 0) std::fill_n(sums, block_rows() * kWidth, 0.0f);
    for (int64_t p = 0; p < a_.panels; ++p) {
      job.panel = copy_.panel(stripe, p);
      job.first = p == 0;
      for (int64_t i = 0; i < a_.row_stride; ++i) {
        const uint32_t* start = a_.starts + p * a_.cells + block * a_.row_stride + i;
        job.offsets = a_.offsets + start[0];
        job.values = a_.values + int64_t{start[0]} * a_.share;
        job.steps = (start[1] - start[0]) / kTileEntries;
        job.c = sums + i * kWidth;
        ops_.sparse(job);
      }
    }
  }

  Range range_of(int64_t row, int64_t rows, int64_t stripe) const {
    return {row, rows, stripe * kWidth, std::min(kWidth, cols_ - stripe * kWidth)};
  }

  void give(const TileSink& c, int64_t block, int64_t stripe, const float* sums) const {
    const int64_t first = block * block_rows(), rows = std::min(block_rows(), a_.rows - first);
    if (a_.order == nullptr) return c.take(range_of(first, rows, stripe), sums, kWidth);
    for (int64_t r = 0; r < rows; ++r) {
      c.take(range_of(a_.order[first + r], 1, stripe), sums + r * kWidth, kWidth);
    }
  }

  void give_all(const TileSink& c, int64_t stripe, const float* sums) const {
    std::vector<const float*> rows(static_cast<size_t>(a_.rows));
    for (size_t r = 0; r < rows.size(); ++r) rows[r] = sums + places_[r] * kWidth;
    c.gather(range_of(0, a_.rows, stripe), rows.data());
  }

  const TileView& a_;
  int64_t cols_;
  StripeCopy copy_;
  const TileOps& ops_;
  const int64_t* places_;
};

// A block of 32 x 32 sums, into its place.
template <typename T>
void finish(const float* sums, const DenseTileCall<T>& call, int64_t row, int64_t col) {
  const int64_t rows = std::min<int64_t>(32, call.c.rows - row);
  const int64_t cols = std::min<int64_t>(32, call.c.cols - col);
  float line[32];
  for (int64_t r = 0; r < rows; ++r) {
    T* to = call.c.row(row + r) + col;
    for (int64_t c = 0; c < cols; ++c) line[c] = sums[r * 32 + c];
    if (call.bias) {
      for (int64_t c = 0; c < cols; ++c) line[c] += call.bias[col + c];
    }
    for (int64_t c = 0; c < cols; ++c) {
      if constexpr (std::is_same_v<T, Bf16>) {
        to[c] = to_bf16(call.beta == 0.0f ? line[c] : line[c] + to_float(to[c]));
      } else {
        to[c] = call.beta == 0.0f ? line[c] : line[c] + to[c];
      }
    }
  }
}

// 32 rows of A as stored, or copied where the depth or the rows are no whole tiles.
class RowBlocks {
 public:
  RowBlocks(MatrixView<const Bf16> a, int64_t steps) : a_(a), steps_(steps) {}

  MatrixView<const Bf16> block(int64_t first, AlignedBuffer<Bf16>& scratch) const {
    const int64_t rows = std::min<int64_t>(32, a_.rows - first), depth = 32 * steps_;
    if (rows == 32 && a_.cols == depth) return a_.rows_from(first, rows);
    scratch.reserve(static_cast<size_t>(32 * depth));
    std::fill_n(scratch.data(), 32 * depth, Bf16{});
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(a_.row(first + r), a_.cols, scratch.data() + r * depth);
    }
    return {scratch.data(), 32, depth};
  }

 private:
  MatrixView<const Bf16> a_;
  int64_t steps_;
};

template <typename T>
void multiply_blocks(const DenseTileCall<T>& call, TileUnit unit) {
  WEFT_CHECK(unit != TileUnit::kNone, "there is no tile unit: {}", tile_unit_lacks());
  const DenseTiles& b = *call.b;
  WEFT_CHECK(call.a.cols == b.depth() && call.c.rows == call.a.rows && call.c.cols == b.cols(),
             "a product of {} x {} and {} x {} into {} x {}", call.a.rows, call.a.cols, b.depth(),
             b.cols(), call.c.rows, call.c.cols);
  if (call.c.rows == 0 || call.c.cols == 0) return;
  const TileOps& ops = tile_ops(unit);
  // Blocks of columns that stay in L2 while rows pass by; A in L1 while these pass by.
  constexpr int64_t kColumnsBytes = 1 << 19;
  const int64_t block_bytes = std::max<int64_t>(1, b.steps()) * 32 * 32 * 2;
  const int64_t at_once = std::clamp<int64_t>(kColumnsBytes / block_bytes, 1, b.blocks());
  const int64_t across = ceil_div(b.blocks(), at_once);
  const int64_t row_blocks = ceil_div(call.c.rows, 32);
  const int64_t rows_at_once = std::clamp<int64_t>(ceil_div(row_blocks, 2 * threads()), 1, 8);
  const int64_t down = ceil_div(row_blocks, rows_at_once);
  const RowBlocks rows(call.a, b.steps());
  parallel_for(across * down, [&](int64_t item) {
    thread_local AlignedBuffer<Bf16> scratch;
    alignas(64) float sums[32 * 32];
    const TileSession session(ops);
    const int64_t first_block = item / down * at_once;
    const int64_t last_block = std::min(b.blocks(), first_block + at_once);
    const int64_t last_row = std::min(row_blocks, (item % down + 1) * rows_at_once);
    for (int64_t r = item % down * rows_at_once; r < last_row; ++r) {
      const MatrixView<const Bf16> a = rows.block(32 * r, scratch);
      for (int64_t block = first_block; block < last_block; ++block) {
        ops.dense({a.data, a.row_stride, b.block(block), b.steps(), sums});
        finish(sums, call, 32 * r, 32 * block);
      }
    }
  });
}

}  // namespace

void multiply_tiles(const PackedMatrix& packed, int64_t cols, const TileOperand& b,
                    const TileSink& c, TileUnit unit) {
  WEFT_CHECK(unit != TileUnit::kNone, "there is no tile unit: {}", tile_unit_lacks());
  const TileView a = packed.tiles();
  check_operand("multiply_tiles", "b", b.values, b.transposed ? cols : a.depth,
                b.transposed ? a.depth : cols);
  if (a.rows == 0 || cols == 0) return;
  const bool gathers = a.order != nullptr && c.gathers();
  const std::vector<int64_t> places = gathers ? places_of(a.order, a.rows) : std::vector<int64_t>();
  const StripesProduct product(a, cols, b, tile_ops(unit), gathers ? places.data() : nullptr);
  const int64_t stripes = ceil_div(cols, kWidth), workers = threads();
  // Of a stripe: B, and C if all of it is in hand.
  const int64_t bytes = StripeCopy::size(a) * int64_t{sizeof(Bf16)} +
                        (gathers ? a.rows * kWidth * int64_t{sizeof(float)} : 0);
  const int64_t most =
      std::clamp<int64_t>(kStripesBytes / std::max<int64_t>(1, bytes), 1, kMostStripes);
  // Fewer at a time if some threads would have none.
  const int64_t at_once = std::min(most, ceil_div(stripes, workers));
  const int64_t items = ceil_div(stripes, at_once);
  const bool whole = gathers || items >= 2 * workers || workers == 1;
  const int64_t parts = whole ? 1 : std::min(product.blocks(), ceil_div(2 * workers, items));
  const int64_t part = ceil_div(product.blocks(), parts);
  parallel_for(items * parts, [&](int64_t item) {
    const int64_t first = item / parts * at_once, block = item % parts * part;
    if (block >= product.blocks()) return;
    product.run({first, std::min(stripes, first + at_once), block,
                 std::min(product.blocks(), block + part)},
                c);
  });
}

void multiply_dense_tiles(const DenseTileCall<Bf16>& call, TileUnit unit) {
  multiply_blocks(call, unit);
}
void multiply_dense_tiles(const DenseTileCall<float>& call, TileUnit unit) {
  multiply_blocks(call, unit);
}

void transpose_bf16(MatrixView<const Bf16> from, MatrixView<Bf16> to) {
  const int64_t whole = from.rows / 8;
  parallel_for(ceil_div(from.rows, 8), [&](int64_t eight) {
    if (eight < whole) {
      const Bf16* rows[8];
      for (int i = 0; i < 8; ++i) rows[i] = from.row(eight * 8 + i);
      return transpose_eight(rows, from.cols, to.data + eight * 8, to.row_stride);
    }
    for (int64_t r = eight * 8; r < from.rows; ++r) {
      for (int64_t c = 0; c < from.cols; ++c) to.at(c, r) = from.at(r, c);
    }
  });
}

}  // namespace weft
