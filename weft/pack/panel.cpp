// The panel layout: packing, and checking what comes from outside.
//
// `starts` comes first (panel_layout.h): counted from the mask, or known beforehand when every
// group is full. Then each cell writes its entries where they belong. Cells are independent, so the
// buffer does not depend on the number of threads.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "weft/core/bf16.h"
#include "weft/core/bits.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/mask/row_order.h"
#include "weft/pack/group_check.h"
#include "weft/pack/largest_of.h"
#include "weft/pack/pack.h"
#include "weft/pack/panel_layout.h"
#include "weft/pack/sections.h"

namespace weft {
namespace {

// Rows of the packed matrix, of which `mask` holds those from `first` on.
struct MaskRows {
  const Mask& mask;
  int64_t first = 0;

  uint64_t bits(int64_t row, int64_t col, int count) const {
    return mask.bits(row - first, col, count);
  }
};

// Where the weights lie: element (row, k) at data[row * row_step + k * depth_step].
struct Weights {
  const float* data;
  int64_t row_step;
  int64_t depth_step;
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
        for_each_word(mask, rows.first_row, p,
                      [&](int64_t, uint64_t bits) { kept += popcount64(bits); });
        starts_[static_cast<size_t>(p * cells_ + cell)] = static_cast<uint32_t>(kept);
      }
    }
  }

  // The entries of the cells of one item.
  void fill(const MaskRows& mask, const Weights& weights, int64_t item,
            PackedMatrix& packed) const {
    const PackSections parts = sections_of(header_);
    std::byte* bytes = packed.mutable_bytes().data();
    auto* offsets = reinterpret_cast<uint16_t*>(bytes + parts.indices);
    if (header_.value_type == ValueType::kF32) {
      auto* values = reinterpret_cast<float*>(bytes + parts.values);
      if (!rounded_) {
        return fill_as(mask, weights, item, offsets, values, [](float value) { return value; });
      }
      fill_as(mask, weights, item, offsets, values,
              [](float value) { return to_float(to_bf16(value)); });
    } else {
      fill_as(mask, weights, item, offsets, reinterpret_cast<uint16_t*>(bytes + parts.values),
              float_to_bf16);
    }
  }

 private:
  // Calls body(depth in the panel of the first bit, bits) for every 64 of a row in a panel.
  template <typename Body>
  void for_each_word(const MaskRows& mask, int64_t row, int64_t panel, Body body) const {
    const int64_t begin = panel_begin(panel), end = panel_end(panel);
    for (int64_t k = begin; k < end; k += 64) {
      body(k - begin, mask.bits(row, k, static_cast<int>(std::min<int64_t>(64, end - k))));
    }
  }

  template <typename T, typename Convert>
  void fill_as(const MaskRows& mask, const Weights& weights, int64_t item, uint16_t* offsets,
               T* values, Convert convert) const {
    AlignedBuffer<float> lines;
    for (int64_t p = 0; p < panels_; ++p) {
      Weights in_panel = weights;
      in_panel.data += panel_begin(p) * weights.depth_step;
      if (weights.depth_step != 1) in_panel = gather(in_panel, item, p, lines);
      for (int64_t cell = item_begin(item); cell < item_end(item); ++cell) {
        fill_cell(mask, in_panel, cell, p, offsets, values, convert);
      }
    }
  }

  // The part of a transposed operand that an item needs of a panel, copied side by side. As they
  // lie, its lines are a row of the operand apart, often a power of two, and would fall into the
  // same few sets of the cache.
  Weights gather(const Weights& in_panel, int64_t item, int64_t panel,
                 AlignedBuffer<float>& lines) const {
    const int64_t first = members(item_begin(item)).first_row;
    int64_t last = first;
    for (int64_t cell = item_begin(item); cell < item_end(item); ++cell) {
      if (members(cell).count > 0) last = std::max(last, members(cell).last_row());
    }
    const int64_t width = last - first + 1;
    const int64_t stride = width + 4;  // no power of two either
    lines.reserve(static_cast<size_t>(stride * header_.tile_depth));
    for (int64_t k = 0; k < panel_end(panel) - panel_begin(panel); ++k) {
      std::memcpy(lines.data() + k * stride, in_panel.data + k * in_panel.depth_step + first,
                  static_cast<size_t>(width) * sizeof(float));
    }
    return {lines.data() - first, 1, stride};
  }

  // One walk over the bits for the offset and all members: they have the same mask.
  template <typename T, typename Convert>
  void fill_cell(const MaskRows& mask, const Weights& in_panel, int64_t cell, int64_t panel,
                 uint16_t* offsets, T* values, Convert convert) const {
    const Members rows = members(cell);
    if (rows.count == 0) return;
    const int64_t first = starts_[static_cast<size_t>(panel * cells_ + cell)];
    const int64_t line = int64_t{header_.tile_width} * 4;
    const float* from = in_panel.data + rows.first_row * in_panel.row_step;
    const int64_t step = rows.stride * in_panel.row_step;
    // Of members that are there, and of all: constants for the patterns that train best.
    const auto walk = [&](auto count, auto share, auto weight) {
      uint16_t* offset = offsets + first;
      T* value = values + first * share;
      for_each_word(mask, rows.first_row, panel, [&](int64_t k, uint64_t bits) {
        for (; bits != 0; bits &= bits - 1) {
          const int64_t at = k + std::countr_zero(bits);
          *offset++ = static_cast<uint16_t>(at * line);
          for (int64_t m = 0; m < count; ++m) *value++ = convert(weight(m, at));
          // Past the last row nobody looks at the product.
          for (int64_t m = count; m < share; ++m) *value++ = T{};
        }
      });
    };
    constexpr std::integral_constant<int64_t, 1> kOne;
    constexpr std::integral_constant<int64_t, 2> kTwo;
    if (!row_order_.empty()) {
      std::array<const float*, Pattern::kMaxShare> members{};
      for (int64_t m = 0; m < rows.count; ++m) {
        const auto place = static_cast<size_t>(rows.first_row + m * rows.stride);
        members[static_cast<size_t>(m)] = in_panel.data + row_order_[place] * in_panel.row_step;
      }
      return walk(rows.count, int64_t{header_.share},
                  [&](int64_t m, int64_t at) { return members[static_cast<size_t>(m)][at]; });
    }
    const auto weight = [&](int64_t m, int64_t at) {
      return from[at * in_panel.depth_step + m * step];
    };
    if (header_.share == 1) return walk(kOne, kOne, weight);
    if (header_.share == 2 && rows.count == 2) return walk(kTwo, kTwo, weight);
    walk(rows.count, int64_t{header_.share}, weight);
  }

  std::span<const int64_t> row_order_;  // weights then lie row by row: depth_step is 1
  bool rounded_;
};

void put_order(std::span<const int64_t> order, PackedMatrix& packed) {
  auto* to = reinterpret_cast<int32_t*>(packed.mutable_bytes().data() +
                                        sections_of(packed.header()).order);
  for (const int64_t row : order) *to++ = static_cast<int32_t>(row);
}

// mask: [rows, depth] of the packed matrix, whichever way its weights lie.
PackedMatrix pack_masked(const Weights& weights, const Mask& mask, const PanelOptions& options,
                         PackedMatrix reuse) {
  const PackHeader header = panel_header(mask.rows(), mask.cols(), options);
  if (!options.ragged) require_groups(mask, options.pattern, header.segment);
  require_row_order(options.row_order, mask.rows(), "row order of a pack");
  Mask moved;
  if (!options.row_order.empty()) moved = in_row_order(mask, options.row_order);
  const MaskRows rows{options.row_order.empty() ? mask : moved};
  require_sharing(rows.mask, options.pattern);
  PanelPacker packer(header, options);
  parallel_for(packer.items(), [&](int64_t item) { packer.count(rows, item); });
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
  WEFT_CHECK(options.row_order.empty(), "a transposed pack takes no order of its rows");
  // The mask alone is turned: one bit per weight.
  return pack_masked({w.data, 1, w.row_stride}, mask.transposed(), options, std::move(reuse));
}

PackedMatrix pack_panels_by_magnitude(MatrixView<const float> w, const PanelOptions& options,
                                      PackedMatrix reuse) {
  WEFT_CHECK(!options.ragged, "by magnitude every row is {}: it cannot be ragged",
             options.pattern.str());
  WEFT_CHECK(options.row_order.empty(), "a pack by magnitude takes no order of its rows");
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
