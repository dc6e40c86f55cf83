// Pictures in two colours as PNG, for pages: a bit per pixel, the unset ones transparent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

struct Bitmap {
  int width = 0, height = 0;
  std::vector<bool> bits;  // [height, width]
};

// colour: 0xrrggbb, of the set pixels.
std::string png_of(const Bitmap& bitmap, uint32_t colour);
// "data:image/png;base64,..."
std::string data_uri(const std::string& png);

}  // namespace weft
