#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/isa.h"
#include "weft/kernel/sparse.h"

namespace weft {

PackTile tile_for(double density, int share, int group) {
  (void)density;
  const char* w = std::getenv("TW");
  const char* k = std::getenv("TK");
  int width = w ? atoi(w) : (share == 1 ? 64 : share == 2 ? 32 : 16);
  int depth = k ? atoi(k) : 24576 / (width * 4);
  depth = std::max(group, depth / group * group);
  return {depth, width};
}

}  // namespace weft
