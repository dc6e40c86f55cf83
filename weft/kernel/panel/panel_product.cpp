#include "weft/kernel/panel/panel_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/panel/panel_kernel.h"

namespace weft {
namespace {

// A tile of C is written by one panel and read by the next: it must stay in L2, beside the panels
// of B that are in use and the part of the pack that passes through.
constexpr int64_t kTileBytes = 64 << 10;
constexpr int64_t kDepthAtOnce = 4096;  // of B, copied together
constexpr int64_t kVector = 16;         // stripes are cut at multiples of it: a cache line
// Multiply-adds from which on a second thread is woken: about 20 us of one. Of half as much two
// threads make 0.7 to 1.6 of the time, and on a busy machine waiting for one can take a thousand
// times as long.
constexpr double kWorthThreads = 1 << 20;

int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// How the columns and rows of C are cut into work items. Only the order of the work depends on the
// number of threads.
struct Cut {
  int64_t stripe = 0;  // columns
  int64_t stripes = 0;
  int64_t part = 0;  // cells
  int64_t parts = 0;
};

// whole: stripes must not be cut into parts, so there are more of them.
Cut cut(const PanelView& a, int64_t cols, int64_t block_cells, int workers, bool whole) {
  Cut cut;
  cut.stripes = ceil_div(cols, a.tile.width);
  if (whole && workers > 1) {
    cut.stripes = std::max(cut.stripes, std::min<int64_t>(workers, ceil_div(cols, kVector)));
  }
  // Equal stripes, and as many as keep all threads busy to the end.
  if (cut.stripes > workers) cut.stripes = round_up(cut.stripes, workers);
  cut.stripe = round_up(ceil_div(cols, cut.stripes), kVector);
  cut.stripes = ceil_div(cols, cut.stripe);
  // Parts of a stripe copy B once each, so only when stripes are too few.
  const int64_t blocks = ceil_div(a.cells, block_cells);
  const int64_t wanted =
      whole || cut.stripes >= 2 * workers || workers == 1 ? 1 : ceil_div(2 * workers, cut.stripes);
  cut.part = ceil_div(blocks, std::min(wanted, blocks)) * block_cells;
  cut.parts = ceil_div(a.cells, cut.part);
  return cut;
}

struct Scratch {
  AlignedBuffer<float> panels;  // B: [depth in hand, tile.width]
  AlignedBuffer<float> tile;    // C: [rows in hand, tile.width]
};

// One stripe of B and C, for the cells [first_cell, last_cell).
class StripeProduct {
 public:
  // places: of rows that are to be gathered, where each of them stands; null: not.
  StripeProduct(const PanelView& a, Range stripe, int64_t first_cell, int64_t last_cell,
                const int64_t* places)
      : a_(a),
        places_(places),
        stripe_(stripe),
        stride_(a.tile.width),
        width_(round_up(stripe.cols, kVector)),
        first_cell_(first_cell),
        last_cell_(last_cell),
        panels_at_once_(
            std::clamp<int64_t>(kDepthAtOnce / a.tile.depth, 1, std::max<int64_t>(1, a.panels))) {
    // Of a depth that is copied in one go, tiles of C are finished one by one. Otherwise all of C
    // is in hand until the last copy.
    const int64_t block_cells = a.row_stride;
    const int64_t block_bytes = block_cells * a.share * stride_ * int64_t{sizeof(float)};
    const int64_t blocks = std::max<int64_t>(1, kTileBytes / block_bytes);
    tile_cells_ = blocks * block_cells;
    const bool at_once = a.panels <= panels_at_once_ && places == nullptr;
    cells_in_hand_ = at_once ? tile_cells_ : round_up(last_cell - first_cell, block_cells);
  }

  void run(const PanelSource& b, const TileSink& c) const {
    thread_local Scratch scratch;
    scratch.panels.reserve(static_cast<size_t>(panels_at_once_ * a_.tile.depth * stride_));
    scratch.tile.reserve(static_cast<size_t>(cells_in_hand_ * a_.share * stride_));
    int64_t first_panel = 0;
    do {
      const int64_t last_panel = std::min(a_.panels, first_panel + panels_at_once_);
      copy(b, first_panel, last_panel, scratch.panels.data());
      for (int64_t cell = first_cell_; cell < last_cell_; cell += tile_cells_) {
        const int64_t in_hand = (cell - first_cell_) % cells_in_hand_;
        float* tile = scratch.tile.data() + in_hand * a_.share * stride_;
        multiply_tile(cell, first_panel, last_panel, scratch.panels.data(), tile);
        if (last_panel == a_.panels && places_ == nullptr) give(c, cell, tile);
      }
      first_panel = last_panel;
    } while (first_panel < a_.panels);
    if (places_ != nullptr) give_all(c, scratch.tile.data());
  }

 private:
  int64_t end_of_tile(int64_t cell) const { return std::min(last_cell_, cell + tile_cells_); }

  void copy(const PanelSource& b, int64_t first_panel, int64_t last_panel, float* panels) const {
    const int64_t first = first_panel * a_.tile.depth;
    const int64_t rows = std::min(a_.depth, last_panel * a_.tile.depth) - first;
    if (rows <= 0) return;
    b.copy({first, rows, stripe_.first_col, stripe_.cols}, panels, stride_);
    if (width_ == stripe_.cols) return;
    for (int64_t k = 0; k < rows; ++k) {
      std::fill_n(panels + k * stride_ + stripe_.cols, width_ - stripe_.cols, 0.0f);
    }
  }

  void multiply_tile(int64_t cell, int64_t first_panel, int64_t last_panel, const float* panels,
                     float* tile) const {
    PanelJob job;
    job.first_cell = cell;
    job.last_cell = end_of_tile(cell);
    job.width = static_cast<int>(width_);
    job.c = tile;
    if (a_.panels == 0) {
      std::fill_n(tile, (job.last_cell - cell) * a_.share * stride_, 0.0f);
    }
    for (job.panel = first_panel; job.panel < last_panel; ++job.panel) {
      job.first = job.panel == 0;
      job.b = panels + (job.panel - first_panel) * a_.tile.depth * stride_;
      multiply_panel(a_, job);
    }
  }

  void give(const TileSink& c, int64_t cell, const float* tile) const {
    const int64_t first_row = a_.first_row(cell);
    const int64_t rows = std::min(a_.rows - first_row, (end_of_tile(cell) - cell) * a_.share);
    if (a_.order == nullptr) {
      c.take({first_row, rows, stripe_.first_col, stripe_.cols}, tile, stride_);
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = a_.order[first_row + r];
      c.take({row, 1, stripe_.first_col, stripe_.cols}, tile + r * stride_, stride_);
    }
  }

  // All cells are in hand: a place is a row of the scratch.
  void give_all(const TileSink& c, const float* tile) const {
    std::vector<const float*> rows(static_cast<size_t>(a_.rows));
    for (size_t r = 0; r < rows.size(); ++r) rows[r] = tile + places_[r] * stride_;
    c.gather({0, a_.rows, stripe_.first_col, stripe_.cols}, rows.data());
  }

  const PanelView& a_;
  const int64_t* places_;
  Range stripe_;
  int64_t stride_;
  int64_t width_;
  int64_t first_cell_;
  int64_t last_cell_;
  int64_t panels_at_once_;
  int64_t tile_cells_;     // computed before the next ones begin
  int64_t cells_in_hand_;  // whose sums are in the scratch
};

}  // namespace

std::vector<int64_t> places_of(const int32_t* order, int64_t rows) {
  std::vector<int64_t> places(static_cast<size_t>(rows));
  for (int64_t p = 0; p < rows; ++p) places[static_cast<size_t>(order[p])] = p;
  return places;
}

void multiply_panels(const PackedMatrix& packed, int64_t cols, const PanelSource& b,
                     const TileSink& c) {
  const PanelView a = packed.panel();
  if (a.rows == 0 || cols == 0) return;
  const int64_t block_cells = a.row_stride;  // whole blocks of sharing rows; 1 without sharing
  const double products =
      static_cast<double>(a.starts[a.panels * a.cells]) * a.share * static_cast<double>(cols);
  const int workers = products < kWorthThreads ? 1 : threads();
  std::vector<int64_t> places;  // of rows that are gathered
  if (a.order != nullptr && c.gathers()) places = places_of(a.order, a.rows);
  const Cut work = cut(a, cols, block_cells, workers, !places.empty());
  const auto multiply_item = [&](int64_t item) {
    const int64_t first_col = item / work.parts * work.stripe;
    const int64_t first_cell = item % work.parts * work.part;
    const Range stripe{0, 0, first_col, std::min(work.stripe, cols - first_col)};
    StripeProduct(a, stripe, first_cell, std::min(a.cells, first_cell + work.part),
                  places.empty() ? nullptr : places.data())
        .run(b, c);
  };
  const int64_t items = work.stripes * work.parts;
  if (workers > 1) return parallel_for(items, multiply_item);
  for (int64_t item = 0; item < items; ++item) multiply_item(item);
}

}  // namespace weft
