#include "weft/kernel/tile/tile_unit.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "weft/core/error.h"
#include "weft/core/isa.h"
#include "weft/core/text.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace weft {
namespace {

constexpr std::array kUnits = {TileUnit::kAmx, TileUnit::kAvx512Bf16, TileUnit::kEmulated,
                               TileUnit::kNone};

// What the CPU and the system have of each; why not, if not.
struct Found {
  std::string no_amx;         // empty: it is there
  std::string no_avx512bf16;  // empty: it is there
};

#if defined(__x86_64__)

bool bit(uint32_t word, int at) { return (word >> at & 1) != 0; }

uint64_t enabled_states() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// Linux grants the large state of AMX to a process that asks for it.
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Found look() {
  Found found{"the CPU has no AMX", "the CPU has no AVX512-BF16"};
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !bit(c, 27)) return found;  // no xgetbv
  const uint64_t states = enabled_states();
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  const bool avx512 = bit(b, 16) && bit(b, 30) && bit(b, 31) && (states & 0xe6) == 0xe6;
  const bool amx = bit(d, 24) && bit(d, 22);
  uint32_t more = 0;
  __get_cpuid_count(7, 1, &more, &b, &c, &d);
  if (avx512 && bit(more, 5)) found.no_avx512bf16.clear();
  if (!amx || !avx512) return found;
  constexpr uint64_t kTileStates = uint64_t{3} << 17;
  if ((states & kTileStates) != kTileStates) {
    found.no_amx = "the system does not save the AMX state";
  } else if (!ask_for_tiles()) {
    found.no_amx = "the system denies the AMX state";
  } else {
    found.no_amx.clear();
  }
  return found;
}

#else

Found look() { return {"the CPU has no AMX", "the CPU has no AVX512-BF16"}; }

#endif

const Found& found() {
  static const Found once = look();
  return once;
}

std::optional<TileUnit> forced;

// Why there is no such unit; empty if there is.
std::string lacks(TileUnit unit) {
  if (unit == TileUnit::kNone || unit == TileUnit::kEmulated) return "";
  if (!current_isa().starts_with("avx3")) {
    const std::string& missing = unit == TileUnit::kAmx ? found().no_amx : found().no_avx512bf16;
    return missing.empty() ? "weft is limited to " + current_isa() : missing;
  }
  return unit == TileUnit::kAmx ? found().no_amx : found().no_avx512bf16;
}

}  // namespace

std::string_view tile_unit_name(TileUnit unit) {
  switch (unit) {
    case TileUnit::kNone: return "none";
    case TileUnit::kEmulated: return "emulated";
    case TileUnit::kAvx512Bf16: return "avx512bf16";
    case TileUnit::kAmx: return "amx";
  }
  return "";
}

TileUnit tile_unit() {
  if (forced) return *forced;
  if (lacks(TileUnit::kAmx).empty()) return TileUnit::kAmx;
  return lacks(TileUnit::kAvx512Bf16).empty() ? TileUnit::kAvx512Bf16 : TileUnit::kNone;
}

std::string tile_unit_lacks() {
  const TileUnit unit = tile_unit();
  if (unit == TileUnit::kAmx) return "";
  if (forced) return fmt::format("{} was asked for", tile_unit_name(unit));
  const std::string amx = lacks(TileUnit::kAmx), avx512bf16 = lacks(TileUnit::kAvx512Bf16);
  return avx512bf16.empty() || avx512bf16 == amx ? amx : amx + ", " + avx512bf16;
}

std::vector<TileUnit> available_tile_units() {
  std::vector<TileUnit> units;
  for (const TileUnit unit : kUnits) {
    if (lacks(unit).empty()) units.push_back(unit);
  }
  return units;
}

void force_tile_unit(std::string_view name) {
  std::vector<std::string_view> accepted;
  for (const TileUnit unit : available_tile_units()) {
    if (tile_unit_name(unit) == name) {
      forced = unit;
      return;
    }
    accepted.push_back(tile_unit_name(unit));
  }
  std::string why;
  for (const TileUnit unit : kUnits) {
    if (tile_unit_name(unit) == name) why = " (" + lacks(unit) + ")";
  }
  throw Error(fmt::format("tile unit '{}' is not available here{}: accepted is one of {}",
                          printable(name), why, fmt::join(accepted, ", ")));
}

void restore_tile_unit() { forced.reset(); }

void force_tile_unit_from_environment() {
  const char* name = std::getenv("WEFT_TILES");
  if (name == nullptr || *name == '\0') return;
  try {
    force_tile_unit(name);
  } catch (const Error& error) {
    throw Error(fmt::format("WEFT_TILES: {}", error.what()));
  }
}

}  // namespace weft
