#include "weft/pack/packed_matrix.h"

#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/mask/row_order.h"
#include "weft/pack/sections.h"
#include "weft/pack/tiles.h"

static_assert(std::endian::native == std::endian::little, "packed buffers are little-endian");

namespace weft {
namespace {

constexpr int64_t kMaxTileBytes = 1 << 16;  // offsets have 16 bits

// Adds a part of count * size bytes, beginning on a cache line; returns where it begins.
size_t add_part(size_t& end, int64_t count, size_t size) {
  size_t bytes = 0;
  const size_t begin = (end + kCacheLine - 1) / kCacheLine * kCacheLine;
  WEFT_CHECK(!__builtin_mul_overflow(static_cast<size_t>(count), size, &bytes) &&
                 !__builtin_add_overflow(begin, bytes, &end),
             "packed matrix: {} elements of {} bytes overflow", count, size);
  return begin;
}

void check_common(const PackHeader& h) {
  WEFT_CHECK(std::memcmp(h.magic, PackHeader{}.magic, sizeof(h.magic)) == 0,
             "packed matrix: it does not begin with WEFTPACK");
  WEFT_CHECK(h.version == PackHeader::kVersion, "packed matrix: version {}, accepted is {}",
             h.version, PackHeader::kVersion);
  WEFT_CHECK(h.layout == PackLayout::kPanel || h.layout == PackLayout::kStream ||
                 h.layout == PackLayout::kTile,
             "packed matrix: layout {}, accepted are 1 (panel), 2 (stream) and 3 (tile)",
             static_cast<int>(h.layout));
  WEFT_CHECK(h.value_type == Precision::kFp32 || h.value_type == Precision::kBf16,
             "packed matrix: value type {}, accepted are 1 (fp32) and 2 (bf16)",
             static_cast<int>(h.value_type));
  WEFT_CHECK(h.ragged <= 1, "packed matrix: ragged is {}, accepted are 0 and 1", h.ragged);
  WEFT_CHECK(h.ordered <= 1, "packed matrix: ordered is {}, accepted are 0 and 1", h.ordered);
  bool zero = true;
  for (const uint8_t byte : h.zero1) zero = zero && byte == 0;
  for (const uint8_t byte : h.zero2) zero = zero && byte == 0;
  WEFT_CHECK(zero, "packed matrix: reserved bytes of the header are not zero");
  const Pattern pattern(h.keep, h.group, h.share);  // throws if there is no such pattern
  int64_t all = 0, padded_rows = 0;
  WEFT_CHECK(h.rows >= 0 && h.depth >= 0 && !__builtin_mul_overflow(h.rows, h.depth, &all) &&
                 !__builtin_add_overflow(h.rows, pattern.block(), &padded_rows) &&
                 !__builtin_mul_overflow(padded_rows, h.depth, &all),
             "packed matrix of {} x {}: sizes must not be negative or overflow", h.rows, h.depth);
  const bool segments = h.depth == 0
                            ? h.segment == 0
                            : h.segment > 0 && h.segment <= h.depth && h.depth % h.segment == 0;
  WEFT_CHECK(segments, "packed matrix: segments of {} do not divide a depth of {}", h.segment,
             h.depth);
  WEFT_CHECK(h.entries >= 0 && h.entries <= UINT32_MAX,
             "packed matrix: {} entries, accepted are at most 2^32 - 1", h.entries);
}

void check_panel_tile(const PackHeader& h) {
  WEFT_CHECK(
      h.tile_depth >= 1 && h.tile_width >= 16 && h.tile_width % 16 == 0 &&
          h.tile_depth <= kMaxTileBytes && h.tile_width <= kMaxTileBytes &&
          int64_t{h.tile_depth} * h.tile_width * 4 <= kMaxTileBytes,
      "packed matrix: a tile of {} x {}, accepted is a width that is a multiple of 16 and at "
      "most 65536 bytes of floats",
      h.tile_depth, h.tile_width);
}

void check_tiles(const PackHeader& h) {
  WEFT_CHECK(h.tile_depth >= 1 && h.tile_depth <= 1024 && h.tile_width == kTileColumns,
             "packed matrix: panels of {} x {} for tiles, accepted are at most 1024 x {}",
             h.tile_depth, h.tile_width, kTileColumns);
  WEFT_CHECK(h.value_type == Precision::kBf16 && h.share >= kTileRows,
             "packed matrix: tiles hold bf16 values that at least {} rows share", kTileRows);
  WEFT_CHECK(h.entries % kTileEntries == 0,
             "packed matrix: {} entries are not a multiple of a tile", h.entries);
}

PackSections panel_sections(const PackHeader& h) {
  h.layout == PackLayout::kPanel ? check_panel_tile(h) : check_tiles(h);
  WEFT_CHECK(h.index_bits == 0 && h.full == 0,
             "packed matrix: a layout of panels with index bits {} and full {}", h.index_bits,
             h.full);
  PackSections s;
  size_t end = sizeof(PackHeader);
  int64_t starts = 0;
  WEFT_CHECK(!__builtin_mul_overflow(panel_count(h), cell_count(h), &starts),
             "packed matrix of {} x {} overflows", h.rows, h.depth);
  s.starts = add_part(end, starts + 1, sizeof(uint32_t));
  s.starts_end = end;
  s.indices = add_part(end, h.entries, sizeof(uint16_t));
  s.indices_end = end;
  s.values = add_part(end, h.entries * h.share, value_bytes(h.value_type));
  s.values_end = s.order = end;
  if (h.ordered != 0) {
    WEFT_CHECK(h.rows <= INT32_MAX, "packed matrix: an order of {} rows, accepted are at most {}",
               h.rows, INT32_MAX);
    s.order = add_part(end, h.rows, sizeof(int32_t));
  }
  s.end = end;
  return s;
}

PackSections stream_sections(const PackHeader& h) {
  const int bits = h.index_bits;
  WEFT_CHECK(bits == 1 || bits == 2 || bits == 4 || bits == 8,
             "packed matrix: {} index bits, accepted are 1, 2, 4 and 8", bits);
  WEFT_CHECK((1 << bits) >= h.group, "packed matrix: {} index bits for groups of {}", bits,
             h.group);
  WEFT_CHECK(h.ragged == 0, "packed matrix: a stream layout cannot be ragged");
  WEFT_CHECK(h.ordered == 0, "packed matrix: a stream layout cannot have an order of rows");
  WEFT_CHECK(h.full <= 1, "packed matrix: full is {}, accepted are 0 and 1", h.full);
  WEFT_CHECK(h.tile_depth == 0 && h.tile_width == 0, "packed matrix: a stream layout with a tile");
  const int64_t blocks = ceil_div(h.rows, kStreamRows);
  int64_t slots = 0;
  WEFT_CHECK(!__builtin_mul_overflow(blocks, group_count(h), &slots) &&
                 !__builtin_mul_overflow(slots, int64_t{h.keep} * kStreamRows, &slots),
             "packed matrix of {} x {} overflows", h.rows, h.depth);
  WEFT_CHECK(h.entries == slots, "packed matrix: {} slots, but its shape has {}", h.entries, slots);
  PackSections s;
  size_t end = sizeof(PackHeader);
  s.indices = add_part(end, slots / 8 * bits, 1);  // sixteen rows: whole bytes
  s.indices_end = end;
  s.values = add_part(end, slots, value_bytes(h.value_type));
  s.values_end = s.order = s.end = end;
  return s;
}

struct Gap {
  size_t begin;
  size_t end;
};
std::vector<Gap> gaps(const PackHeader& h, const PackSections& parts) {
  std::vector<Gap> found = {{parts.indices_end, parts.values}, {parts.values_end, parts.order}};
  if (h.layout != PackLayout::kStream) found.push_back({parts.starts_end, parts.indices});
  return found;
}

}  // namespace

std::string_view layout_name(PackLayout layout) {
  switch (layout) {
    case PackLayout::kPanel: return "panel";
    case PackLayout::kStream: return "stream";
    case PackLayout::kTile: return "tile";
  }
  return "";
}

size_t value_bytes(Precision type) { return type == Precision::kFp32 ? 4 : 2; }

int64_t panel_count(const PackHeader& h) { return ceil_div(h.depth, h.tile_depth); }

int64_t cell_count(const PackHeader& h) {
  if (h.share == 1) return h.rows;
  return ceil_div(h.rows, int64_t{h.share} * h.group) * h.group;
}

int64_t group_count(const PackHeader& h) {
  return h.depth == 0 ? 0 : h.depth / h.segment * ceil_div(h.segment, h.group);
}

PackSections sections_of(const PackHeader& header) {
  check_common(header);
  return header.layout == PackLayout::kStream ? stream_sections(header) : panel_sections(header);
}

void check_starts_and_order(const CellView& view, int64_t entries) {
  const int64_t slots = view.panels * view.cells;
  WEFT_CHECK(view.starts[0] == 0 && view.starts[slots] == entries,
             "packed matrix: its starts run from {} to {}, not from 0 to {}", view.starts[0],
             view.starts[slots], entries);
  if (view.order == nullptr) return;
  WEFT_CHECK(is_row_order(std::vector<int64_t>(view.order, view.order + view.rows), view.rows),
             "packed matrix: its row order is not a permutation of {} rows", view.rows);
}

PackedMatrix PackedMatrix::allocate(const PackHeader& header, PackedMatrix reuse) {
  const PackSections parts = sections_of(header);
  PackedMatrix packed = std::move(reuse);
  packed.header_ = header;
  packed.buffer_.reserve(parts.end);
  packed.size_ = parts.end;
  std::byte* data = packed.buffer_.data();
  std::memcpy(data, &header, sizeof(header));
  // The gaps between the parts are zero, so that equal matrices have equal bytes.
  for (const auto& [begin, end] : gaps(header, parts)) std::memset(data + begin, 0, end - begin);
  return packed;
}

PackedMatrix PackedMatrix::from_bytes(std::span<const std::byte> bytes) {
  WEFT_CHECK(bytes.size() >= sizeof(PackHeader), "packed matrix: {} bytes, its header alone has {}",
             bytes.size(), sizeof(PackHeader));
  PackHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const PackSections parts = sections_of(header);
  WEFT_CHECK(bytes.size() == parts.end, "packed matrix: {} bytes, but its header asks for {}",
             bytes.size(), parts.end);
  PackedMatrix packed = allocate(header, {});
  for (const auto& [begin, end] : gaps(header, parts)) {
    for (size_t i = begin; i < end; ++i) {
      WEFT_CHECK(bytes[i] == std::byte{0}, "packed matrix: padding byte {} is not 0", i);
    }
  }
  std::memcpy(packed.buffer_.data(), bytes.data(), bytes.size());
  switch (header.layout) {
    case PackLayout::kPanel: check_panel_contents(packed); break;
    case PackLayout::kStream: check_stream_contents(packed); break;
    case PackLayout::kTile: check_tile_contents(packed); break;
  }
  return packed;
}

double PackedMatrix::density() const {
  const double all = static_cast<double>(rows()) * static_cast<double>(depth());
  return all == 0 ? 1.0 : static_cast<double>(kept()) / all;
}

const std::byte* PackedMatrix::fill(CellView& view) const {
  const PackSections parts = sections_of(header_);
  view.rows = header_.rows;
  view.depth = header_.depth;
  view.panels = panel_count(header_);
  view.cells = cell_count(header_);
  view.share = header_.share;
  view.row_stride = header_.share == 1 ? 1 : header_.group;
  view.tile = {static_cast<int>(header_.tile_depth), static_cast<int>(header_.tile_width)};
  view.starts = reinterpret_cast<const uint32_t*>(buffer_.data() + parts.starts);
  view.offsets = reinterpret_cast<const uint16_t*>(buffer_.data() + parts.indices);
  if (header_.ordered != 0) {
    view.order = reinterpret_cast<const int32_t*>(buffer_.data() + parts.order);
  }
  return buffer_.data() + parts.values;
}

PanelView PackedMatrix::panel() const {
  WEFT_CHECK(layout() == PackLayout::kPanel && size_ > 0,
             "this product takes a matrix in panel layout");
  PanelView view;
  view.values = fill(view);
  view.value_type = header_.value_type;
  return view;
}

TileView PackedMatrix::tiles() const {
  WEFT_CHECK(layout() == PackLayout::kTile && size_ > 0,
             "this product takes a matrix in tile layout");
  TileView view;
  view.values = reinterpret_cast<const Bf16*>(fill(view));
  return view;
}

StreamView PackedMatrix::stream() const {
  WEFT_CHECK(layout() == PackLayout::kStream && size_ > 0,
             "this product takes a matrix in stream layout");
  const PackSections parts = sections_of(header_);
  StreamView view;
  view.rows = header_.rows;
  view.depth = header_.depth;
  view.segment = header_.segment;
  view.keep = header_.keep;
  view.group = header_.group;
  view.groups = group_count(header_);
  view.blocks = ceil_div(header_.rows, kStreamRows);
  view.index_bits = header_.index_bits;
  view.full = header_.full != 0;
  view.value_type = header_.value_type;
  view.indices = reinterpret_cast<const uint8_t*>(buffer_.data() + parts.indices);
  view.values = buffer_.data() + parts.values;
  return view;
}

}  // namespace weft
