// The transformer block that `weft bench step` trains.
#pragma once

#include <cstdint>

namespace weft::bench {

struct BlockShape {
  int64_t tokens = 2048;
  int64_t width = 768;
  int64_t hidden = 3072;
  int64_t context = 256;  // divides tokens
  int64_t heads = 12;
};

}  // namespace weft::bench
