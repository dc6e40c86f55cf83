// PackedMatrix: the kept values of a [rows, depth] matrix and where they stood, in one buffer that
// begins with a header. `depth` is the axis that a product sums over. docs/format.md draws every
// byte.
//
// Three layouts:
//
//   panel   for products. Any mask, N:M or not ("ragged": each row its own count). Depth is cut
//           into panels of tile.depth; within a panel come the cells (rows that share one pattern),
//           within a cell its entries in order of depth. An entry is `share` values and one 16-bit
//           offset: the bytes from the first row of a [tile.depth, tile.width] float panel of the
//           dense operand to the row that the value multiplies.
//   stream  for files and for products with few tokens, where every byte comes from memory once.
//           N:M only: `keep` slots per group, an index of 1, 2, 4 or 8 bits each, sixteen rows side
//           by side.
//   tile    for products in bf16 on units that multiply tiles (AMX). Patterns that 16 or 32 rows
//           share. Like panels, but the entries of a cell in a panel come in steps of 32, filled
//           up with entries that multiply a row of zeros: 32 row numbers, and for every 16 sharing
//           rows a tile of [16 rows, 32 entries].
//
// Rows of a panel or tile pack may be permuted (mask/row_order.h); the order is stored after the
// values: place p holds row order[p]. Products and unpack undo the permutation.
//
// A value that the mask does not keep is not there: it cannot turn a NaN of the other operand into
// a NaN of the product. Immutable once packed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "weft/core/aligned_buffer.h"
#include "weft/core/bf16.h"
#include "weft/core/pattern.h"
#include "weft/core/precision.h"

namespace weft {

enum class PackLayout : uint8_t { kPanel = 1, kStream = 2, kTile = 3 };
std::string_view layout_name(PackLayout layout);  // "panel", "stream", "tile"

size_t value_bytes(Precision type);  // 4 or 2

// The panel of the dense operand that the offsets of a pack point into.
struct PackTile {
  int depth = 0;  // rows
  int width = 0;  // numbers from one row to the next; a multiple of 16

  friend bool operator==(const PackTile&, const PackTile&) = default;
};

// The first 128 bytes of the buffer, little-endian.
struct PackHeader {
  static constexpr uint32_t kVersion = 1;

  char magic[8] = {'W', 'E', 'F', 'T', 'P', 'A', 'C', 'K'};
  uint32_t version = kVersion;
  PackLayout layout = PackLayout::kPanel;
  Precision value_type = Precision::kFp32;
  uint8_t ragged = 0;      // 1: rows obey no pattern, `keep` and `group` say where they come from
  uint8_t index_bits = 0;  // stream only: 1, 2, 4 or 8
  uint8_t keep = 1;
  uint8_t group = 1;
  uint8_t share = 1;
  uint8_t full = 0;         // stream only: 1 if every group keeps `keep`, or all that it has
  uint32_t tile_depth = 0;  // panel and tile
  uint32_t tile_width = 0;  // panel and tile
  uint8_t ordered = 0;      // panel and tile: 1 if rows stand in an order of their own
  uint8_t zero1[3] = {};
  int64_t rows = 0;
  int64_t depth = 0;
  int64_t segment = 0;  // groups restart after this many (the inputs of one tap of a convolution)
  int64_t entries = 0;  // each with `share` values (panel, tile) or one (stream)
  uint8_t zero2[64] = {};
};
static_assert(sizeof(PackHeader) == 128);

// What a product needs to know of panels and tiles alike: cells of rows that share their entries,
// panel by panel.
struct CellView {
  int64_t rows = 0;
  int64_t depth = 0;
  int64_t panels = 0;
  int64_t cells = 0;
  int share = 1;
  int row_stride = 1;  // rows from one member of a cell to the next: `group`, or 1 without sharing
  PackTile tile;
  const uint32_t* starts = nullptr;   // [panels * cells + 1]: first entry of a cell in a panel
  const uint16_t* offsets = nullptr;  // [entries]
  const int32_t* order = nullptr;     // [rows]: the row in each place; null: not permuted

  // The first row (place, if there is an order) of a cell; its other members follow every
  // row_stride rows, and may be past the last row when the last block is cut short.
  int64_t first_row(int64_t cell) const {
    return share == 1 ? cell : cell / row_stride * share * row_stride + cell % row_stride;
  }
};

// Offsets are bytes into the panel.
struct PanelView : CellView {
  Precision value_type = Precision::kFp32;
  const void* values = nullptr;  // [entries, share] of value_type
};

// Offsets are rows of the panel, tile.depth a row of zeros; starts are multiples of 32.
struct TileView : CellView {
  const Bf16* values = nullptr;  // [entries / 32, share / 16, 16 rows, 32 entries]

  Bf16 value(int64_t entry, int member) const {
    return values[entry / 32 * 32 * share + member / 16 * 512 + member % 16 * 32 + entry % 32];
  }
};

// Rows that are adjacent in the stream layout.
constexpr int kStreamRows = 16;

struct StreamView {
  int64_t rows = 0;
  int64_t depth = 0;
  int64_t segment = 0;
  int keep = 1;
  int group = 1;
  int64_t groups = 0;  // per row
  int64_t blocks = 0;  // of kStreamRows rows
  int index_bits = 4;
  bool full = false;  // no slot of a whole group is unused
  Precision value_type = Precision::kFp32;
  // indices: [blocks, groups, keep, 16] of index_bits each, the first row in the lowest bits. A
  // slot that holds nothing has an index past the group (or past the last weight of a short group)
  // and the value zero.
  const uint8_t* indices = nullptr;
  const void* values = nullptr;  // [blocks, groups, keep, 16]
};

class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(PackedMatrix&& other) noexcept { *this = std::move(other); }
  PackedMatrix& operator=(PackedMatrix&& other) noexcept {  // leaves the other empty, and usable
    header_ = std::exchange(other.header_, {});
    buffer_ = std::move(other.buffer_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  // Takes a copy of a buffer from outside, after checking every byte that is not a value. Throws
  // Error that says what is wrong.
  static PackedMatrix from_bytes(std::span<const std::byte> bytes);
  // A buffer for the packers to fill: only the header is there. The memory of `reuse` is taken if
  // it is large enough: fresh pages cost as much as packing.
  static PackedMatrix allocate(const PackHeader& header, PackedMatrix reuse);

  const PackHeader& header() const { return header_; }
  std::span<const std::byte> bytes() const { return {buffer_.data(), size_}; }
  std::span<std::byte> mutable_bytes() { return {buffer_.data(), size_}; }

  int64_t rows() const { return header_.rows; }
  int64_t depth() const { return header_.depth; }
  PackLayout layout() const { return header_.layout; }
  Precision value_type() const { return header_.value_type; }
  Pattern pattern() const { return Pattern(header_.keep, header_.group, header_.share); }
  bool ragged() const { return header_.ragged != 0; }
  bool ordered() const { return header_.ordered != 0; }
  int64_t kept() const;    // values of the matrix, without those that only fill a cell or a slot
  double density() const;  // kept / all

  PanelView panel() const;    // Error unless layout() is kPanel
  StreamView stream() const;  // Error unless layout() is kStream
  TileView tiles() const;     // Error unless layout() is kTile

 private:
  const std::byte* fill(CellView& view) const;  // returns where the values begin

  PackHeader header_;
  AlignedBuffer<std::byte> buffer_;  // may be larger than what is packed
  size_t size_ = 0;
};

}  // namespace weft
