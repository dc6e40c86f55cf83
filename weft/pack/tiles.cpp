#include "weft/pack/tiles.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/pack/group_check.h"
#include "weft/pack/sections.h"
#include "weft/pack/transpose_bf16.h"

namespace weft {
namespace {

constexpr int64_t kTileValues = int64_t{kTileRows} * kTileEntries;

// The values of an entry as bf16: as stored, or rounded into `room`.
const Bf16* as_bf16(const Bf16* values, int, Bf16*) { return values; }
const Bf16* as_bf16(const float* values, int share, Bf16* room) {
  for (int m = 0; m < share; ++m) room[m] = to_bf16(values[m]);
  return room;
}

// Entries of one cell in one panel, into whole tiles: what is missing multiplies a row of zeros.
template <typename T>
struct CellTiles {
  const uint16_t* offsets;  // of the panel pack
  const T* values;          // [entries, share]
  int64_t entries;
  int64_t line;  // bytes of a row of its panels
  int share;
  uint16_t zero_row;
  uint16_t* to_rows;
  Bf16* to_values;

  void place() const {
    for (int64_t first = 0; first < entries; first += kTileEntries) place_step(first);
  }

 private:
  void place_step(int64_t first) const {
    static constexpr Bf16 kNothing[Pattern::kMaxShare] = {};
    for (int64_t e = first; e < first + kTileEntries; ++e) {
      to_rows[e] = e < entries ? static_cast<uint16_t>(offsets[e] / line) : zero_row;
    }
    for (int64_t eight = 0; eight < kTileEntries; eight += 8) {
      Bf16 room[8][Pattern::kMaxShare];
      const Bf16* rows[8];
      for (int64_t i = 0; i < 8; ++i) {
        const int64_t e = first + eight + i;
        rows[i] = e < entries ? as_bf16(values + e * share, share, room[i]) : kNothing;
      }
      for (int block = 0; block < share / kTileRows; ++block) {
        Bf16* tile = to_values + first * share + block * kTileValues;
        transpose_eight(rows, kTileRows, tile + eight, kTileEntries);
        for (const Bf16*& row : rows) row += kTileRows;
      }
    }
  }
};

}  // namespace

// Each panel has a tile of sums loaded and stored for its entries: at least 128, four steps of 64
// to 128 cycles, so that this does not count. At 2:4 that is 256 deep: 32 KB, which fits L1;
// sparser matrices gather from L2. (From the figures of such units; none was at hand to measure.)
PackTile tile_panel(const Pattern& pattern) {
  constexpr int kEntries = 128, kDeepest = 1024;
  const int depth = std::min(kDeepest, kEntries * pattern.group() / pattern.keep());
  return {std::max(1, depth / pattern.group()) * pattern.group(), 16};
}

PackedMatrix tiles_of(const PackedMatrix& panels, PackedMatrix reuse) {
  const PanelView from = panels.panel();
  WEFT_CHECK(fills_tiles(panels.pattern()),
             "tiles are made of values that 16 or 32 rows share, not of {}",
             panels.pattern().str());
  const int64_t slots = from.panels * from.cells;
  std::vector<uint32_t> starts(static_cast<size_t>(slots + 1), 0);
  uint64_t total = 0;
  for (int64_t s = 0; s < slots; ++s) {
    starts[static_cast<size_t>(s)] = static_cast<uint32_t>(total);
    total += static_cast<uint64_t>(ceil_div(from.starts[s + 1] - from.starts[s], kTileEntries) *
                                   kTileEntries);
    WEFT_CHECK(total <= UINT32_MAX, "a packed matrix has at most 2^32 - 1 entries");
  }
  starts.back() = static_cast<uint32_t>(total);

  PackHeader header = panels.header();
  header.layout = PackLayout::kTile;
  header.value_type = Precision::kBf16;
  header.tile_width = kTileColumns;
  header.entries = static_cast<int64_t>(total);
  PackedMatrix packed = PackedMatrix::allocate(header, std::move(reuse));
  const PackSections parts = sections_of(header);
  std::byte* bytes = packed.mutable_bytes().data();
  std::memcpy(bytes + parts.starts, starts.data(), starts.size() * sizeof(uint32_t));
  if (from.order != nullptr) {
    std::memcpy(bytes + parts.order, from.order, static_cast<size_t>(from.rows) * sizeof(int32_t));
  }
  auto* rows = reinterpret_cast<uint16_t*>(bytes + parts.indices);
  auto* values = reinterpret_cast<Bf16*>(bytes + parts.values);
  const auto place_all = [&]<typename Value>(const Value* from_values) {
    parallel_for(slots, [&](int64_t s) {
      const int64_t first = from.starts[s], to = starts[static_cast<size_t>(s)];
      CellTiles<Value>{from.offsets + first,
                       from_values + first * from.share,
                       from.starts[s + 1] - first,
                       int64_t{from.tile.width} * 4,
                       from.share,
                       static_cast<uint16_t>(header.tile_depth),
                       rows + to,
                       values + to * from.share}
          .place();
    });
  };
  if (from.value_type == Precision::kBf16) {
    place_all(static_cast<const Bf16*>(from.values));
  } else {
    place_all(static_cast<const float*>(from.values));
  }
  return packed;
}

void check_tile_contents(const PackedMatrix& packed) {
  const TileView view = packed.tiles();
  const int64_t slots = view.panels * view.cells;
  check_starts_and_order(view, packed.header().entries);
  Mask mask(view.cells, view.depth);
  for (int64_t s = 0; s < slots; ++s) {
    const int64_t cell = s % view.cells, begin = s / view.cells * view.tile.depth;
    WEFT_CHECK(view.starts[s] <= view.starts[s + 1] &&
                   view.starts[s + 1] <= packed.header().entries &&
                   view.starts[s] % kTileEntries == 0 && view.starts[s + 1] % kTileEntries == 0,
               "packed matrix: cell {} of panel {} has no whole tiles", cell, s / view.cells);
    WEFT_CHECK(view.starts[s] == view.starts[s + 1] || view.first_row(cell) < view.rows,
               "packed matrix: cell {} has entries, but no row", cell);
    const int64_t deep = std::min<int64_t>(view.tile.depth, view.depth - begin);
    int64_t last = -1;
    for (uint32_t e = view.starts[s]; e < view.starts[s + 1]; ++e) {
      const int64_t k = view.offsets[e];
      const bool filling = k == view.tile.depth;
      WEFT_CHECK(filling || (last < view.tile.depth && k > last && k < deep),
                 "packed matrix: entry {} is at row {} of a panel of {}, or not in order", e, k,
                 deep);
      if (!filling) mask.set(cell, begin + k, true);
      if (filling) {
        for (int m = 0; m < view.share; ++m) {
          WEFT_CHECK(view.value(e, m).bits == 0,
                     "packed matrix: padding entry {} of a tile has values that are not 0", e);
        }
      }
      last = k;
    }
  }
  if (!packed.ragged()) require_groups(mask, packed.pattern(), packed.header().segment);
}

}  // namespace weft
