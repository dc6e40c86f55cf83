// Gradients, sampled while they are packed.
//
// An item is 128 cells and all tokens, in tiles that stay in the cache. KeptSample has what a tile
// keeps slot by slot, all cells side by side; a pack has it cell by cell. As every group is full, a
// cell goes on where the last tile left it.
#include <algorithm>
#include <utility>

#include "weft/core/bf16.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/estimate/kept_sample.h"
#include "weft/pack/pack.h"
#include "weft/pack/panel_layout.h"
#include "weft/pack/place_slots.h"
#include "weft/pack/sections.h"

namespace weft {
namespace {

class SampledPacker : public PanelLayout {
 public:
  SampledPacker(const PackHeader& header, const Gradient& g, const SampleOptions& options)
      : PanelLayout(header), g_(g), options_(options), chunk_(tile_tokens(header)) {}

  // Every group is full, so only those that span two panels must be sampled to know
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
        count_across(item, image, first, tokens, scratch);
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
    Cells to;
    to.first = item_begin(item);
    to.offsets = reinterpret_cast<uint16_t*>(packed.mutable_bytes().data() + parts.indices);
    to.values = reinterpret_cast<float*>(packed.mutable_bytes().data() + parts.values);
    to.next.resize(static_cast<size_t>(item_end(item) - to.first));
    to.panels.resize(to.next.size(), -1);
    AlignedBuffer<float> transposed;
    KeptSample sample(options_.pattern, std::min(chunk_, g_.positions), outs_of(item));
    for (int64_t image = 0; image < g_.images; ++image) {
      for (int64_t first = 0; first < g_.positions; first += chunk_) {
        const int64_t tokens = std::min(chunk_, g_.positions - first);
        sample.draw(tile(item, image, first, tokens, transposed), options_at(item, image, first),
                    tile_after(item, image, first));
        place(image * g_.positions + first, tokens, sample, to);
      }
    }
  }

 private:
  // Where the cells of an item go on: next[c], in panels[c].
  struct Cells {
    int64_t first;
    uint16_t* offsets;
    float* values;
    std::vector<uint32_t> next;
    std::vector<int64_t> panels;
  };

  struct Scratch {
    AlignedBuffer<float> scales;
    AlignedBuffer<float> transposed;
  };

  // Whole draws of random numbers, of 4 groups. With AVX2 (AMD Zen 3) and 64 cells, ns per entry
  // with 8, 16, 32 groups: 2:4 2.40, 2.39, 2.45; 1:4 1.76, 1.59, 1.58; 2:4x2 2.10, 2.03, 2.46. More
  // tokens write more of a cell at once, until tiles no longer fit the cache.
  static int64_t tile_tokens(const PackHeader& header) {
    return int64_t{header.group} * (std::clamp(128 / header.group, 4, 16) / 4 * 4);
  }

  // Where cell c goes on in a panel.
  uint32_t& enter(int64_t c, int64_t panel, Cells& to) const {
    uint32_t& next = to.next[static_cast<size_t>(c)];
    int64_t& in_panel = to.panels[static_cast<size_t>(c)];
    if (in_panel != panel) next = starts_[static_cast<size_t>(panel * cells_ + to.first + c)];
    in_panel = panel;
    return next;
  }

  // What the tokens from `depth` on keep.
  void place(int64_t depth, int64_t tokens, const KeptSample& sample, Cells& to) const {
    int64_t slot = 0;
    for (int64_t t = 0; t < tokens;) {
      const int64_t panel = (depth + t) / header_.tile_depth;
      int64_t count = std::min(tokens - t, panel_end(panel) - depth - t);
      if (t + count < tokens) count -= count % header_.group;
      const bool whole = count > 0;
      if (!whole) count = std::min<int64_t>(header_.group, tokens - t);
      const int64_t end = slot + count / header_.group * header_.keep +
                          std::min<int64_t>(header_.keep, count % header_.group);
      whole ? place_groups(depth, panel, slot, end, sample, to)
            : place_across(depth, slot, end, sample, to);
      t += count;
      slot = end;
    }
  }

  // Slots that are all in one panel.
  void place_groups(int64_t depth, int64_t panel, int64_t slot, int64_t end,
                    const KeptSample& sample, Cells& to) const {
    PlaceJob job;
    job.cells = sample.cells();
    job.slots = end - slot;
    job.share = header_.share;
    job.stride = sample.stride();
    job.values = sample.values() + slot * job.share * job.stride;
    job.indices = sample.indices() + slot * job.stride;
    job.line = static_cast<int32_t>(header_.tile_width * 4);
    job.base = static_cast<int32_t>(depth - panel_begin(panel)) * job.line;
    for (int64_t c = 0; c < job.cells; ++c) enter(c, panel, to);
    job.next = to.next.data();
    job.offsets = to.offsets;
    job.to = to.values;
    place_slots(job);
    for (int64_t c = 0; c < job.cells; ++c) {
      to.next[static_cast<size_t>(c)] += static_cast<uint32_t>(job.slots);
    }
  }

  // Slots of a group that spans more than one.
  void place_across(int64_t depth, int64_t slot, int64_t end, const KeptSample& sample,
                    Cells& to) const {
    const int64_t stride = sample.stride(), share = header_.share;
    for (int64_t c = 0; c < sample.cells(); ++c) {
      for (int64_t s = slot; s < end; ++s) {
        const int64_t at = depth + sample.indices()[s * stride + c];
        uint32_t& next = enter(c, at / header_.tile_depth, to);
        to.offsets[next] = static_cast<uint16_t>(at % header_.tile_depth * header_.tile_width * 4);
        for (int64_t m = 0; m < share; ++m) {
          to.values[next * share + m] = sample.values()[(s * share + m) * stride + c];
        }
        ++next;
      }
    }
  }

  int64_t first_out_of(int64_t item) const { return members(item_begin(item)).first_row; }
  int64_t outs_of(int64_t item) const {
    return std::min(header_.rows - first_out_of(item), cells_per_item() * header_.share);
  }

  SampleOptions options_at(int64_t item, int64_t image, int64_t first) const {
    const int64_t groups_per_image = (g_.positions + header_.group - 1) / header_.group;
    SampleOptions here = options_;
    here.first_cell += item_begin(item);
    here.first_group += image * groups_per_image + first / header_.group;
    return here;
  }

  // Adds what a group in more than one panel keeps in each.
  void count_across(int64_t item, int64_t image, int64_t first, int64_t tokens, Scratch& scratch) {
    const int64_t cells = sampled_cells(outs_of(item), options_.pattern);
    scratch.scales.reserve(static_cast<size_t>(tokens * cells));
    const MatrixView<float> scales(scratch.scales.data(), tokens, cells);
    sample_cells(tile(item, image, first, tokens, scratch.transposed),
                 options_at(item, image, first), scales);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t panel = (image * g_.positions + first + t) / header_.tile_depth;
      uint32_t* counts = starts_.data() + panel * cells_ + item_begin(item);
      for (int64_t c = 0; c < cells; ++c) counts[c] += scales.row(t)[c] != 0 ? 1 : 0;
    }
  }

  // [tokens, outs] of the gradient; copied if it is stored transposed.
  MatrixView<const float> tile(int64_t item, int64_t image, int64_t first_token, int64_t tokens,
                               AlignedBuffer<float>& transposed) const {
    const int64_t outs = outs_of(item);
    const float* from = g_.data + image * g_.image_step + first_token * g_.position_step +
                        first_out_of(item) * g_.out_step;
    if (g_.out_step == 1) return {from, tokens, outs, std::max(outs, g_.position_step)};
    const int64_t stride = outs + 4;  // no power of two
    transposed.reserve(static_cast<size_t>(tokens * stride));
    for (int64_t o = 0; o < outs; ++o) {
      for (int64_t t = 0; t < tokens; ++t) {
        transposed.data()[t * stride + o] = from[o * g_.out_step + t * g_.position_step];
      }
    }
    return {transposed.data(), tokens, outs, stride};
  }

  // What the tile after this one will read of the image; nothing for a gradient that is transposed.
  MatrixView<const float> tile_after(int64_t item, int64_t image, int64_t first_token) const {
    const int64_t next = first_token + chunk_;
    if (g_.out_step != 1 || next >= g_.positions) return {};
    AlignedBuffer<float> none;
    return tile(item, image, next, std::min(chunk_, g_.positions - next), none);
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
  WEFT_CHECK(g.out_step > 1 || (g.out_step == 1 && (g.position_step >= g.outs || g.positions <= 1)),
             "a gradient of {} outputs, {} elements apart, and positions {} apart: they overlap",
             g.outs, g.out_step, g.position_step);
}

std::span<float> values_of(PackedMatrix& packed) {
  const PackSections parts = sections_of(packed.header());
  return {reinterpret_cast<float*>(packed.mutable_bytes().data() + parts.values),
          (parts.values_end - parts.values) / sizeof(float)};
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
    WEFT_CHECK(one.layout() == PackLayout::kPanel && one.value_type() == Precision::kFp32,
               "only panel packs of floats are rounded to {}", fp8_name(format));
    maximum = std::max(maximum, finite_maximum(values_of(one)));
  }
  const float scale = fp8_scale(maximum, format);
  for (PackedMatrix& one : packed) round_to_fp8(values_of(one), format, scale, values_of(one));
}

namespace {

void round_values(std::span<float> values) {
  constexpr int64_t kAtOnce = 1 << 16;
  const auto size = static_cast<int64_t>(values.size());
  parallel_for((size + kAtOnce - 1) / kAtOnce, [&](int64_t part) {
    const int64_t end = std::min(size, (part + 1) * kAtOnce);
    for (int64_t i = part * kAtOnce; i < end; ++i) {
      values[static_cast<size_t>(i)] = to_float(to_bf16(values[static_cast<size_t>(i)]));
    }
  });
}

}  // namespace

void round_packed_to_bf16(std::span<PackedMatrix> packed) {
  for (PackedMatrix& one : packed) {
    WEFT_CHECK(one.layout() == PackLayout::kPanel && one.value_type() == Precision::kFp32 &&
                   !one.ordered(),
               "only panel packs of floats without a row order are rounded to bf16");
    round_values(values_of(one));
  }
}

}  // namespace weft
