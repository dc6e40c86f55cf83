// AMX: tiles of 16 rows of 64 bytes.
#include <cstring>

#include "tests/emulator/float_bf16.h"
#include "tests/emulator/operation.h"

namespace weft::test {
namespace {

// Whole tiles, in palette 1: all that weft uses.
bool is_whole(const uint8_t* config) {
  bool right = config[0] == 1 && config[1] == 0;
  for (int i = 2; i < 16; ++i) right = right && config[i] == 0;
  for (int tile = 0; tile < 16; ++tile) {
    const auto bytes = element_at<uint16_t>(config + 16, tile);
    right = right && bytes == (tile < 8 ? 64 : 0) && config[48 + tile] == (tile < 8 ? 16 : 0);
  }
  return right;
}

// TDPBF16PS. As the manual has it: even and odd products are summed apart.
void multiply(uint8_t (&c)[16][64], const uint8_t (&a)[16][64], const uint8_t (&b)[16][64]) {
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      float even = 0, odd = 0;
      for (int k = 0; k < 16; ++k) {
        even += bf16_at(a[m], 2 * k) * bf16_at(b[k], 2 * n);
        odd += bf16_at(a[m], 2 * k + 1) * bf16_at(b[k], 2 * n + 1);
      }
      const float sum = flushed(element_at<float>(c[m], n) + flushed(even + odd));
      std::memcpy(&c[m][4 * n], &sum, 4);
    }
  }
}

bool move_tile(const Instruction& in, MachineState& state) {
  if (!in.memory || (in.prefix != 2 && in.prefix != 3)) return false;
  for (int row = 0; row < 16; ++row) {
    const int64_t address = in.base_address(state) + in.scaled_index(state) * row;
    auto* line = reinterpret_cast<uint8_t*>(address);
    uint8_t* tile = state.tiles[in.reg & 7][row];
    std::memcpy(in.prefix == 3 ? tile : line, in.prefix == 3 ? line : tile, 64);
  }
  return true;
}

}  // namespace

bool execute_tile(const Instruction& in, MachineState& state) {
  if (in.map != 2 || in.wide) return false;
  if (in.key() == 0x2'0'49) {
    if (in.memory && !is_whole(in.address(state))) return false;
    state.tiles_configured = in.memory ? 1 : 0;  // LDTILECFG, TILERELEASE
    return true;
  }
  if (state.tiles_configured == 0) return false;  // the CPU would refuse as well
  switch (in.key()) {
    case 0x2'3'49:  // TILEZERO
      if (in.memory) return false;
      std::memset(state.tiles[in.reg & 7], 0, sizeof(state.tiles[0]));
      return true;
    case 0x2'2'4b:  // TILESTORED
    case 0x2'3'4b:  // TILELOADD
      return move_tile(in, state);
    case 0x2'2'5c:  // TDPBF16PS
      if (in.memory) return false;
      multiply(state.tiles[in.reg & 7], state.tiles[in.rm & 7], state.tiles[in.third & 7]);
      return true;
    default: return false;
  }
}

}  // namespace weft::test
