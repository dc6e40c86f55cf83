#include "weft/kernel/panel/panel_product.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/panel/panel_kernel.h"
#include "weft/kernel/panel/panel_size.h"

namespace weft {
namespace {

// Of a band whose panels are copied one by one, C is read and written with every panel: all of it
// must stay in L2.
constexpr int64_t kBandBytes = 256 << 10;
constexpr int64_t kVector = 16;  // stripes are cut at multiples of it: a cache line
// Multiply-adds from which on a second thread is woken: about 20 us of one. Of half as much two
// threads make 0.7 to 1.6 of the time, and on a busy machine waiting for one can take a thousand
// times as long.
constexpr double kWorthThreads = 1 << 20;

int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// How the columns and rows of C are cut into work items, runs of bands x parts. Only the order of
// the work depends on the number of threads.
struct Cut {
  int64_t stripe = 0;  // columns
  int64_t band = 0;    // columns: whole stripes
  int64_t bands = 0;
  int64_t run = 1;   // bands that one thread computes one after the other
  int64_t part = 0;  // cells
  int64_t parts = 0;
};

int64_t panels_at_once(const PanelView& a, const PanelSource& b) {
  return std::clamp<int64_t>(b.depth_at_once() / a.tile.depth, 1, std::max<int64_t>(1, a.panels));
}

// Equal stripes, and as many as keep all threads busy to the end.
int64_t stripe_columns(const PanelView& a, int64_t cols, int workers, bool whole) {
  int64_t stripes = ceil_div(cols, a.tile.width);
  if (whole && workers > 1) {
    stripes = std::max(stripes, std::min<int64_t>(workers, ceil_div(cols, kVector)));
  }
  if (stripes > workers) stripes = round_up(stripes, workers);
  return round_up(ceil_div(cols, stripes), kVector);
}

// whole: stripes must not be cut into parts, so there are more of them.
Cut cut(const PanelView& a, int64_t cols, const PanelSource& b, int workers, bool whole) {
  const int64_t block_cells = a.row_stride;  // whole blocks of sharing rows; 1 without sharing
  Cut cut;
  cut.stripe = b.stripes_per_band() > 1 ? a.tile.width : stripe_columns(a, cols, workers, whole);
  cut.band = cut.stripe * b.stripes_per_band();
  cut.bands = ceil_div(cols, cut.band);
  // Parts of a band copy B once each, so only when bands are too few, or C would not fit.
  const int64_t blocks = ceil_div(a.cells, block_cells);
  int64_t wanted =
      whole || cut.bands >= 2 * workers || workers == 1 ? 1 : ceil_div(2 * workers, cut.bands);
  if (!whole && a.panels > 1 && panels_at_once(a, b) == 1) {
    const int64_t c_bytes = a.cells * a.share * cut.band * int64_t{sizeof(float)};
    wanted = std::max(wanted, ceil_div(c_bytes, kBandBytes));
  }
  cut.part = ceil_div(blocks, std::min(wanted, blocks)) * block_cells;
  cut.parts = ceil_div(a.cells, cut.part);
  // So that a thread knows what it will copy next.
  constexpr int64_t kRun = 8;
  cut.run = std::clamp<int64_t>(cut.bands * cut.parts / (8 * workers), 1, kRun);
  return cut;
}

struct Scratch {
  AlignedBuffer<float> panels;      // B: [depth in hand, tile.width]
  AlignedBuffer<float> tiles;       // C: [stripes of the band, rows in hand, tile.width]
  std::vector<const float*> lines;  // of memory, that the next copy will read
};

// One band of B and C, for the cells [first_cell, last_cell).
class BandProduct {
 public:
  // places: of rows that are to be gathered, where each of them stands; null: not.
  BandProduct(const PanelView& a, Range band, int64_t stripe, int64_t first_cell, int64_t last_cell,
              const int64_t* places)
      : a_(a),
        places_(places),
        band_(band),
        stripe_(stripe),
        stride_(a.tile.width),
        first_cell_(first_cell),
        last_cell_(last_cell) {}

  // next: the reader of the band that this thread computes after this one, or null.
  void run(BandReader& reader, const BandReader* next, int64_t at_once, const TileSink& c) {
    thread_local Scratch scratch;
    const int64_t stripes = ceil_div(band_.cols, stripe_);
    plan_tiles(stripes == 1 && a_.panels <= at_once && places_ == nullptr);
    const int64_t tile_size = cells_in_hand_ * a_.share * stride_;
    scratch.panels.reserve(static_cast<size_t>(at_once * a_.tile.depth * stride_));
    scratch.tiles.reserve(static_cast<size_t>(stripes * tile_size));
    int64_t first_panel = 0;
    do {
      const int64_t last_panel = std::min(a_.panels, first_panel + at_once);
      for (int64_t s = 0; s < stripes; ++s) {
        const Range in_b = range_in_b(first_panel, last_panel, s);
        copy(reader, in_b, scratch.panels.data());
        foresee(last_panel, at_once, reader, next, scratch.lines);
        multiply_stripe(in_b, first_panel, last_panel, scratch, s * tile_size, c);
      }
      first_panel = last_panel;
    } while (first_panel < a_.panels);
  }

 private:
  Range range_in_b(int64_t first_panel, int64_t last_panel, int64_t stripe) const {
    const int64_t first_row = first_panel * a_.tile.depth;
    return {first_row, std::min(a_.depth, last_panel * a_.tile.depth) - first_row,
            band_.first_col + stripe * stripe_, std::min(stripe_, band_.cols - stripe * stripe_)};
  }

  // What will be read after the panels before last_panel: the next ones, or those of the next band.
  void foresee(int64_t last_panel, int64_t at_once, const BandReader& reader,
               const BandReader* next, std::vector<const float*>& lines) {
    lines.clear();
    const bool here = last_panel < a_.panels;
    const int64_t first = here ? last_panel : 0;
    const Range range = range_in_b(first, std::min(a_.panels, first + at_once), 0);
    if (here) {
      reader.foresee(range, lines);
    } else if (next != nullptr) {
      next->foresee(range, lines);
    }
    const int64_t pairs = std::max<int64_t>(1, (last_cell_ - first_cell_) / 2);
    prefetch_ = {lines.data(), lines.data() + lines.size(),
                 ceil_div(static_cast<int64_t>(lines.size()), pairs)};
  }

  // one_by_one: tiles of C are finished one after the other, since B is copied in one go.
  // Otherwise all of C is in hand until the last copy.
  void plan_tiles(bool one_by_one) {
    const int64_t block_cells = a_.row_stride;
    const int64_t block_bytes = block_cells * a_.share * stride_ * int64_t{sizeof(float)};
    tile_cells_ = std::max<int64_t>(1, tile_bytes() / block_bytes) * block_cells;
    cells_in_hand_ = one_by_one ? tile_cells_ : round_up(last_cell_ - first_cell_, block_cells);
  }

  int64_t end_of_tile(int64_t cell) const { return std::min(last_cell_, cell + tile_cells_); }

  void copy(BandReader& reader, const Range& in_b, float* panels) const {
    if (in_b.rows <= 0) return;
    reader.copy(in_b, panels, stride_);
    const int64_t width = round_up(in_b.cols, kVector);
    if (width == in_b.cols) return;
    for (int64_t k = 0; k < in_b.rows; ++k) {
      std::fill_n(panels + k * stride_ + in_b.cols, width - in_b.cols, 0.0f);
    }
  }

  // The panels that were copied last; C of this stripe begins at tiles + at.
  void multiply_stripe(const Range& in_b, int64_t first_panel, int64_t last_panel, Scratch& scratch,
                       int64_t at, const TileSink& c) {
    for (int64_t cell = first_cell_; cell < last_cell_; cell += tile_cells_) {
      const int64_t in_hand = (cell - first_cell_) % cells_in_hand_;
      float* tile = scratch.tiles.data() + at + in_hand * a_.share * stride_;
      multiply_tile(cell, in_b, first_panel, last_panel, scratch.panels.data(), tile);
      if (last_panel == a_.panels && places_ == nullptr) give(c, cell, in_b, tile);
    }
    if (last_panel == a_.panels && places_ != nullptr) {
      give_all(c, in_b, scratch.tiles.data() + at);
    }
  }

  void multiply_tile(int64_t cell, const Range& in_b, int64_t first_panel, int64_t last_panel,
                     const float* panels, float* tile) {
    PanelJob job;
    if (prefetch_.per_pair > 0) job.prefetch = &prefetch_;
    job.first_cell = cell;
    job.last_cell = end_of_tile(cell);
    job.width = static_cast<int>(round_up(in_b.cols, kVector));
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

  void give(const TileSink& c, int64_t cell, const Range& in_b, const float* tile) const {
    const int64_t first_row = a_.first_row(cell);
    const int64_t rows = std::min(a_.rows - first_row, (end_of_tile(cell) - cell) * a_.share);
    if (a_.order == nullptr) {
      c.take({first_row, rows, in_b.first_col, in_b.cols}, tile, stride_);
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = a_.order[first_row + r];
      c.take({row, 1, in_b.first_col, in_b.cols}, tile + r * stride_, stride_);
    }
  }

  // All cells are in hand: a place is a row of the scratch.
  void give_all(const TileSink& c, const Range& in_b, const float* tile) const {
    std::vector<const float*> rows(static_cast<size_t>(a_.rows));
    for (size_t r = 0; r < rows.size(); ++r) rows[r] = tile + places_[r] * stride_;
    c.gather({0, a_.rows, in_b.first_col, in_b.cols}, rows.data());
  }

  const PanelView& a_;
  const int64_t* places_;
  Range band_;
  int64_t stripe_;  // columns
  int64_t stride_;
  int64_t first_cell_;
  int64_t last_cell_;
  int64_t tile_cells_ = 0;     // computed before the next ones begin
  int64_t cells_in_hand_ = 0;  // whose sums are in the scratch
  Prefetch prefetch_;
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
  const double products =
      static_cast<double>(a.starts[a.panels * a.cells]) * a.share * static_cast<double>(cols);
  const int workers = products < kWorthThreads ? 1 : threads();
  std::vector<int64_t> places;  // of rows that are gathered
  if (a.order != nullptr && c.gathers()) places = places_of(a.order, a.rows);
  const Cut work = cut(a, cols, b, workers, !places.empty());
  const int64_t at_once = panels_at_once(a, b), runs = ceil_div(work.bands, work.run);
  const auto range_of = [&](int64_t band) {
    return Range{0, 0, band * work.band, std::min(work.band, cols - band * work.band)};
  };
  const auto reader_of = [&](int64_t band) {
    return b.band(range_of(band).first_col, range_of(band).cols);
  };
  const auto multiply_item = [&](int64_t item) {
    const int64_t first = item / work.parts * work.run;
    const int64_t last = std::min(work.bands, first + work.run);
    const int64_t first_cell = item % work.parts * work.part;
    std::unique_ptr<BandReader> reader = reader_of(first), next;
    for (int64_t band = first; band < last; ++band, reader = std::move(next)) {
      if (band + 1 < last) next = reader_of(band + 1);
      BandProduct(a, range_of(band), work.stripe, first_cell,
                  std::min(a.cells, first_cell + work.part),
                  places.empty() ? nullptr : places.data())
          .run(*reader, next.get(), at_once, c);
    }
  };
  const int64_t items = runs * work.parts;
  if (workers > 1) return parallel_for(items, multiply_item);
  for (int64_t item = 0; item < items; ++item) multiply_item(item);
}

}  // namespace weft
