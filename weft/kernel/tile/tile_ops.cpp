#include "weft/kernel/tile/tile_ops.h"

#include <cassert>

namespace weft {

const TileOps& tile_ops(TileUnit unit) {
  assert(unit != TileUnit::kNone);
#if defined(__x86_64__)
  if (unit == TileUnit::kAmx) return kAmxTiles;
  if (unit == TileUnit::kAvx512Bf16) return kAvx512Bf16Tiles;
#endif
  return kEmulatedTiles;
}

}  // namespace weft
