#include "tests/emulator/decode.h"

#include <cstring>

namespace weft::test {
namespace {

struct Extensions {
  bool r, x, b;
};

int read_vex(const uint8_t* code, Instruction& in, Extensions& extensions) {
  const bool longer = *code == 0xc4;
  const uint8_t first = code[1], second = longer ? code[2] : code[1];
  extensions = {(first & 0x80) == 0, longer && (first & 0x40) == 0, longer && (first & 0x20) == 0};
  in.map = longer ? first & 0x1f : 1;
  in.prefix = second & 3;
  in.wide = longer && (second & 0x80) != 0;
  in.size = (second & 4) != 0 ? 32 : 16;
  in.third = ~(second >> 3) & 15;
  in.opcode = code[longer ? 3 : 2];
  return longer ? 4 : 3;
}

int read_evex(const uint8_t* code, Instruction& in, Extensions& extensions) {
  const uint8_t p0 = code[1], p1 = code[2], p2 = code[3];
  in.evex = true;
  extensions = {(p0 & 0x80) == 0, (p0 & 0x40) == 0, (p0 & 0x20) == 0};
  in.map = p0 & 7;
  in.prefix = p1 & 3;
  in.wide = (p1 & 0x80) != 0;
  in.size = 16 << (p2 >> 5 & 3);
  in.third = (~(p1 >> 3) & 15) | ((p2 & 0x08) == 0 ? 16 : 0);
  in.broadcast = (p2 & 0x10) != 0;
  in.mask = p2 & 7;
  in.zeroing = (p2 & 0x80) != 0;
  in.opcode = code[4];
  return 5;
}

int64_t read_displacement(const uint8_t*& at, int bytes) {
  int64_t value = static_cast<int8_t>(*at);
  if (bytes == 4) {
    int32_t wide;
    std::memcpy(&wide, at, 4);
    value = wide;
  }
  at += bytes;
  return value;
}

// The operands of the ModRM byte and what follows it.
void read_modrm(const uint8_t*& at, Instruction& in, const Extensions& extensions) {
  const uint8_t modrm = *at++;
  const int mode = modrm >> 6;
  in.reg |= (modrm >> 3 & 7) | (extensions.r ? 8 : 0);
  in.rm = (modrm & 7) | (extensions.b ? 8 : 0);
  in.memory = mode != 3;
  if (!in.memory) {
    if (in.evex && extensions.x) in.rm |= 16;
    return;
  }
  in.base = in.rm;
  if ((modrm & 7) == 4) {
    const uint8_t sib = *at++;
    const int index = (sib >> 3 & 7) | (extensions.x ? 8 : 0);
    if (index != 4) in.index = index;
    in.shift = sib >> 6;
    in.base = (sib & 7) | (extensions.b ? 8 : 0);
    if ((sib & 7) == 5 && mode == 0) {
      in.base = -1;
      in.displacement = read_displacement(at, 4);
    }
  } else if ((modrm & 7) == 5 && mode == 0) {
    in.base = -1;
    in.from_next = true;
    in.displacement = read_displacement(at, 4);
  }
  if (mode == 1) in.displacement = read_displacement(at, 1) * (in.evex ? in.memory_bytes() : 1);
  if (mode == 2) in.displacement = read_displacement(at, 4);
}

bool has_constant(const Instruction& in) {
  if (in.map != 1) return in.map == 3;
  return (in.opcode >= 0x70 && in.opcode <= 0x73) || in.opcode == 0xc2 ||
         (in.opcode >= 0xc4 && in.opcode <= 0xc6);
}

int memory_bytes_of_first(const Instruction& in) {  // map 0F
  switch (in.opcode) {
    case 0x6e:
    case 0x7e:
    case 0xd6:
    case 0x78:
    case 0x7b: return in.lane();
    case 0xd2:
    case 0xd3:
    case 0xf2:
    case 0xf3: return 16;
    case 0x5a:
      if (in.prefix == 0) return in.size / 2;
      break;
    case 0xe6:
      if (!in.wide) return in.size / 2;
      break;
    default: break;
  }
  return in.scalar() ? (in.prefix == 2 ? 4 : 8) : in.size;
}

int memory_bytes_of_second(const Instruction& in) {  // map 0F38
  switch (in.opcode) {
    case 0x79: return 2;
    case 0x18:
    case 0x58: return 4;
    case 0x19:
    case 0x59: return 8;
    case 0x1a:
    case 0x5a: return 16;
    case 0x1b:
    case 0x5b: return 32;
    case 0x33:
    case 0x35: return in.size / 2;
    default: return in.scalar() ? in.lane() : in.size;
  }
}

int memory_bytes_of_third(const Instruction& in) {  // map 0F3A
  switch (in.opcode) {
    case 0x17: return 4;
    case 0x18:
    case 0x19:
    case 0x38:
    case 0x39: return 16;
    case 0x1a:
    case 0x1b:
    case 0x3a:
    case 0x3b: return 32;
    default: return in.size;
  }
}

}  // namespace

bool Instruction::scalar() const {
  if (map == 1 && prefix >= 2) {
    return opcode == 0x10 || opcode == 0x11 || (opcode >= 0x51 && opcode <= 0x5f && opcode != 0x5b);
  }
  return map == 2 && opcode >= 0x99 && opcode <= 0xbf && (opcode & 0x09) == 0x09;  // FMA
}

int Instruction::memory_bytes() const {
  if (broadcast) return lane();
  return map == 1   ? memory_bytes_of_first(*this)
         : map == 2 ? memory_bytes_of_second(*this)
                    : memory_bytes_of_third(*this);
}

int64_t Instruction::scaled_index(const MachineState& state) const {
  return index < 0 ? 0 : state.general[index] * (int64_t{1} << shift);
}

int64_t Instruction::base_address(const MachineState& state) const {
  const auto behind = static_cast<int64_t>(reinterpret_cast<uintptr_t>(next));
  return (from_next ? behind : base < 0 ? 0 : state.general[base]) + displacement;
}

uint8_t* Instruction::address(const MachineState& state) const {
  return reinterpret_cast<uint8_t*>(base_address(state) + scaled_index(state));
}

std::optional<Instruction> decode(const uint8_t* code) {
  Instruction in;
  Extensions extensions{};
  const uint8_t* at = code;
  if (*code == 0xc4 || *code == 0xc5) {
    at += read_vex(code, in, extensions);
    if (in.map == 1 && in.opcode == 0x77) {  // VZEROUPPER and VZEROALL have no operands
      in.next = at;
      return in;
    }
  } else if (*code == 0x62) {
    at += read_evex(code, in, extensions);
    in.reg = (code[1] & 0x10) == 0 ? 16 : 0;
  } else {
    return std::nullopt;
  }
  read_modrm(at, in, extensions);
  if (has_constant(in)) in.constant = *at++;
  in.next = at;
  return in;
}

}  // namespace weft::test
