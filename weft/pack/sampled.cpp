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

// What a piece keeps, cell by cell. There is room for one more in each, which is not kept.
struct Compacted {
  Compacted(int64_t cells, int64_t tokens, int64_t share)
      : share(share),
        stride(tokens + 1),
        counts(static_cast<size_t>(cells)),
        offsets(static_cast<size_t>(cells * stride)),
        values(static_cast<size_t>(cells * stride * share)) {}
  uint16_t* offsets_of(int64_t cell) { return offsets.data() + cell * stride; }
  float* values_of(int64_t cell) { return values.data() + cell * stride * share; }  // [.., share]

  int64_t share;
  int64_t stride;
  std::vector<uint32_t> counts;
  AlignedBuffer<uint16_t> offsets;
  AlignedBuffer<float> values;
};

// One token of all cells. Not inlined: among all else its loop would not have its variables in
// registers, and take twice the time.
[[gnu::noinline]] void append_kept(const float* __restrict g, const float* __restrict scales,
                                   int64_t cells, uint16_t offset, Compacted& found) {
  uint32_t* __restrict counts = found.counts.data();
  uint16_t* __restrict offsets = found.offsets.data();
  float* __restrict values = found.values.data();
  const int64_t stride = found.stride;
  for (int64_t c = 0; c < cells; ++c, offsets += stride, values += stride) {
    const uint32_t at = counts[c];
    offsets[at] = offset;
    values[at] = g[c] * scales[c];
    counts[c] = at + is_kept(scales[c]);
  }
}

class SampledPacker : public PanelLayout {
 public:
  SampledPacker(const PackHeader& header, const Gradient& g, const SampleOptions& options)
      : PanelLayout(header),
        g_(g),
        options_(options),
        // Whole draws of random numbers; of 2:4, 16 to 128 tokens at a time took the same time
        // within 5 %, more left the cache.
        chunk_(4 * header.group * std::max(1, 8 / header.group)) {}

  void count(int64_t item) {
    for_each_piece(item, [&](const Piece& piece) {
      uint32_t* counts = starts_.data() + piece.panel * cells_ + item_begin(item);
      for (int64_t t = 0; t < piece.scales.rows; ++t) {
        const float* scales = piece.scales.row(t);
        for (int64_t c = 0; c < piece.scales.cols; ++c) counts[c] += is_kept(scales[c]);
      }
    });
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
        const size_t count = found.counts[static_cast<size_t>(c)];
        uint32_t& to = next[static_cast<size_t>(c)];
        std::memcpy(offsets + to, found.offsets_of(c), count * sizeof(uint16_t));
        std::memcpy(values + int64_t{to} * header_.share, found.values_of(c),
                    count * header_.share * sizeof(float));
        to += static_cast<uint32_t>(count);
      }
    });
  }

 private:
  uint16_t offset_of(const Piece& piece, int64_t t) const {
    return static_cast<uint16_t>((piece.first_depth + t) * header_.tile_width * 4);
  }

  void compact(const Piece& piece, Compacted& found) const {
    std::fill(found.counts.begin(), found.counts.end(), 0);
    for (int64_t t = 0; t < piece.scales.rows; ++t) {
      append_kept(piece.g.row(t), piece.scales.row(t), piece.scales.cols, offset_of(piece, t),
                  found);
    }
  }

  void compact_shared(const Piece& piece, int64_t item, Compacted& found) const {
    std::fill(found.counts.begin(), found.counts.end(), 0);
    const int64_t first_row = members(item_begin(item)).first_row;
    for (int64_t c = 0; c < piece.scales.cols; ++c) {
      const Members rows = members(item_begin(item) + c);
      const int64_t first = rows.first_row - first_row;
      uint16_t* offset = found.offsets_of(c);
      float* value = found.values_of(c);
      for (int64_t t = 0; t < piece.scales.rows; ++t) {
        const float scale = piece.scales.row(t)[c];
        if (scale == 0.0f) continue;
        const float* g = piece.g.row(t) + first;
        *offset++ = offset_of(piece, t);
        for (int64_t m = 0; m < header_.share; ++m) {  // past the last row there is nothing
          *value++ = m < rows.count ? g[m * rows.stride] * scale : 0.0f;
        }
      }
      found.counts[static_cast<size_t>(c)] = static_cast<uint32_t>(offset - found.offsets_of(c));
    }
  }

  // Calls body(piece) in order of depth.
  template <typename Body>
  void for_each_piece(int64_t item, Body body) const {
    const int64_t first_out = members(item_begin(item)).first_row;
    const int64_t outs = std::min(header_.rows - first_out, cells_per_item() * header_.share);
    const int64_t cells = sampled_cells(outs, options_.pattern);
    AlignedBuffer<float> turned, scratch(static_cast<size_t>(chunk_ * cells));
    const int64_t groups_per_image = (g_.positions + header_.group - 1) / header_.group;
    SampleOptions here = options_;
    here.first_cell += item_begin(item);
    for (int64_t image = 0; image < g_.images; ++image) {
      for (int64_t first = 0; first < g_.positions; first += chunk_) {
        const int64_t tokens = std::min(chunk_, g_.positions - first);
        const auto g = tile(image, first, tokens, first_out, outs, turned);
        const MatrixView<float> scales(scratch.data(), tokens, cells);
        here.first_group = options_.first_group + image * groups_per_image + first / header_.group;
        sample_cells(g, here, scales);
        split(image * g_.positions + first, g, scales, body);
      }
    }
  }

  // [tokens, outs] of the gradient; copied if it lies the other way round.
  MatrixView<const float> tile(int64_t image, int64_t first_token, int64_t tokens,
                               int64_t first_out, int64_t outs, AlignedBuffer<float>& turned) const {
    const float* from = g_.data + image * g_.image_step + first_token * g_.position_step +
                        first_out * g_.out_step;
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
  WEFT_CHECK(g.out_step >= 1 && g.position_step >= 0 && g.image_step >= 0,
             "a gradient with steps of {}, {} and {}", g.image_step, g.position_step, g.out_step);
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
