// Weights + Mask -> PackedMatrix, and back.
//
//   pack_panels(w, mask, {pattern, tile})             A = W:  rows = outs, depth = ins
//   pack_panels_transposed(w, mask, {pattern, tile})  A = Wᵀ: rows = ins,  depth = outs
//   pack_panels_sampled(g, {pattern, ...}, tile)      A = Gᵀ: rows = outs, depth = tokens
//
// The transpose of a mask that is N:M along inputs only is ragged: say so (`ragged = true`). What
// is said to be N:M, or shared, is checked. No transpose of the weights is ever made: cost is one
// pass over the mask and one over the weights.
//
// `reuse`, the pack of an earlier step, lends its memory.
//
// With `row_order` place p of the pack holds row order[p], and it is places that share. Products
// and unpack() undo it.
//
// The weights of a convolution, [outs, ins, taps], are packed as stored: as a matrix of ins * taps
// columns, or
//
//   pack_filters_transposed(w, mask, shape, taps, ..)  A = rows = ins, depth = outs * taps
//
// Their groups are consecutive inputs at one tap, which are not adjacent in depth: say `ragged`,
// and see require_tap_groups (group_check.h). In files they are in order of tap (tap_major), and
// `segment` is then the number of channels.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/weight_shape.h"
#include "weft/estimate/fp8.h"
#include "weft/estimate/mvue.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

struct PanelOptions {
  Pattern pattern;
  PackTile tile;
  Precision value_type = Precision::kFp32;
  bool ragged = false;
  int64_t segment = 0;  // 0: the whole depth
  // Of pack_panels only; empty: not permuted. Read while packing.
  std::span<const int64_t> row_order = {};
  // Values in fp32, but rounded to bf16 as they are packed: for products of bf16 operands in fp32
  // arithmetic, which would expand values of bf16 again and again.
  bool rounded = false;
};

// w, mask: [rows, depth]
PackedMatrix pack_panels(MatrixView<const float> w, const Mask& mask, const PanelOptions& options,
                         PackedMatrix reuse = {});
// w, mask: [depth, rows]
PackedMatrix pack_panels_transposed(MatrixView<const float> w, const Mask& mask,
                                    const PanelOptions& options, PackedMatrix reuse = {});
// weights, mask: [outs, ins * taps], of which `taps` are packed: depth out * taps.size() + i is
// tap taps[i] of output `out`.
PackedMatrix pack_filters_transposed(const float* weights, const Mask& mask,
                                     const WeightShape& shape, std::span<const int64_t> taps,
                                     const PanelOptions& options, PackedMatrix reuse = {});
// The mask of that: [ins, outs * taps.size()].
Mask filters_transposed(const Mask& mask, const WeightShape& shape, std::span<const int64_t> taps);
// Keeps the `keep` largest of each group (of the sums of a cell), a few rows at a time: the weights
// are read once.
PackedMatrix pack_panels_by_magnitude(MatrixView<const float> w, const PanelOptions& options,
                                      PackedMatrix reuse = {});

// A gradient of any layout: element (image, position, out) at
// data[image * image_step + position * position_step + out * out_step]. Its tokens are the
// positions of one image after the other; groups of tokens restart with every image.
struct Gradient {
  const float* data = nullptr;
  int64_t images = 1;
  int64_t positions = 0;
  int64_t outs = 0;
  int64_t image_step = 0;
  int64_t position_step = 0;
  int64_t out_step = 1;

  int64_t tokens() const { return images * positions; }
};

// The pack of Gᵀ [outs, tokens], sampled as estimate/mvue.h says: the bytes of
// pack_panels_transposed(g * scales, scales ≠ 0), without g * scales ever being there. An entry is
// kept where its scale is not zero, so every group is full, though a kept value may be zero. The
// token group of position p of an image is options.first_group + image * ceil(positions / group) +
// p / group.
//
// With `rounding` the kept values are rounded to FP8, with a scale from their maximum.
//
// Cost: one pass over g, and a second look at groups that span two panels (none if
// panels hold whole groups, as tile_for sees to, and so do images); beside the pack a tile per
// thread.
PackedMatrix pack_gradient_sampled(const Gradient& g, const SampleOptions& options, PackTile tile,
                                   std::optional<Fp8> rounding = {}, PackedMatrix reuse = {});
// The same of g: [tokens, outs].
PackedMatrix pack_panels_sampled(MatrixView<const float> g, const SampleOptions& options,
                                 PackTile tile, std::optional<Fp8> rounding = {},
                                 PackedMatrix reuse = {});
// Rounds the values of panel packs of floats, with one scale for all of them.
void round_packed_to_fp8(std::span<PackedMatrix> packed, Fp8 format);
// Rounds the values of panel packs of floats to the nearest that bf16 has: the bytes of the same
// pack with PanelOptions::rounded. A gradient is sampled in fp32 first, so what is kept is unbiased
// but for this rounding.
void round_packed_to_bf16(std::span<PackedMatrix> packed);

// w, mask: [rows, depth]
PackedMatrix pack_stream(MatrixView<const float> w, const Mask& mask, const Pattern& pattern,
                         Precision value_type, int64_t segment = 0);
PackedMatrix pack_stream_by_magnitude(MatrixView<const float> w, const Pattern& pattern,
                                      Precision value_type, int64_t segment = 0);

struct Unpacked {
  std::vector<float> values;  // [rows, depth], zero outside the mask
  Mask mask;
};
Unpacked unpack(const PackedMatrix& packed);

// [outs, ins, taps] -> [outs, taps, ins], so that the inputs of one tap are adjacent.
struct TapMajor {
  std::vector<float> weights;  // [outs, taps * ins]
  Mask mask;
};
TapMajor tap_major(const float* weights, const Mask& mask, const WeightShape& shape);
Mask tap_major(const Mask& mask, const WeightShape& shape);

// [outs, taps, ins] -> [outs, ins, taps]: back again.
std::vector<float> tensor_order(const std::vector<float>& weights, const WeightShape& shape);
Mask tensor_order(const Mask& mask, const WeightShape& shape);

}  // namespace weft
