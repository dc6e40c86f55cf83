// The characters of glyphs.h as strokes, each a quadratic Bézier curve (a line is one whose bend is
// its middle), in a box 6 wide and 10 high, y downwards:
//
//   p(t) = (1-t)² from + 2t(1-t) bend + t² to
#pragma once

#include <span>
#include <string_view>

namespace weft {

struct GlyphPoint {
  double x = 0;
  double y = 0;
};

struct GlyphStroke {
  GlyphPoint from;
  GlyphPoint bend;
  GlyphPoint to;
};

constexpr double kGlyphBoxWidth = 6;
constexpr double kGlyphBoxHeight = 10;

// Class c is the character kGlyphNames[c].
constexpr std::string_view kGlyphNames = "0123456789ABEFKR";

std::span<const GlyphStroke> glyph_strokes(int glyph_class);

}  // namespace weft
