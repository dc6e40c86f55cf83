#include "weft/data/glyph_strokes.h"

#include <array>
#include <cassert>

namespace weft {
namespace {

constexpr GlyphStroke line(double x0, double y0, double x1, double y1) {
  return {{x0, y0}, {(x0 + x1) / 2, (y0 + y1) / 2}, {x1, y1}};
}
constexpr GlyphStroke arc(double x0, double y0, double bend_x, double bend_y, double x1,
                          double y1) {
  return {{x0, y0}, {bend_x, bend_y}, {x1, y1}};
}

constexpr GlyphStroke kZero[] = {arc(3, 0, 6, 0, 6, 5), arc(6, 5, 6, 10, 3, 10),
                                 arc(3, 10, 0, 10, 0, 5), arc(0, 5, 0, 0, 3, 0)};
constexpr GlyphStroke kOne[] = {line(1, 2.5, 3, 0), line(3, 0, 3, 10)};
constexpr GlyphStroke kTwo[] = {arc(0, 3, 0, 0, 3, 0), arc(3, 0, 6, 0, 6, 3),
                                arc(6, 3, 6, 5, 0, 10), line(0, 10, 6, 10)};
constexpr GlyphStroke kThree[] = {arc(0, 1, 1, 0, 3, 0),     arc(3, 0, 6, 0, 6, 2.5),
                                  arc(6, 2.5, 6, 5, 2, 5),   arc(2, 5, 6, 5, 6, 7.5),
                                  arc(6, 7.5, 6, 10, 3, 10), arc(3, 10, 1, 10, 0, 9)};
constexpr GlyphStroke kFour[] = {line(4, 0, 0, 7), line(0, 7, 6, 7), line(4, 0, 4, 10)};
constexpr GlyphStroke kFive[] = {line(6, 0, 1, 0),          line(1, 0, 0.5, 4.5),
                                 arc(0.5, 4.5, 2, 4, 3, 4), arc(3, 4, 6, 4, 6, 7),
                                 arc(6, 7, 6, 10, 3, 10),   arc(3, 10, 1, 10, 0, 9)};
constexpr GlyphStroke kSix[] = {arc(5, 0, 0, 2, 0, 7), arc(0, 7, 0, 10, 3, 10),
                                arc(3, 10, 6, 10, 6, 7), arc(6, 7, 6, 4.5, 3, 4.5),
                                arc(3, 4.5, 0, 4.5, 0, 7)};
constexpr GlyphStroke kSeven[] = {line(0, 0, 6, 0), line(6, 0, 2, 10)};
constexpr GlyphStroke kEight[] = {arc(3, 0, 5.5, 0, 5.5, 2.5), arc(5.5, 2.5, 5.5, 5, 3, 5),
                                  arc(3, 5, 0.5, 5, 0.5, 2.5), arc(0.5, 2.5, 0.5, 0, 3, 0),
                                  arc(3, 5, 6, 5, 6, 7.5),     arc(6, 7.5, 6, 10, 3, 10),
                                  arc(3, 10, 0, 10, 0, 7.5),   arc(0, 7.5, 0, 5, 3, 5)};
constexpr GlyphStroke kNine[] = {arc(1, 10, 6, 8, 6, 3), arc(6, 3, 6, 0, 3, 0),
                                 arc(3, 0, 0, 0, 0, 3), arc(0, 3, 0, 5.5, 3, 5.5),
                                 arc(3, 5.5, 6, 5.5, 6, 3)};
constexpr GlyphStroke kA[] = {line(0, 10, 3, 0), line(3, 0, 6, 10), line(1.2, 6.5, 4.8, 6.5)};
constexpr GlyphStroke kB[] = {
    line(0, 0, 0, 10),           line(0, 0, 3, 0),  arc(3, 0, 5.5, 0, 5.5, 2.5),
    arc(5.5, 2.5, 5.5, 5, 3, 5), line(3, 5, 0, 5),  arc(3, 5, 6, 5, 6, 7.5),
    arc(6, 7.5, 6, 10, 3, 10),   line(3, 10, 0, 10)};
constexpr GlyphStroke kE[] = {line(0, 0, 0, 10), line(0, 0, 6, 0), line(0, 5, 5, 5),
                              line(0, 10, 6, 10)};
constexpr GlyphStroke kF[] = {line(0, 0, 0, 10), line(0, 0, 6, 0), line(0, 5, 5, 5)};
constexpr GlyphStroke kK[] = {line(0, 0, 0, 10), line(6, 0, 0, 6), line(2, 4.5, 6, 10)};
constexpr GlyphStroke kR[] = {line(0, 0, 0, 10),       line(0, 0, 3, 0), arc(3, 0, 6, 0, 6, 2.5),
                              arc(6, 2.5, 6, 5, 3, 5), line(3, 5, 0, 5), line(3, 5, 6, 10)};

constexpr std::array<std::span<const GlyphStroke>, kGlyphNames.size()> kGlyphs = {
    kZero, kOne, kTwo, kThree, kFour, kFive, kSix, kSeven, kEight, kNine, kA, kB, kE, kF, kK, kR};

}  // namespace

std::span<const GlyphStroke> glyph_strokes(int glyph_class) {
  assert(glyph_class >= 0 && static_cast<size_t>(glyph_class) < kGlyphs.size());
  return kGlyphs[static_cast<size_t>(glyph_class)];
}

}  // namespace weft
