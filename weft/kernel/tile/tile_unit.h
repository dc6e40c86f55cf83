// The unit that multiplies tiles of bf16 numbers and sums in fp32, if this CPU has one.
//
//   amx          Intel's AMX: 16 x 16 sums, 32 deep, in one instruction
//   avx512bf16   pairs of bf16 in AVX-512 vectors
//   emulated     the same numbers in plain C++, for tests and on request; slow
//   none         no such unit: bf16 operands are multiplied in fp32 arithmetic (kernels.h)
//
// The best that the CPU has and the system allows is taken; the state of AMX is asked for once,
// when it is first looked for. WEFT_TILES, or force_tile_unit, names another; one that is not there
// is an Error. A CPU held to less than AVX-512 (WEFT_ISA) has none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class TileUnit : uint8_t { kNone, kEmulated, kAvx512Bf16, kAmx };
std::string_view tile_unit_name(TileUnit unit);

TileUnit tile_unit();
// Why it is not better: "the CPU has no AMX", "the system refuses the state of AMX"; empty if it is
// the best there is.
std::string tile_unit_lacks();

// Those that run here, none and emulated included.
std::vector<TileUnit> available_tile_units();
void force_tile_unit(std::string_view name);
void restore_tile_unit();
void force_tile_unit_from_environment();  // WEFT_TILES

}  // namespace weft
