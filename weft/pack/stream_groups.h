// Walking through the stream layout: for packing, unpacking and checking, not for products.
//
// Sixteen rows of a matrix are often a power of two apart, in the same few sets of the cache. So
// that every line of them is fetched once, work goes window by window (whole groups, up to 64
// columns), and within a window row by row.
#pragma once

#include <algorithm>
#include <optional>

#include "weft/core/bf16.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

struct StreamWindow {
  int64_t col = 0;         // its first column
  int width = 0;           // columns; ends with a short group where a segment ends
  int64_t first_slot = 0;  // of [blocks * groups * keep]; a slot has sixteen rows
};

struct StreamGroup {
  int at = 0;              // its first column, from that of the window
  int width = 0;           // fewer than `group` where a segment ends
  int64_t first_slot = 0;  // as above
};

// The windows of one block of rows, in order of depth.
template <typename Body>
void for_each_window(const StreamView& view, int64_t block, Body body) {
  const int64_t most = 64 / view.group * view.group;
  StreamWindow window;
  window.first_slot = block * view.groups * view.keep;
  for (int64_t segment = 0; segment < view.depth; segment += view.segment) {
    const int64_t end = segment + view.segment;
    for (window.col = segment; window.col < end; window.col += most) {
      window.width = static_cast<int>(std::min(most, end - window.col));
      body(window);
      window.first_slot += (window.width + view.group - 1) / view.group * view.keep;
    }
  }
}

template <typename Body>
void for_each_group(const StreamView& view, const StreamWindow& window, Body body) {
  StreamGroup group;
  group.first_slot = window.first_slot;
  for (; group.at < window.width; group.at += view.group, group.first_slot += view.keep) {
    group.width = std::min(view.group, window.width - group.at);
    body(group);
  }
}

// The index of an unused slot in a group of this width, if index_bits leave one over.
inline std::optional<int> unused_index(const StreamView& view, int width) {
  if (width < (1 << view.index_bits)) return width;
  return std::nullopt;
}

inline int index_at(const StreamView& view, int64_t slot, int row) {
  const int bit = row * view.index_bits;
  const int byte = view.indices[slot * 2 * view.index_bits + bit / 8];
  return (byte >> (bit % 8)) & ((1 << view.index_bits) - 1);
}

inline float value_at(const StreamView& view, int64_t slot, int row) {
  const int64_t i = slot * kStreamRows + row;
  return view.value_type == Precision::kFp32
             ? static_cast<const float*>(view.values)[i]
             : bf16_to_float(static_cast<const uint16_t*>(view.values)[i]);
}

}  // namespace weft
