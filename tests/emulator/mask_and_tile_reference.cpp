// References for instructions of masks alone and for AMX.
#include <cstring>

#include "tests/emulator/reference.h"
#include "weft/core/bf16.h"

namespace weft::test {
namespace {

int bits_of(char suffix) {
  return suffix == 'b' ? 8 : suffix == 'w' ? 16 : suffix == 'd' ? 32 : 64;
}

uint64_t read(const AsmOperand& operand, const MachineState& state) {
  if (operand.kind == AsmOperand::kMask) return state.masks[operand.number];
  if (operand.kind == AsmOperand::kConstant) return static_cast<uint64_t>(operand.number);
  uint64_t value = 0;
  if (operand.kind == AsmOperand::kGeneral) {
    value = static_cast<uint64_t>(state.general[operand.number]);
  } else {
    std::memcpy(&value, operand.address(), static_cast<size_t>(operand.bytes));
  }
  return value;
}

// Bit `i` of the result.
bool combined(std::string_view name, bool x, bool y) {
  if (name == "kand") return x && y;
  if (name == "kandn") return !x && y;
  if (name == "kor") return x || y;
  if (name == "kxor") return x != y;
  return x == y;  // kxnor
}

uint64_t flags_of_ortest(uint64_t value, int bits, uint64_t flags) {
  constexpr uint64_t kCarry = 1, kParity = 4, kAdjust = 0x10, kZero = 0x40, kSign = 0x80;
  flags &= ~(kCarry | kParity | kAdjust | kZero | kSign | 0x800);
  if (value == 0) flags |= kZero;
  if (value == UINT64_MAX >> (64 - bits)) flags |= kCarry;
  return flags;
}

float as_float(uint16_t bf16) {
  const float value = bf16_to_float(bf16);
  return value > -0x1p-126f && value < 0x1p-126f ? 0.0f : value;
}

}  // namespace

bool apply_mask_reference(const AsmInstruction& instruction, MachineState& state) {
  std::string name = instruction.name;
  if (name[0] != 'k') return false;
  const int bits = bits_of(name.back());
  name.pop_back();
  const uint64_t all = UINT64_MAX >> (64 - bits);
  const auto& operands = instruction.operands;
  const uint64_t first = read(operands[1], state) & all;
  uint64_t result = first;
  if (name == "kortest") {
    state.flags = flags_of_ortest(first | (read(operands[0], state) & all), bits, state.flags);
    return true;
  }
  if (name == "knot") {
    result = first ^ all;
  } else if (name == "kshiftl" || name == "kshiftr") {
    result = 0;
    const int by = operands[2].number, step = name == "kshiftl" ? by : -by;
    for (int i = 0; i < bits; ++i) {
      const int from = i - step;
      if (from >= 0 && from < bits) result |= (first >> from & 1) << i;
    }
  } else if (name.starts_with("kunpck")) {
    const uint64_t second = read(operands[2], state);
    result = 0;
    for (int i = 0; i < bits; ++i) {
      const int from = i % (bits / 2);
      result |= ((i < bits / 2 ? second : first) >> from & 1) << i;
    }
  } else if (name != "kmov") {
    const uint64_t second = read(operands[2], state);
    result = 0;
    for (int i = 0; i < bits; ++i) {
      const bool one = combined(name, (first >> i & 1) != 0, (second >> i & 1) != 0);
      result |= uint64_t{one} << i;
    }
  }
  const AsmOperand& to = operands[0];
  if (to.kind == AsmOperand::kMask) state.masks[to.number] = result;
  if (to.kind == AsmOperand::kGeneral) state.general[to.number] = static_cast<int64_t>(result);
  if (to.kind == AsmOperand::kMemory) {
    std::memcpy(to.address(), &result, static_cast<size_t>(bits / 8));
  }
  return true;
}

bool apply_tile_reference(const AsmInstruction& instruction, MachineState& state) {
  const auto& operands = instruction.operands;
  const auto tile = [&](int operand) { return state.tiles[operands[operand].number]; };
  const auto row = [](const AsmOperand& memory, int i) {
    return reinterpret_cast<uint8_t*>(memory.base + i * memory.offset);
  };
  if (instruction.name == "tilezero") {
    std::memset(tile(0), 0, 1024);
  } else if (instruction.name == "tileloadd") {
    for (int i = 0; i < 16; ++i) std::memcpy(tile(0)[i], row(operands[1], i), 64);
  } else if (instruction.name == "tilestored") {
    for (int i = 0; i < 16; ++i) std::memcpy(row(operands[0], i), tile(1)[i], 64);
  } else if (instruction.name == "tdpbf16ps") {
    float c[16][16];
    uint16_t a[16][32], b[16][32];  // b: [k / 2][2 n + k % 2]
    std::memcpy(c, tile(0), 1024);
    std::memcpy(a, tile(1), 1024);
    std::memcpy(b, tile(2), 1024);
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        float sums[2] = {0, 0};
        for (int k = 0; k < 32; ++k) {
          sums[k % 2] += as_float(a[m][k]) * as_float(b[k / 2][2 * n + k % 2]);
        }
        c[m][n] += sums[0] + sums[1];
      }
    }
    std::memcpy(tile(0), c, 1024);
  } else {
    return false;
  }
  return true;
}

}  // namespace weft::test
