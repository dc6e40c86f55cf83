// The panel layout: packing, and checking what comes from outside.
//
// `starts` comes first (panel_layout.h): counted from the mask, or known beforehand when every
// group is full. Then each cell writes its entries where they belong. Cells are independent, so the
// buffer does not depend on the number of threads.
#include <algorithm>
#include <utility>

#include "weft/core/aligned_buffer.h"
#include "weft/core/bf16.h"
#include "weft/core/bits.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/transpose.h"
#include "weft/mask/row_order.h"
#include "weft/pack/group_check.h"
#include "weft/pack/keep_row.h"
#include "weft/pack/largest_of.h"
#include "weft/pack/pack.h"
#include "weft/pack/panel_layout.h"
#include "weft/pack/sections.h"

namespace weft {
namespace {

// Rows of the packed matrix; `mask` holds those from `first` on.
struct MaskRows {
  const Mask& mask;
  int64_t first = 0;

  uint64_t bits(int64_t row, int64_t col, int count) const {
    return mask.bits(row - first, col, count);
  }
};

// The layout of the weights: element (row, k) at data[(row - first_row) * row_step + k *
// depth_step]; with taps, at data[(row - first_row) * row_step + k / taps.size() * depth_step +
// taps[k % taps.size()]].
struct Weights {
  const float* data;
  int64_t row_step;
  int64_t depth_step;
  int64_t first_row = 0;
  std::span<const int64_t> taps = {};
};

class PanelPacker : public PanelLayout {
 public:
  PanelPacker(const PackHeader& header, const PanelOptions& options)
      : PanelLayout(header), row_order_(options.row_order), rounded_(options.rounded) {}

  // The entries of the cells of one item, before the sum is taken.
  void count(const MaskRows& mask, int64_t item) {
    for (int64_t cell = item_begin(item); cell < item_end(item); ++cell) {
      const Members rows = members(cell);
      if (rows.count == 0) continue;
      for (int64_t p = 0; p < panels_; ++p) {
        int kept = 0;
        for_each_word(mask, rows.first_row, p, [&](uint64_t bits) { kept += popcount64(bits); });
        starts_[slot(p, cell)] = static_cast<uint32_t>(kept);
      }
    }
  }

  // The entries of the cells of one item.
  void fill(const MaskRows& mask, const Weights& weights, int64_t item,
            PackedMatrix& packed) const {
    const bool transposed = weights.depth_step != 1 || !weights.taps.empty();
    const int64_t cells_at_once = transposed ? cells_transposed_at_once() : cells_per_item();
    for (int64_t p = 0; p < panels_; ++p) {
      Weights in_panel = weights;
      if (weights.taps.empty()) in_panel.data += panel_begin(p) * weights.depth_step;
      const int64_t end = starts_[slot(p, item_end(item))];
      for (int64_t cell = item_begin(item); cell < item_end(item); cell += cells_at_once) {
        const Cells cells{p, cell, std::min(item_end(item), cell + cells_at_once), end};
        fill_cells(mask, transposed ? transposed_cells(in_panel, cells) : in_panel, cells, packed);
      }
    }
  }

 private:
  struct Cells {
    int64_t panel;
    int64_t begin, end;
    int64_t entries_end;  // entries from here on belong to another work item
  };

  size_t slot(int64_t panel, int64_t cell) const {
    return static_cast<size_t>(panel * cells_ + cell);
  }
  int64_t panel_depth(int64_t panel) const { return panel_end(panel) - panel_begin(panel); }
  // Of scratch: keep_row() may write some entries too many, and powers of two fall into the same
  // set of the cache.
  int64_t row_stride() const { return int64_t{header_.tile_depth} + 8; }

  // Whole lines of a transposed operand, and whole blocks of sharing rows: at most 2048 of them, so
  // a thread keeps at most 8.5 MB. AMD Zen 3, one thread, least of many, 32, 64, 128, 256 rows:
  // 4096 x 1024 at 2:4 5.6, 5.3, 4.8, 4.4 ms.
  int64_t cells_transposed_at_once() const {
    constexpr int64_t kRows = 128;
    const int64_t group = header_.group, share = header_.share;
    return share == 1 ? kRows : group * std::max<int64_t>(1, kRows / (group * share));
  }

  // Calls body(bits) for every 64 of a row in a panel.
  template <typename Body>
  void for_each_word(const MaskRows& mask, int64_t row, int64_t panel, Body body) const {
    const int64_t end = panel_end(panel);
    for (int64_t k = panel_begin(panel); k < end; k += 64) {
      body(mask.bits(row, k, static_cast<int>(std::min<int64_t>(64, end - k))));
    }
  }

  // What the cells need of a transposed operand, row by row.
  Weights transposed_cells(const Weights& in_panel, const Cells& cells) const {
    thread_local AlignedBuffer<float> rows;
    const int64_t first = members(cells.begin).first_row;
    int64_t last = first;
    for (int64_t cell = cells.begin; cell < cells.end; ++cell) {
      if (members(cell).count > 0) last = std::max(last, members(cell).last_row());
    }
    const int64_t width = last - first + 1, stride = row_stride();
    rows.reserve(static_cast<size_t>(width * stride));
    if (!in_panel.taps.empty()) {
      copy_taps(in_panel, first, width, cells.panel, rows.data(), stride);
      return {rows.data(), stride, 1, first};
    }
    transpose({.from = in_panel.data + first,
               .from_stride = in_panel.depth_step,
               .rows = panel_depth(cells.panel),
               .cols = width,
               .to = rows.data(),
               .to_stride = stride});
    return {rows.data(), stride, 1, first};
  }

  // A panel of some rows of weights with taps: those of one depth step are adjacent in both.
  void copy_taps(const Weights& weights, int64_t first_row, int64_t rows, int64_t panel, float* to,
                 int64_t stride) const {
    const auto taps = static_cast<int64_t>(weights.taps.size());
    for (int64_t k = panel_begin(panel), end = panel_end(panel); k < end;) {
      const int64_t tap = k % taps, count = std::min(taps - tap, end - k);
      const float* from = weights.data + k / taps * weights.depth_step;
      float* at = to + k - panel_begin(panel);
      for (int64_t r = 0; r < rows; ++r) {
        const float* unit = from + (first_row + r) * weights.row_step;
        for (int64_t t = 0; t < count; ++t) {
          at[r * stride + t] = unit[weights.taps[static_cast<size_t>(tap + t)]];
        }
      }
      k += count;
    }
  }

  void fill_cells(const MaskRows& mask, const Weights& in_panel, const Cells& cells,
                  PackedMatrix& packed) const {
    const PackSections parts = sections_of(header_);
    std::byte* bytes = packed.mutable_bytes().data();
    auto* offsets = reinterpret_cast<uint16_t*>(bytes + parts.indices);
    std::byte* values = bytes + parts.values;
    for (int64_t cell = cells.begin; cell < cells.end; ++cell) {
      const Members rows = members(cell);
      if (rows.count == 0) continue;
      const int64_t first = starts_[slot(cells.panel, cell)];
      const int64_t count = starts_[slot(cells.panel, cell) + 1] - first;
      const KeepRow keep{.mask = mask.mask,
                         .row = rows.first_row - mask.first,
                         .begin = panel_begin(cells.panel),
                         .count = panel_depth(cells.panel),
                         .offsets = offsets + first,
                         .step = int64_t{header_.tile_width} * 4,
                         .room = cells.entries_end - first};
      const auto skipped = static_cast<size_t>(first * header_.share);
      fill_values(keep, in_panel, rows, count, values + skipped * value_bytes(header_.value_type));
    }
  }

  // Of one cell, to [count, share] values, and its offsets.
  void fill_values(const KeepRow& keep, const Weights& in_panel, const Members& rows, int64_t count,
                   std::byte* to) const {
    const int64_t share = header_.share;
    if (header_.value_type == Precision::kBf16) {
      const float* kept = kept_of_members(keep, in_panel, rows, count);
      auto* values = reinterpret_cast<Bf16*>(to);
      return transpose_into({kept, row_stride(), share, count, values, share}, nullptr, 0.0f);
    }
    auto* values = reinterpret_cast<float*>(to);
    if (share == 1) {
      keep_row(keep, row_of(in_panel, rows, 0), values);
    } else if (share == 2 && rows.count == 2) {
      keep_two_rows(keep, row_of(in_panel, rows, 0), row_of(in_panel, rows, 1), values);
    } else {
      const float* kept = kept_of_members(keep, in_panel, rows, count);
      transpose({kept, row_stride(), share, count, values, share});
    }
    if (!rounded_) return;
    for (int64_t i = 0; i < count * share; ++i) values[i] = to_float(to_bf16(values[i]));
  }

  const float* row_of(const Weights& in_panel, const Members& rows, int64_t member) const {
    const int64_t place = rows.first_row + member * rows.stride;
    const int64_t row = row_order_.empty() ? place : row_order_[static_cast<size_t>(place)];
    return in_panel.data + (row - in_panel.first_row) * in_panel.row_step;
  }

  // [share, count], rows row_stride() apart.
  const float* kept_of_members(KeepRow keep, const Weights& in_panel, const Members& rows,
                               int64_t count) const {
    thread_local AlignedBuffer<float> kept;
    const int64_t stride = row_stride();
    kept.reserve(static_cast<size_t>(header_.share * stride));
    keep.room = std::min(keep.room, stride);
    for (int64_t m = 0; m < header_.share; ++m) {
      if (m < rows.count) {
        keep_row(keep, row_of(in_panel, rows, m), kept.data() + m * stride);
      } else {  // past the last row: the product is not used
        std::fill_n(kept.data() + m * stride, count, 0.0f);
      }
      keep.offsets = nullptr;  // they are the same for all
      keep.room = stride;
    }
    return kept.data();
  }

  std::span<const int64_t> row_order_;  // weights are then row-major: depth_step is 1
  bool rounded_;
};

void put_order(std::span<const int64_t> order, PackedMatrix& packed) {
  auto* to = reinterpret_cast<int32_t*>(packed.mutable_bytes().data() +
                                        sections_of(packed.header()).order);
  for (const int64_t row : order) *to++ = static_cast<int32_t>(row);
}

// mask: [rows, depth] of the packed matrix, whatever the layout of its weights.
PackedMatrix pack_masked(const Weights& weights, const Mask& mask, const PanelOptions& options,
                         PackedMatrix reuse) {
  const PackHeader header = panel_header(mask.rows(), mask.cols(), options);
  require_row_order(options.row_order, mask.rows(), "row order of a pack");
  Mask moved;
  if (!options.row_order.empty()) moved = in_row_order(mask, options.row_order);
  const MaskRows rows{options.row_order.empty() ? mask : moved};
  require_sharing(rows.mask, options.pattern);
  PanelPacker packer(header, options);
  const bool full = !options.ragged && packer.has_whole_groups() &&
                    every_group_is_full(mask, options.pattern, header.segment);
  if (full) {
    packer.count_full();
  } else {
    if (!options.ragged) require_groups(mask, options.pattern, header.segment);
    parallel_for(packer.items(), [&](int64_t item) { packer.count(rows, item); });
  }
  PackedMatrix packed = packer.allocate(std::move(reuse));
  put_order(options.row_order, packed);
  parallel_for(packer.items(), [&](int64_t item) { packer.fill(rows, weights, item, packed); });
  return packed;
}

void check_sizes(MatrixView<const float> w, const Mask& mask) {
  WEFT_CHECK(w.rows == mask.rows() && w.cols == mask.cols(),
             "weights of {} x {} with a mask of {} x {}", w.rows, w.cols, mask.rows(), mask.cols());
}

}  // namespace

PackedMatrix pack_panels(MatrixView<const float> w, const Mask& mask, const PanelOptions& options,
                         PackedMatrix reuse) {
  check_sizes(w, mask);
  return pack_masked({w.data, w.row_stride, 1}, mask, options, std::move(reuse));
}

PackedMatrix pack_panels_transposed(MatrixView<const float> w, const Mask& mask,
                                    const PanelOptions& options, PackedMatrix reuse) {
  check_sizes(w, mask);
  WEFT_CHECK(options.row_order.empty(), "a transposed pack takes no row order");
  // Only the mask is transposed: one bit per weight.
  return pack_masked({w.data, 1, w.row_stride}, mask.transposed(), options, std::move(reuse));
}

PackedMatrix pack_filters_transposed(const float* weights, const Mask& mask,
                                     const WeightShape& shape, std::span<const int64_t> taps,
                                     const PanelOptions& options, PackedMatrix reuse) {
  shape.check();
  check_sizes(MatrixView<const float>(weights, shape.outs, shape.cols()), mask);
  WEFT_CHECK(options.row_order.empty(), "a transposed pack takes no row order");
  const Mask by_input = filters_transposed(mask, shape, taps);
  if (shape.taps == 1 && taps.size() == 1) {  // a matrix
    return pack_masked({weights, 1, shape.ins}, by_input, options, std::move(reuse));
  }
  return pack_masked({weights, shape.taps, shape.cols(), 0, taps}, by_input, options,
                     std::move(reuse));
}

PackedMatrix pack_panels_by_magnitude(MatrixView<const float> w, const PanelOptions& options,
                                      PackedMatrix reuse) {
  WEFT_CHECK(!options.ragged, "a pack by magnitude is {} in every row: it cannot be ragged",
             options.pattern.str());
  WEFT_CHECK(options.row_order.empty(), "a pack by magnitude takes no row order");
  const PackHeader header = panel_header(w.rows, w.cols, options);
  PanelPacker packer(header, options);
  // Every group will be full: if panels hold whole groups, the starts are known, and the mask of a
  // few rows at a time is enough.
  if (!packer.has_whole_groups()) {
    const Mask mask = largest_of(w, 0, w.rows, options.pattern, header.segment);
    return pack_masked({w.data, w.row_stride, 1}, mask, options, std::move(reuse));
  }
  packer.count_full();
  PackedMatrix packed = packer.allocate(std::move(reuse));
  parallel_for(packer.items(), [&](int64_t item) {
    const int64_t first = packer.members(packer.item_begin(item)).first_row;
    const int64_t rows = std::min(w.rows - first, packer.cells_per_item() * header.share);
    const Mask mask = largest_of(w, first, rows, options.pattern, header.segment);
    packer.fill({mask, first}, {w.data, w.row_stride, 1}, item, packed);
  });
  return packed;
}

void check_panel_contents(const PackedMatrix& packed) {
  const PanelView view = packed.panel();
  const int64_t slots = view.panels * view.cells;
  const int64_t line = int64_t{view.tile.width} * 4;
  check_starts_and_order(view, packed.header().entries);
  Mask mask(view.cells, view.depth);
  for (int64_t s = 0; s < slots; ++s) {
    WEFT_CHECK(
        view.starts[s] <= view.starts[s + 1] && view.starts[s + 1] <= packed.header().entries,
        "packed matrix: cell {} of panel {} ends before it begins", s % view.cells, s / view.cells);
    WEFT_CHECK(view.starts[s] == view.starts[s + 1] || view.first_row(s % view.cells) < view.rows,
               "packed matrix: cell {} has entries, but no row", s % view.cells);
    const int64_t begin = s / view.cells * view.tile.depth;
    const int64_t deep = std::min<int64_t>(view.tile.depth, view.depth - begin);
    int64_t last = -1;
    for (uint32_t e = view.starts[s]; e < view.starts[s + 1]; ++e) {
      const int64_t k = view.offsets[e] / line;
      WEFT_CHECK(view.offsets[e] % line == 0 && k > last && k < deep,
                 "packed matrix: offset {} of entry {} is not a row of its panel, or not in order",
                 view.offsets[e], e);
      mask.set(s % view.cells, begin + k, true);
      last = k;
    }
  }
  if (!packed.ragged()) require_groups(mask, packed.pattern(), packed.header().segment);
}

}  // namespace weft
