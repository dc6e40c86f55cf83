// The stream layout: packing, and checking what comes from outside.
//
//   group    width              the columns of a group: `group`, or fewer where a segment ends
//   slots    used, used, ...    indices ascend
//            unused, ...        come last: index `width`, value +0
//
// When every group is full there may be no index to spare: 2:4 has two bits, for 0 to 3. Then only
// the rows past the last one have slots without a weight: they hold the slot's own number and +0.
// One matrix has one buffer: index_bits follows from the mask, and a reader insists on it.
//
// Blocks of sixteen rows are independent, so the buffer does not depend on the number of threads.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "weft/core/bf16.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/pack/group_check.h"
#include "weft/pack/largest_of.h"
#include "weft/pack/pack.h"
#include "weft/pack/sections.h"
#include "weft/pack/stream_groups.h"

namespace weft {
namespace {

// Sixteen indices of a byte each, side by side in `bits` each, the first in the lowest bits.
void put_indices(const uint8_t* indices, int bits, uint8_t* to) {
  if (bits == 8) {
    std::memcpy(to, indices, kStreamRows);
    return;
  }
  // Neighbours move together: pairs of indices, then pairs of pairs, then all eight.
  for (int half = 0; half < 2; ++half) {
    uint64_t eight = 0;
    std::memcpy(&eight, indices + 8 * half, sizeof eight);
    eight = (eight | eight >> (8 - bits)) & 0x00ff00ff00ff00ff;
    eight = (eight | eight >> (16 - 2 * bits)) & 0x0000ffff0000ffff;
    eight = eight | eight >> (32 - 4 * bits);
    std::memcpy(to + half * bits, &eight, static_cast<size_t>(bits));
  }
}

class StreamPacker {
 public:
  StreamPacker(MatrixView<const float> weights, PackedMatrix& packed)
      : weights_(weights),
        view_(packed.stream()),
        indices_(reinterpret_cast<uint8_t*>(packed.mutable_bytes().data()) +
                 sections_of(packed.header()).indices),
        values_(packed.mutable_bytes().data() + sections_of(packed.header()).values) {}

  // mask: row `first` of the matrix and those after it.
  void fill_block(int64_t block, const Mask& mask, int64_t first) const {
    if (view_.value_type == Precision::kFp32) {
      fill_as<float>(block, mask, first, [](float value) { return value; });
    } else {
      fill_as<uint16_t>(block, mask, first, float_to_bf16);
    }
  }

 private:
  template <typename T, typename Convert>
  void fill_as(int64_t block, const Mask& mask, int64_t first, Convert convert) const {
    const int64_t begin = block * kStreamRows;
    const int rows = static_cast<int>(std::min<int64_t>(kStreamRows, view_.rows - begin));
    // One byte per index at first: at most 64 slots.
    std::array<uint8_t, 64 * kStreamRows> indices;
    for_each_window(view_, block, [&](const StreamWindow& window) {
      T* values = reinterpret_cast<T*>(values_) + window.first_slot * kStreamRows;
      const int64_t slots = clear(window, indices.data(), values);
      for (int r = 0; r < rows; ++r) {
        const uint64_t kept = mask.bits(begin - first + r, window.col, window.width);
        fill_row(window, kept, weights_.row(begin + r) + window.col, indices.data() + r, values + r,
                 convert);
      }
      for (int64_t s = 0; s < slots; ++s) {
        put_indices(indices.data() + s * kStreamRows, view_.index_bits,
                    indices_ + (window.first_slot + s) * 2 * view_.index_bits);
      }
    });
  }

  // All slots of a window unused; returns how many there are.
  template <typename T>
  int64_t clear(const StreamWindow& window, uint8_t* indices, T* values) const {
    for_each_group(view_, window, [&](const StreamGroup& group) {
      const std::optional<int> unused = unused_index(view_, group.width);
      for (int slot = 0; slot < view_.keep; ++slot, indices += kStreamRows, values += kStreamRows) {
        std::memset(indices, unused.value_or(slot), kStreamRows);
        std::fill_n(values, kStreamRows, T{});
      }
    });
    return (window.width + view_.group - 1) / view_.group * view_.keep;
  }

  // from: [window.width] weights of a row; indices, values: those of its first slot.
  template <typename T, typename Convert>
  void fill_row(const StreamWindow& window, uint64_t kept, const float* from, uint8_t* indices,
                T* values, Convert convert) const {
    const uint64_t ones = view_.group == 64 ? ~uint64_t{0} : (uint64_t{1} << view_.group) - 1;
    const int64_t step = int64_t{view_.keep} * kStreamRows;
    for (int at = 0; at < window.width; at += view_.group, indices += step, values += step) {
      int64_t to = 0;
      for (uint64_t bits = kept >> at & ones; bits != 0; bits &= bits - 1, to += kStreamRows) {
        const int index = std::countr_zero(bits);
        indices[to] = static_cast<uint8_t>(index);
        values[to] = convert(from[at + index]);
      }
    }
  }

  MatrixView<const float> weights_;
  StreamView view_;
  uint8_t* indices_;
  std::byte* values_;
};

// What a row keeps of a window of a buffer from outside. Throws Error unless its indices ascend,
// unused slots come last, and those have their index and the value +0.
uint64_t checked_bits(const StreamView& view, const StreamWindow& window, int64_t row, int r) {
  uint64_t kept = 0;
  for_each_group(view, window, [&](const StreamGroup& group) {
    const std::optional<int> unused = unused_index(view, group.width);
    int last = -1;
    bool ended = row >= view.rows;
    for (int slot = 0; slot < view.keep; ++slot) {
      const int index = index_at(view, group.first_slot + slot, r);
      const float value = value_at(view, group.first_slot + slot, r);
      ended = ended || index >= group.width;
      const bool right = ended
                             ? index == unused.value_or(slot) && std::bit_cast<uint32_t>(value) == 0
                             : index > last;
      WEFT_CHECK(right,
                 "packed matrix: row {}, columns {} to {}: index {} of slot {} is out of order, or "
                 "marks no unused slot of value zero",
                 row, window.col + group.at, window.col + group.at + group.width - 1, index, slot);
      if (!ended) kept |= uint64_t{1} << (group.at + index);
      last = index;
    }
  });
  return kept;
}

}  // namespace

int stream_index_bits(int group, bool full) {
  const int largest = full ? group - 1 : group;
  return largest < 2 ? 1 : largest < 4 ? 2 : largest < 16 ? 4 : 8;
}

PackHeader stream_header(int64_t rows, int64_t depth, const Pattern& pattern, Precision value_type,
                         int64_t segment) {
  PackHeader h;
  h.layout = PackLayout::kStream;
  h.value_type = value_type;
  h.index_bits = static_cast<uint8_t>(stream_index_bits(pattern.group(), true));
  h.full = 1;
  h.keep = static_cast<uint8_t>(pattern.keep());
  h.group = static_cast<uint8_t>(pattern.group());
  h.share = static_cast<uint8_t>(pattern.share());
  h.rows = rows;
  h.depth = depth;
  h.segment = segment == 0 ? depth : segment;
  // What does not divide is left for sections_of() to name.
  const bool divides = depth == 0 || (h.segment > 0 && depth % h.segment == 0);
  const int64_t blocks = rows / kStreamRows + (rows % kStreamRows != 0);
  WEFT_CHECK(!__builtin_mul_overflow(blocks, divides ? group_count(h) : 0, &h.entries) &&
                 !__builtin_mul_overflow(h.entries, int64_t{h.keep} * kStreamRows, &h.entries),
             "a packed matrix of {} x {} overflows", rows, depth);
  return h;
}

PackedMatrix pack_stream(MatrixView<const float> w, const Mask& mask, const Pattern& pattern,
                         Precision value_type, int64_t segment) {
  WEFT_CHECK(w.rows == mask.rows() && w.cols == mask.cols(),
             "weights of {} x {} with a mask of {} x {}", w.rows, w.cols, mask.rows(), mask.cols());
  PackHeader header = stream_header(w.rows, w.cols, pattern, value_type, segment);
  sections_of(header);  // throws what is impossible, before the mask is looked at
  require_groups(mask, pattern, header.segment);
  require_sharing(mask, pattern);
  const bool full = every_group_is_full(mask, pattern, header.segment);
  header.index_bits = static_cast<uint8_t>(stream_index_bits(pattern.group(), full));
  header.full = full ? 1 : 0;
  PackedMatrix packed = PackedMatrix::allocate(header, {});
  const StreamPacker packer(w, packed);
  if (w.cols == 0) return packed;
  parallel_for(packed.stream().blocks, [&](int64_t block) { packer.fill_block(block, mask, 0); });
  return packed;
}

PackedMatrix pack_stream_by_magnitude(MatrixView<const float> w, const Pattern& pattern,
                                      Precision value_type, int64_t segment) {
  PackedMatrix packed =
      PackedMatrix::allocate(stream_header(w.rows, w.cols, pattern, value_type, segment), {});
  const StreamPacker packer(w, packed);
  if (w.cols == 0) return packed;
  // Whole blocks of the pattern and of the layout.
  const int64_t rows_per_item = std::lcm(int64_t{pattern.block()}, int64_t{kStreamRows});
  parallel_for((w.rows + rows_per_item - 1) / rows_per_item, [&](int64_t item) {
    const int64_t first = item * rows_per_item;
    const int64_t rows = std::min(rows_per_item, w.rows - first);
    const Mask mask = largest_of(w, first, rows, pattern, packed.header().segment);
    for (int64_t row = first; row < first + rows; row += kStreamRows) {
      packer.fill_block(row / kStreamRows, mask, first);
    }
  });
  return packed;
}

void check_stream_contents(const PackedMatrix& packed) {
  const StreamView view = packed.stream();
  // Without columns nothing is stored, however many rows there are.
  Mask mask(view.depth == 0 ? 0 : view.rows, view.depth);
  parallel_for(view.depth == 0 ? 0 : view.blocks, [&](int64_t block) {
    for_each_window(view, block, [&](const StreamWindow& window) {
      for (int r = 0; r < kStreamRows; ++r) {
        const uint64_t kept = checked_bits(view, window, block * kStreamRows + r, r);
        if (block * kStreamRows + r < view.rows) {
          mask.put_bits(block * kStreamRows + r, window.col, window.width, kept);
        }
      }
    });
  });
  require_sharing(mask, packed.pattern());
  const bool full = every_group_is_full(mask, packed.pattern(), view.segment);
  WEFT_CHECK(view.full == full && view.index_bits == stream_index_bits(view.group, full),
             "packed matrix: {} index bits and full {}, but its mask has {} and {}",
             view.index_bits, view.full, stream_index_bits(view.group, full), full);
}

}  // namespace weft
