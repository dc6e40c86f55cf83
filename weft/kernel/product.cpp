#include "weft/kernel/product.h"

#include <algorithm>
#include <cstring>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/panel_kernel.h"

namespace weft {
namespace {

// A tile of C is written by one panel and read by the next: it must stay in L2, beside the panels
// of B. Of 64, 128 and 256 KB the first was best or equal (AMD Zen 3, 512 KB of L2).
constexpr int64_t kTileBytes = 64 << 10;
constexpr int64_t kVector = 16;  // stripes are cut at multiples of it: a cache line

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// How the columns and rows of C are cut into work items. Only the order of the work depends on the
// number of threads.
struct Cut {
  int64_t stripe = 0;  // columns
  int64_t stripes = 0;
  int64_t part = 0;  // cells
  int64_t parts = 0;
};

Cut cut(const PanelView& a, int64_t cols, int64_t block_cells) {
  Cut cut;
  cut.stripes = ceil_div(cols, a.tile.width);
  // Equal stripes, and as many as keep all threads busy to the end.
  if (cut.stripes > threads()) cut.stripes = round_up(cut.stripes, threads());
  cut.stripe = round_up(ceil_div(cols, cut.stripes), kVector);
  cut.stripes = ceil_div(cols, cut.stripe);
  // Parts of a stripe copy B once each, so only when stripes are too few.
  const int64_t blocks = ceil_div(a.cells, block_cells);
  const int64_t wanted =
      cut.stripes >= 2 * threads() || threads() == 1 ? 1 : ceil_div(2 * threads(), cut.stripes);
  cut.part = ceil_div(blocks, std::min(wanted, blocks)) * block_cells;
  cut.parts = ceil_div(a.cells, cut.part);
  return cut;
}

struct Scratch {
  AlignedBuffer<float> panels;  // B: [depth, tile.width]
  AlignedBuffer<float> tile;    // C: [rows of a tile, tile.width]
};

// One stripe of B and C, for the cells [first_cell, last_cell).
void multiply_stripe(const PanelView& a, const PanelSource& b, const TileSink& c, Range stripe,
                     int64_t first_cell, int64_t last_cell, int64_t block_cells) {
  thread_local Scratch scratch;
  const int64_t stride = a.tile.width;
  const int64_t width = round_up(stripe.cols, kVector);
  const int64_t block_rows = block_cells * a.share;
  const int64_t tile_blocks =
      std::max<int64_t>(1, kTileBytes / (block_rows * stride * int64_t{sizeof(float)}));
  scratch.panels.reserve(static_cast<size_t>(a.depth * stride));
  scratch.tile.reserve(static_cast<size_t>(tile_blocks * block_rows * stride));

  b.copy({0, a.depth, stripe.first_col, stripe.cols}, scratch.panels.data(), stride);
  if (width > stripe.cols) {  // no stray NaN may slow the loop down or trap
    for (int64_t k = 0; k < a.depth; ++k) {
      std::fill_n(scratch.panels.data() + k * stride + stripe.cols, width - stripe.cols, 0.0f);
    }
  }
  for (int64_t cell = first_cell; cell < last_cell; cell += tile_blocks * block_cells) {
    PanelJob job;
    job.first_cell = cell;
    job.last_cell = std::min(last_cell, cell + tile_blocks * block_cells);
    job.width = static_cast<int>(width);
    job.c = scratch.tile.data();
    const int64_t first_row = a.first_row(cell);
    const int64_t rows = std::min(a.rows - first_row, (job.last_cell - job.first_cell) * a.share);
    if (a.panels == 0) std::fill_n(job.c, rows * stride, 0.0f);
    for (job.panel = 0; job.panel < a.panels; ++job.panel) {
      job.first = job.panel == 0;
      job.b = scratch.panels.data() + job.panel * a.tile.depth * stride;
      multiply_panel(a, job);
    }
    c.take({first_row, rows, stripe.first_col, stripe.cols}, job.c, stride);
  }
}

}  // namespace

void multiply(const PackedMatrix& packed, int64_t cols, const PanelSource& b, const TileSink& c) {
  const PanelView a = packed.panel();
  if (a.rows == 0 || cols == 0) return;
  const int64_t block_cells = a.row_stride;  // whole blocks of sharing rows; 1 without sharing
  const Cut work = cut(a, cols, block_cells);
  parallel_for(work.stripes * work.parts, [&](int64_t item) {
    const int64_t first_col = item / work.parts * work.stripe;
    const int64_t first_cell = item % work.parts * work.part;
    multiply_stripe(a, b, c, {0, 0, first_col, std::min(work.stripe, cols - first_col)}, first_cell,
                    std::min(a.cells, first_cell + work.part), block_cells);
  });
}

}  // namespace weft
