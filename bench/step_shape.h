// What `weft bench step` trains: a transformer block, or a residual network.
#pragma once

#include <cstdint>
#include <variant>

namespace weft::bench {

struct BlockShape {
  int64_t tokens = 2048;
  int64_t width = 768;
  int64_t hidden = 3072;
  int64_t context = 256;  // divides tokens
  int64_t heads = 12;
};

// ResNet-18 for small images: all of its widths follow from the first.
struct ResnetShape {
  int64_t images = 32;
  int64_t size = 32;  // height and width of an image
  int64_t width = 64;
};

using StepShape = std::variant<BlockShape, ResnetShape>;

}  // namespace weft::bench
