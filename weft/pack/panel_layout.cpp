#include "weft/pack/panel_layout.h"

#include <cstring>
#include <utility>

#include "weft/core/error.h"
#include "weft/pack/sections.h"

namespace weft {

PackHeader panel_header(int64_t rows, int64_t depth, const PanelOptions& options) {
  PackHeader h;
  h.layout = PackLayout::kPanel;
  h.value_type = options.value_type;
  h.ragged = options.ragged ? 1 : 0;
  h.keep = static_cast<uint8_t>(options.pattern.keep());
  h.group = static_cast<uint8_t>(options.pattern.group());
  h.share = static_cast<uint8_t>(options.pattern.share());
  h.tile_depth = static_cast<uint32_t>(options.tile.depth);
  h.tile_width = static_cast<uint32_t>(options.tile.width);
  h.rows = rows;
  h.depth = depth;
  h.segment = options.segment == 0 ? depth : options.segment;
  h.ordered = options.row_order.empty() ? 0 : 1;
  sections_of(h);  // throws what is impossible, before anything is counted
  return h;
}

PanelLayout::PanelLayout(const PackHeader& header)
    : header_(header),
      panels_(panel_count(header)),
      cells_(cell_count(header)),
      starts_(static_cast<size_t>(panels_ * cells_ + 1), 0) {}

void PanelLayout::count_full() {
  for (int64_t p = 0; p < panels_; ++p) {
    int64_t full = 0;
    for (int64_t k = panel_begin(p); k < panel_end(p); k += header_.group) {
      full += std::min<int64_t>(header_.keep, panel_end(p) - k);
    }
    for (int64_t cell = 0; cell < cells_; ++cell) {
      if (members(cell).count == 0) continue;
      starts_[static_cast<size_t>(p * cells_ + cell)] = static_cast<uint32_t>(full);
    }
  }
}

PackedMatrix PanelLayout::allocate(PackedMatrix reuse) {
  uint64_t total = 0;
  for (uint32_t& start : starts_) {
    const uint64_t count = start;
    WEFT_CHECK(total <= UINT32_MAX, "a packed matrix has at most 2^32 - 1 entries");
    start = static_cast<uint32_t>(total);
    total += count;
  }
  header_.entries = static_cast<int64_t>(starts_.back());
  PackedMatrix packed = PackedMatrix::allocate(header_, std::move(reuse));
  std::memcpy(packed.mutable_bytes().data() + sections_of(header_).starts, starts_.data(),
              starts_.size() * sizeof(uint32_t));
  return packed;
}

}  // namespace weft
