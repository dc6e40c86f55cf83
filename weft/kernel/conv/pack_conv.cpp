#include "weft/kernel/conv/pack_conv.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/transpose.h"
#include "weft/kernel/conv/phases.h"
#include "weft/kernel/operand_check.h"
#include "weft/pack/group_check.h"

namespace weft {
namespace {

// Rows [first, first + count) of a mask.
Mask mask_rows(const Mask& mask, int64_t first, int64_t count) {
  Mask part(count, mask.cols());
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < mask.cols(); c += 64) {
      const int width = static_cast<int>(std::min<int64_t>(64, mask.cols() - c));
      part.put_bits(r, c, width, mask.bits(first + r, c, width));
    }
  }
  return part;
}

// N:M along outputs, at every tap.
void require_groups_of_outs(const Mask& mask, const WeightShape& shape, const Pattern& pattern) {
  std::vector<int64_t> taps(static_cast<size_t>(shape.taps));
  std::iota(taps.begin(), taps.end(), int64_t{0});
  require_tap_groups(filters_transposed(mask, shape, taps), pattern, shape.taps);
}

SampleOptions of_channels(const SampleOptions& options, const ConvShape& shape, int64_t group) {
  SampleOptions part = options;
  part.first_cell += group * sampled_cells(shape.group_outs(), options.pattern);
  return part;
}

// Calls pack(weights of one group [group_outs, group_ins * taps], their mask, its pack) for each.
template <typename Pack>
void for_each_group(const float* weights, const Mask& mask, const ConvShape& shape, Pack pack) {
  const WeightShape whole = shape.weight_shape();
  WEFT_CHECK(mask.rows() == whole.outs && mask.cols() == whole.cols(),
             "a mask of {} x {} does not fit weights of {} x {}", mask.rows(), mask.cols(),
             whole.outs, whole.cols());
  check_data("the pointer to weights", weights, shape.w_size());
  if (shape.groups == 1) return pack(weights, mask, 0);
  for (int64_t g = 0; g < shape.groups; ++g) {
    const int64_t first = g * shape.group_outs();
    pack(weights + first * whole.cols(), mask_rows(mask, first, shape.group_outs()), g);
  }
}

}  // namespace

PackedConv pack_conv(const float* weights, const Mask& mask, const ConvShape& shape,
                     const PanelOptions& options, PackedConv reuse) {
  shape.check();
  WEFT_CHECK(options.row_order.empty() || shape.groups == 1,
             "a row order would mix the {} groups of channels", shape.groups);
  PackedConv packed = std::move(reuse);
  packed.resize(static_cast<size_t>(shape.groups));
  PanelOptions as_stored = options;
  as_stored.ragged = true;
  for_each_group(weights, mask, shape, [&](const float* w, const Mask& m, int64_t group) {
    if (!options.ragged) require_tap_groups(m, options.pattern, shape.taps());
    PackedMatrix& to = packed[static_cast<size_t>(group)];
    to = pack_panels({w, m.rows(), m.cols()}, m, as_stored, std::move(to));
  });
  return packed;
}

PackedConv pack_conv_transposed(const float* weights, const Mask& mask, const ConvShape& shape,
                                const PanelOptions& options, PackedConv reuse) {
  shape.check();
  const std::vector<ConvPhase> phases = backward_phases(shape);
  const WeightShape part{shape.group_outs(), shape.group_ins(), shape.taps()};
  PackedConv packed = std::move(reuse);
  packed.resize(phases.size() * static_cast<size_t>(shape.groups));
  PanelOptions as_stored = options;
  as_stored.ragged = true;
  for_each_group(weights, mask, shape, [&](const float* w, const Mask& m, int64_t group) {
    if (!options.ragged) require_groups_of_outs(m, part, options.pattern);
    for (size_t p = 0; p < phases.size(); ++p) {
      PackedMatrix& to = packed[p * static_cast<size_t>(shape.groups) + static_cast<size_t>(group)];
      to = pack_filters_transposed(w, m, part, phases[p].taps, as_stored, std::move(to));
    }
  });
  return packed;
}

PackedConv pack_conv_gradient(const float* g, const Mask& mask, const ConvShape& shape,
                              const PanelOptions& options) {
  shape.check();
  const int64_t positions = shape.positions(), tokens = shape.images * positions;
  WEFT_CHECK(mask.rows() == shape.outs && mask.cols() == tokens,
             "a mask of {} x {} for a gradient of {} channels and {} positions", mask.rows(),
             mask.cols(), shape.outs, tokens);
  check_data("g", g, shape.y_size());
  PanelOptions per_image = options;
  per_image.segment = std::min(positions, tokens);  // no images, no segments
  PackedConv packed;
  std::vector<float> rows(static_cast<size_t>(shape.group_outs() * tokens));
  for (int64_t group = 0; group < shape.groups; ++group) {
    const int64_t first = group * shape.group_outs();
    for (int64_t o = 0; o < shape.group_outs(); ++o) {
      for (int64_t image = 0; image < shape.images; ++image) {
        std::copy_n(g + (image * shape.outs + first + o) * positions, positions,
                    rows.data() + o * tokens + image * positions);
      }
    }
    packed.push_back(pack_panels(MatrixView<const float>(rows.data(), shape.group_outs(), tokens),
                                 mask_rows(mask, first, shape.group_outs()), per_image));
  }
  return packed;
}

PackedConv pack_conv_sampled(const float* g, const ConvShape& shape, const SampleOptions& options,
                             PackTile tile, std::optional<Fp8> rounding, PackedConv reuse) {
  shape.check();
  check_data("g", g, shape.y_size());
  PackedConv packed = std::move(reuse);
  packed.resize(static_cast<size_t>(shape.groups));
  for (int64_t group = 0; group < shape.groups; ++group) {
    Gradient part;
    part.data = g + group * shape.group_outs() * shape.positions();
    part.images = shape.images;
    part.positions = shape.positions();
    part.outs = shape.group_outs();
    part.image_step = shape.outs * shape.positions();
    part.position_step = 1;
    part.out_step = shape.positions();
    PackedMatrix& to = packed[static_cast<size_t>(group)];
    to = pack_gradient_sampled(part, of_channels(options, shape, group), tile, {}, std::move(to));
  }
  if (rounding) round_packed_to_fp8(packed, *rounding);
  return packed;
}

void sample_conv_scales(const float* g, const ConvShape& shape, const SampleOptions& options,
                        float* scales) {
  shape.check();
  check_data("g", g, shape.y_size());
  check_data("scales", scales, shape.y_size());
  check_sampling(options, shape.images * shape.positions(), shape.outs);
  const int64_t positions = shape.positions(), outs = shape.group_outs();
  const int64_t groups_per_image =
      (positions + options.pattern.group() - 1) / options.pattern.group();
  parallel_for(shape.images * shape.groups, [&](int64_t item) {
    const int64_t image = item / shape.groups;
    SampleOptions here = of_channels(options, shape, item % shape.groups);
    here.first_group += image * groups_per_image;
    const int64_t first = item * outs * positions;
    std::vector<float> g_transposed(static_cast<size_t>(outs * positions)),
        found(g_transposed.size());
    transpose({g + first, positions, outs, positions, g_transposed.data(), outs});
    sample_scales({g_transposed.data(), positions, outs}, here, {found.data(), positions, outs});
    transpose({found.data(), outs, positions, outs, scales + first, positions});
  });
}

}  // namespace weft
