// glyphs: a generated set of drawn characters, hard enough that training methods differ.
//
// The ten digits and A B E F K R, 1x28x28. An image is a pure function of (seed, split, index):
//
//   strokes (glyph_strokes.h) ─► wobble, a smooth random field ─► stretch, shear, turn, shift
//   ─► drawn with a pen of random width ─► contrast over a sloping background
//   ─► strokes of any grey across it ─► noise ─► bytes
//
// Only + - * / and square roots are used, each of which IEEE 754 rounds in one way: the same bytes
// on every machine, for any number of threads. Cost: some 35 µs per image and core.
#pragma once

#include <cstdint>
#include <span>

#include "weft/data/image_set.h"

namespace weft {

constexpr int64_t kGlyphSide = 28;

struct GlyphOptions {
  uint64_t seed = 1;
  int64_t train = 20000;  // images
  int64_t test = 5000;
};

ImageData make_glyphs(const GlyphOptions& options = {});

enum class Split : uint8_t { kTrain, kTest };

// Draws one image, [28, 28], and returns its class.
uint8_t draw_glyph(uint64_t seed, Split split, int64_t index, std::span<uint8_t> pixels);

}  // namespace weft
