// Gradients, sampled while they are packed.
//
// An item is 64 cells and all tokens, in pieces that stay in the cache: sample_cells finds the
// scales of a piece, and what they keep is moved to the front of each cell, one cell beside the
// other, by stores that are always made but advance only behind what is kept.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/pack/pack.h"
#include "weft/pack/panel_layout.h"
#include "weft/pack/sections.h"

namespace weft {
namespace {

// Tokens of one panel and the outputs of one item.
struct Piece {
  int64_t panel;
  int64_t first_depth;             // in the panel
  MatrixView<const float> g;       // [tokens, outs]
  MatrixView<const float> scales;  // [tokens, cells]
};

// 1 or 0, without a jump that nobody could predict: scales are positive or zero.
uint32_t is_kept(float scale) { return (std::bit_cast<uint32_t>(scale) + 0x7fffffff) >> 31; }

constexpr int64_t kItemCells = PanelLayout::kItemCells;

// What a piece keeps, cell by cell. There is room for one more in each, which is not kept.
//
// Without sharing an entry is one number, its offset above the bits of its value: one store, not
// two.
struct Compacted {
  Compacted(int64_t cells, int64_t tokens, int64_t share)
      : stride(tokens + 1), counts(static_cast<size_t>(cells)) {
    const auto slots = static_cast<size_t>(cells * stride);
    if (share == 1) {
      entries.reserve(slots);
    } else {
      offsets.reserve(slots);
      values.reserve(slots * static_cast<size_t>(share));
    }
  }

  int64_t stride;
  std::vector<uint32_t> counts;
  AlignedBuffer<uint64_t> entries;  // [cells, stride], without sharing
  AlignedBuffer<uint16_t> offsets;  // [cells, stride], with sharing
  AlignedBuffer<float> values;      // [cells, stride, share], with sharing
};

// Of one token: the bits of what is stored, and -1 where it is kept. Both are made by vectors.
struct Token {
  alignas(kCacheLine) uint32_t values[kItemCells];
  alignas(kCacheLine) int32_t steps[kItemCells];

  void set(const float* __restrict g, const float* __restrict scales, int64_t cells) {
    for (int64_t c = 0; c < cells; ++c) {
      values[c] = std::bit_cast<uint32_t>(g[c] * scales[c]);
      steps[c] = -static_cast<int32_t>(is_kept(scales[c]));
    }
  }
};

// kTokens of up to kItemCells cells, the first at `offset`, the next ones a line further each. Four
// tokens look up the count of a cell once. Not inlined: among all else the loop would not have its
// variables in registers, and take twice the time.
template <int kTokens>
[[gnu::noinline]] void append_kept(MatrixView<const float> g, MatrixView<const float> scales,
                                   uint64_t offset, uint64_t line, Compacted& found) {
  Token tokens[kTokens];
  for (int t = 0; t < kTokens; ++t) tokens[t].set(g.row(t), scales.row(t), scales.cols);
  uint32_t* __restrict counts = found.counts.data();
  uint64_t* __restrict entries = found.entries.data();
  const int64_t stride = found.stride;
  for (int64_t c = 0; c < scales.cols; ++c, entries += stride) {
    uint32_t at = counts[c];
    for (int t = 0; t < kTokens; ++t) {
      entries[at] = tokens[t].values[c] | (offset + static_cast<uint64_t>(t) * line) << 32;
      at -= static_cast<uint32_t>(tokens[t].steps[c]);
    }
    counts[c] = at;
  }
}

class SampledPacker : public PanelLayout {
 public:
  SampledPacker(const PackHeader& header, const Gradient& g, const SampleOptions& options)
      : PanelLayout(header),
        g_(g),
        options_(options),
        // Whole draws of random numbers, and 32 tokens or more: with their scales they fit L1.
        chunk_(4 * header.group * std::max(1, 8 / header.group)) {}

  // Every group is full, so only those that lie across the end of a panel must be sampled to know
  // what is in each.
  void count(int64_t item) {
    const int64_t cells = sampled_cells(outs_of(item), options_.pattern);
    std::vector<uint32_t> full(static_cast<size_t>(panels_));
    Scratch scratch;
    for (int64_t depth = 0; depth < header_.depth;) {
      const int64_t image = depth / g_.positions, first = depth % g_.positions;
      const int64_t tokens = std::min<int64_t>(header_.group, g_.positions - first);
      const int64_t panel = depth / header_.tile_depth;
      if (depth + tokens <= panel_end(panel)) {
        full[static_cast<size_t>(panel)] +=
            static_cast<uint32_t>(std::min<int64_t>(header_.keep, tokens));
      } else {
        sample(item, image, first, tokens, scratch, [&](const Piece& piece) {
          uint32_t* counts = starts_.data() + piece.panel * cells_ + item_begin(item);
          for (int64_t t = 0; t < piece.scales.rows; ++t) {
            for (int64_t c = 0; c < cells; ++c) counts[c] += is_kept(piece.scales.row(t)[c]);
          }
        });
      }
      depth += tokens;
    }
    for (int64_t p = 0; p < panels_; ++p) {
      uint32_t* counts = starts_.data() + p * cells_ + item_begin(item);
      for (int64_t c = 0; c < cells; ++c) counts[c] += full[static_cast<size_t>(p)];
    }
  }

  void fill(int64_t item, PackedMatrix& packed) const {
    const PackSections parts = sections_of(header_);
    auto* offsets = reinterpret_cast<uint16_t*>(packed.mutable_bytes().data() + parts.indices);
    auto* values = reinterpret_cast<float*>(packed.mutable_bytes().data() + parts.values);
    Compacted found(cells_per_item(), chunk_, header_.share);
    std::vector<uint32_t> next(static_cast<size_t>(cells_per_item()));
    int64_t panel = -1;
    for_each_piece(item, [&](const Piece& piece) {
      if (piece.panel != panel) {
        panel = piece.panel;
        std::copy_n(starts_.begin() + panel * cells_ + item_begin(item),
                    item_end(item) - item_begin(item), next.begin());
      }
      header_.share == 1 ? compact(piece, found) : compact_shared(piece, item, found);
      for (int64_t c = 0; c < piece.scales.cols; ++c) {
        uint32_t& to = next[static_cast<size_t>(c)];
        copy_out(found, c, offsets + to, values + int64_t{to} * header_.share);
        to += found.counts[static_cast<size_t>(c)];
      }
    });
  }

 private:
  uint16_t offset_of(const Piece& piece, int64_t t) const {
    return static_cast<uint16_t>((piece.first_depth + t) * header_.tile_width * 4);
  }

  // share == 1
  void compact(const Piece& piece, Compacted& found) const {
    std::fill(found.counts.begin(), found.counts.end(), 0);
    const uint64_t line = uint64_t{header_.tile_width} * 4;
    const int64_t rows = piece.scales.rows;
    for (int64_t t = 0; t < rows;) {
      const int64_t count = rows - t >= 4 ? 4 : 1;
      const auto append = count == 4 ? append_kept<4> : append_kept<1>;
      append(piece.g.rows_from(t, count), piece.scales.rows_from(t, count), offset_of(piece, t),
             line, found);
      t += count;
    }
  }

  void compact_shared(const Piece& piece, int64_t item, Compacted& found) const {
    const int64_t first_row = first_out_of(item), share = header_.share;
    for (int64_t c = 0; c < piece.scales.cols; ++c) {
      const Members rows = members(item_begin(item) + c);
      uint16_t* const offsets = found.offsets.data() + c * found.stride;
      float* const values = found.values.data() + c * found.stride * share;
      uint32_t at = 0;
      for (int64_t t = 0; t < piece.scales.rows; ++t) {
        const float scale = piece.scales.row(t)[c];
        const float* g = piece.g.row(t) + rows.first_row - first_row;
        float* value = values + at * share;
        offsets[at] = offset_of(piece, t);
        for (int64_t m = 0; m < rows.count; ++m) value[m] = g[m * rows.stride] * scale;
        // Past the last row there is nothing.
        for (int64_t m = rows.count; m < share; ++m) value[m] = 0.0f;
        at += is_kept(scale);
      }
      found.counts[static_cast<size_t>(c)] = at;
    }
  }

  void copy_out(const Compacted& found, int64_t cell, uint16_t* offsets, float* values) const {
    const auto count = static_cast<size_t>(found.counts[static_cast<size_t>(cell)]);
    if (header_.share > 1) {
      std::memcpy(offsets, found.offsets.data() + cell * found.stride, count * sizeof(uint16_t));
      std::memcpy(values, found.values.data() + cell * found.stride * header_.share,
                  count * header_.share * sizeof(float));
      return;
    }
    const uint64_t* entries = found.entries.data() + cell * found.stride;
    for (size_t i = 0; i < count; ++i) {
      values[i] = std::bit_cast<float>(static_cast<uint32_t>(entries[i]));
      offsets[i] = static_cast<uint16_t>(entries[i] >> 32);
    }
  }

  struct Scratch {
    AlignedBuffer<float> scales;
    AlignedBuffer<float> turned;
  };

  int64_t first_out_of(int64_t item) const { return members(item_begin(item)).first_row; }
  int64_t outs_of(int64_t item) const {
    return std::min(header_.rows - first_out_of(item), cells_per_item() * header_.share);
  }

  // Calls body(piece) in order of depth.
  template <typename Body>
  void for_each_piece(int64_t item, Body body) const {
    Scratch scratch;
    for (int64_t image = 0; image < g_.images; ++image) {
      for (int64_t first = 0; first < g_.positions; first += chunk_) {
        sample(item, image, first, std::min(chunk_, g_.positions - first), scratch, body);
      }
    }
  }

  // Calls body(piece) for whole groups of an image, panel by panel.
  template <typename Body>
  void sample(int64_t item, int64_t image, int64_t first, int64_t tokens, Scratch& scratch,
              Body body) const {
    const int64_t outs = outs_of(item), cells = sampled_cells(outs, options_.pattern);
    const int64_t groups_per_image = (g_.positions + header_.group - 1) / header_.group;
    SampleOptions here = options_;
    here.first_cell += item_begin(item);
    here.first_group += image * groups_per_image + first / header_.group;
    const auto g = tile(image, first, tokens, first_out_of(item), outs, scratch.turned);
    scratch.scales.reserve(static_cast<size_t>(tokens * cells));
    const MatrixView<float> scales(scratch.scales.data(), tokens, cells);
    sample_cells(g, here, scales);
    split(image * g_.positions + first, g, scales, body);
  }

  // [tokens, outs] of the gradient; copied if it lies the other way round.
  MatrixView<const float> tile(int64_t image, int64_t first_token, int64_t tokens,
                               int64_t first_out, int64_t outs,
                               AlignedBuffer<float>& turned) const {
    const float* from =
        g_.data + image * g_.image_step + first_token * g_.position_step + first_out * g_.out_step;
    if (g_.out_step == 1) return {from, tokens, outs, std::max(outs, g_.position_step)};
    const int64_t stride = outs + 4;  // no power of two
    turned.reserve(static_cast<size_t>(tokens * stride));
    for (int64_t o = 0; o < outs; ++o) {
      for (int64_t t = 0; t < tokens; ++t) {
        turned.data()[t * stride + o] = from[o * g_.out_step + t * g_.position_step];
      }
    }
    return {turned.data(), tokens, outs, stride};
  }

  // One piece for every panel that the tokens from `depth` on lie in.
  template <typename Body>
  void split(int64_t depth, MatrixView<const float> g, MatrixView<const float> scales,
             Body body) const {
    for (int64_t t = 0; t < g.rows;) {
      const int64_t panel = (depth + t) / header_.tile_depth;
      const int64_t count = std::min(g.rows - t, panel_end(panel) - depth - t);
      body(Piece{panel, depth + t - panel_begin(panel), g.rows_from(t, count),
                 scales.rows_from(t, count)});
      t += count;
    }
  }

  const Gradient& g_;
  const SampleOptions& options_;
  int64_t chunk_;  // tokens
};

void check_gradient(const Gradient& g, const SampleOptions& options) {
  int64_t tokens = 0;
  WEFT_CHECK(g.images >= 0 && g.positions >= 0 && g.outs >= 0 &&
                 !__builtin_mul_overflow(g.images, g.positions, &tokens),
             "a gradient of {} images, {} positions, {} outputs", g.images, g.positions, g.outs);
  check_sampling(options, tokens, g.outs);
  WEFT_CHECK(g.data != nullptr || tokens == 0 || g.outs == 0, "the gradient is null");
  WEFT_CHECK(g.out_step > 1 || (g.out_step == 1 && (g.position_step >= g.outs || tokens <= 1)),
             "a gradient of {} outputs, {} elements apart, and positions {} apart: they overlap",
             g.outs, g.out_step, g.position_step);
}

std::span<float> values_of(PackedMatrix& packed) {
  const PackSections parts = sections_of(packed.header());
  return {reinterpret_cast<float*>(packed.mutable_bytes().data() + parts.values),
          (parts.end - parts.values) / sizeof(float)};
}

}  // namespace

PackedMatrix pack_gradient_sampled(const Gradient& g, const SampleOptions& options, PackTile tile,
                                   std::optional<Fp8> rounding, PackedMatrix reuse) {
  check_gradient(g, options);
  PanelOptions panel{options.pattern, tile};
  panel.segment = g.images == 0 ? 0 : g.positions;
  SampledPacker packer(panel_header(g.outs, g.tokens(), panel), g, options);
  if (packer.has_whole_groups()) {
    packer.count_full();
  } else {
    parallel_for(packer.items(), [&](int64_t item) { packer.count(item); });
  }
  PackedMatrix packed = packer.allocate(std::move(reuse));
  parallel_for(packer.items(), [&](int64_t item) { packer.fill(item, packed); });
  if (rounding) round_packed_to_fp8({&packed, 1}, *rounding);
  return packed;
}

PackedMatrix pack_panels_sampled(MatrixView<const float> g, const SampleOptions& options,
                                 PackTile tile, std::optional<Fp8> rounding, PackedMatrix reuse) {
  Gradient whole;
  whole.data = g.data;
  whole.positions = g.rows;
  whole.outs = g.cols;
  whole.position_step = g.row_stride;
  return pack_gradient_sampled(whole, options, tile, rounding, std::move(reuse));
}

void round_packed_to_fp8(std::span<PackedMatrix> packed, Fp8 format) {
  float maximum = 0;
  for (PackedMatrix& one : packed) {
    WEFT_CHECK(one.layout() == PackLayout::kPanel && one.value_type() == ValueType::kF32,
               "only panel packs of floats are rounded to {}", fp8_name(format));
    maximum = std::max(maximum, finite_maximum(values_of(one)));
  }
  const float scale = fp8_scale(maximum, format);
  for (PackedMatrix& one : packed) round_to_fp8(values_of(one), format, scale, values_of(one));
}

}  // namespace weft
