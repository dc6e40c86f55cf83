#include <algorithm>

#include "weft/core/bf16.h"
#include "weft/core/parallel.h"
#include "weft/pack/pack.h"
#include "weft/pack/sections.h"
#include "weft/pack/stream_groups.h"

namespace weft {
namespace {

float value_at(const PanelView& view, int64_t i) {
  return view.value_type == Precision::kFp32
             ? static_cast<const float*>(view.values)[i]
             : bf16_to_float(static_cast<const uint16_t*>(view.values)[i]);
}

// Rows of a cell that exist, in panels or in tiles.
template <typename View>
int64_t members(const View& view, int64_t cell) {
  const int64_t first = view.first_row(cell);
  if (first >= view.rows) return 0;
  return std::min<int64_t>(view.share, (view.rows - 1 - first) / view.row_stride + 1);
}

// Calls body(cell, depth, entry) for entries that do not only fill a tile.
template <typename Body>
void for_each_tile_entry(const TileView& view, Body body) {
  for (int64_t s = 0; s < view.panels * view.cells; ++s) {
    for (int64_t e = view.starts[s]; e < view.starts[s + 1]; ++e) {
      if (view.offsets[e] == view.tile.depth) continue;
      body(s % view.cells, s / view.cells * view.tile.depth + view.offsets[e], e);
    }
  }
}

void unpack_panels(const PanelView& view, Unpacked& result) {
  const int64_t line = int64_t{view.tile.width} * 4;
  if (view.panels == 0) return;  // any number of rows without columns
  parallel_for(view.cells, [&](int64_t cell) {
    const int64_t rows = members(view, cell);
    for (int64_t p = 0; p < view.panels; ++p) {
      const uint32_t* start = view.starts + p * view.cells + cell;
      for (int64_t e = start[0]; e < start[1]; ++e) {
        const int64_t k = p * view.tile.depth + view.offsets[e] / line;
        for (int64_t m = 0; m < rows; ++m) {
          const int64_t place = view.first_row(cell) + m * view.row_stride;
          const int64_t row = view.order == nullptr ? place : view.order[place];
          result.values[static_cast<size_t>(row * view.depth + k)] =
              value_at(view, e * view.share + m);
          result.mask.set(row, k, true);
        }
      }
    }
  });
}

void unpack_tiles(const TileView& view, Unpacked& result) {
  for_each_tile_entry(view, [&](int64_t cell, int64_t k, int64_t e) {
    for (int64_t m = 0; m < members(view, cell); ++m) {
      const int64_t place = view.first_row(cell) + m * view.row_stride;
      const int64_t row = view.order == nullptr ? place : view.order[place];
      result.values[static_cast<size_t>(row * view.depth + k)] =
          to_float(view.value(e, static_cast<int>(m)));
      result.mask.set(row, k, true);
    }
  });
}

// The rows of a block that exist.
int rows_in(const StreamView& view, int64_t block) {
  return static_cast<int>(std::min<int64_t>(kStreamRows, view.rows - block * kStreamRows));
}

// Calls body(column in the window, slot) for the used slots of a row of a window.
template <typename Body>
void for_each_used(const StreamView& view, const StreamWindow& window, int row, Body body) {
  for_each_group(view, window, [&](const StreamGroup& group) {
    for (int64_t slot = group.first_slot; slot < group.first_slot + view.keep; ++slot) {
      const int index = index_at(view, slot, row);
      if (index < group.width) body(group.at + index, slot);
    }
  });
}

void unpack_stream(const StreamView& view, Unpacked& result) {
  if (view.groups == 0) return;
  parallel_for(view.blocks, [&](int64_t block) {
    for_each_window(view, block, [&](const StreamWindow& window) {
      for (int r = 0; r < rows_in(view, block); ++r) {
        const int64_t row = block * kStreamRows + r;
        float* values = result.values.data() + row * view.depth + window.col;
        uint64_t kept = 0;
        for_each_used(view, window, r, [&](int at, int64_t slot) {
          values[at] = value_at(view, slot, r);
          kept |= uint64_t{1} << at;
        });
        result.mask.put_bits(row, window.col, window.width, kept);
      }
    });
  });
}

}  // namespace

Unpacked unpack(const PackedMatrix& packed) {
  Unpacked result{std::vector<float>(static_cast<size_t>(packed.rows() * packed.depth()), 0.0f),
                  Mask(packed.rows(), packed.depth())};
  switch (packed.layout()) {
    case PackLayout::kPanel: unpack_panels(packed.panel(), result); break;
    case PackLayout::kStream: unpack_stream(packed.stream(), result); break;
    case PackLayout::kTile: unpack_tiles(packed.tiles(), result); break;
  }
  return result;
}

int64_t PackedMatrix::kept() const {
  int64_t kept = 0;
  if (layout() == PackLayout::kTile) {
    const TileView view = tiles();
    for_each_tile_entry(view, [&](int64_t cell, int64_t, int64_t) { kept += members(view, cell); });
    return kept;
  }
  if (layout() == PackLayout::kPanel) {
    const PanelView view = panel();
    for (int64_t p = 0; p < view.panels; ++p) {
      for (int64_t cell = 0; cell < view.cells; ++cell) {
        const uint32_t* start = view.starts + p * view.cells + cell;
        kept += int64_t{start[1] - start[0]} * members(view, cell);
      }
    }
    return kept;
  }
  const StreamView view = stream();
  for (int64_t block = 0; view.groups > 0 && block < view.blocks; ++block) {
    for_each_window(view, block, [&](const StreamWindow& window) {
      for (int r = 0; r < rows_in(view, block); ++r) {
        for_each_used(view, window, r, [&](int, int64_t) { ++kept; });
      }
    });
  }
  return kept;
}

}  // namespace weft
