// Moves of vectors, and moves and conversions between vectors and general registers.
#include <algorithm>
#include <cstring>

#include "tests/emulator/operation.h"

namespace weft::test {

bool is_load(const Instruction& in) {
  return in.map == 1 && (in.opcode == 0x10 || in.opcode == 0x28 || in.opcode == 0x6f);
}

bool is_store(const Instruction& in) {
  if (in.map == 1) {
    const bool past_the_caches = in.opcode == 0x2b || in.opcode == 0xe7;  // VMOVNTPS, VMOVNTDQ
    return past_the_caches || in.opcode == 0x7f || in.opcode == 0x11 || in.opcode == 0x29;
  }
  if (in.map != 3) return false;
  if (in.opcode == 0x17) return in.memory;  // VEXTRACTPS
  return in.opcode == 0x19 || in.opcode == 0x1b || in.opcode == 0x39 || in.opcode == 0x3b;
}

// VMOVDQU8 and VMOVDQU16 have elements of their own.
int move_element(const Instruction& in) {
  const bool small = in.map == 1 && in.prefix == 3 && (in.opcode == 0x6f || in.opcode == 0x7f);
  return small ? (in.wide ? 2 : 1) : std::min(in.lane(), in.memory_bytes());
}

void put(const Instruction& in, const MachineState& state, const uint8_t* result, int element,
         uint8_t* to) {
  uint8_t merged[64] = {};
  for (int i = 0; i < in.size; i += element) {
    const bool whole = (in.scalar() && i > 0) || kept(in, state, i / element);
    if (whole || !in.zeroing) std::memcpy(merged + i, (whole ? result : to) + i, element);
  }
  std::memcpy(to, merged, 64);
}

bool execute_move(const Operation& op, MachineState& state) {
  const Instruction& in = op.in;
  if (!is_load(in)) return false;
  if (in.scalar() && !in.memory) return false;  // VMOVSS of three registers
  put(in, state, op.right, move_element(in), state.vectors[in.reg]);
  return true;
}

// A vector, a number, or a part of a vector.
bool execute_store(const Instruction& in, MachineState& state) {
  const uint8_t* from = state.vectors[in.reg];
  const int bytes = in.memory_bytes();
  if (in.map == 3) from += (in.constant & (in.size / bytes - 1)) * bytes;
  const int element = in.map == 3 ? in.lane() : move_element(in);
  if (in.map == 1 && bytes < 16 && !in.memory) return false;  // VMOVSS of three registers
  if (in.memory) {
    uint8_t* address = in.address(state);
    for (int i = 0; i < bytes; i += element) {
      if (kept(in, state, i / element)) std::memcpy(address + i, from + i, element);
    }
    return true;
  }
  uint8_t merged[64] = {};
  uint8_t* to = state.vectors[in.rm];
  for (int i = 0; i < bytes; i += element) {
    const bool whole = kept(in, state, i / element);
    if (whole || !in.zeroing) std::memcpy(merged + i, (whole ? from : to) + i, element);
  }
  std::memcpy(to, merged, 64);
  return true;
}

namespace {

// Towards zero; what does not fit is the greatest.
uint64_t unsigned_of(double value, bool wide) {
  const bool fits = value > -1 && value < (wide ? 0x1p64 : 0x1p32);
  return fits ? static_cast<uint64_t>(value) : wide ? UINT64_MAX : UINT32_MAX;
}

}  // namespace

bool execute_general(const Instruction& in, MachineState& state) {
  uint8_t* vector = state.vectors[in.reg];
  int64_t& general = state.general[in.rm & 15];  // unless in.memory
  const auto bytes = static_cast<size_t>(in.lane());
  uint8_t result[64] = {};
  switch (in.key()) {
    case 0x1'1'6e: {  // VMOVD, VMOVQ
      const auto* from = in.memory ? in.address(state) : reinterpret_cast<const uint8_t*>(&general);
      std::memcpy(result, from, bytes);
      break;
    }
    case 0x1'2'7e:  // VMOVQ of a vector
      if (!in.wide) return false;
      std::memcpy(result, in.memory ? in.address(state) : state.vectors[in.rm], 8);
      break;
    case 0x1'1'd6:  // VMOVQ
      if (!in.memory) return false;
      std::memcpy(in.address(state), vector, bytes);
      return true;
    case 0x1'1'7e:  // VMOVD, VMOVQ
      if (!in.memory) general = 0;
      std::memcpy(in.memory ? in.address(state) : reinterpret_cast<uint8_t*>(&general), vector,
                  bytes);
      return true;
    case 0x2'1'7a:
    case 0x2'1'7b:
    case 0x2'1'7c: {  // VPBROADCASTB, VPBROADCASTW, VPBROADCASTD, VPBROADCASTQ
      if (in.memory) return false;
      const int element = in.opcode == 0x7a ? 1 : in.opcode == 0x7b ? 2 : in.lane();
      for (int i = 0; i < in.size; i += element) std::memcpy(result + i, &general, element);
      put(in, state, result, element, vector);
      return true;
    }
    case 0x1'3'78:  // VCVTTSD2USI
      if (in.memory) return false;
      state.general[in.reg & 15] =
          static_cast<int64_t>(unsigned_of(element_at<double>(state.vectors[in.rm], 0), in.wide));
      return true;
    case 0x1'3'7b: {  // VCVTUSI2SD
      if (in.memory) return false;
      const auto value = static_cast<uint64_t>(general);
      const double number = static_cast<double>(in.wide ? value : value & UINT32_MAX);
      std::memcpy(result, state.vectors[in.third], 16);
      std::memcpy(result, &number, 8);
      break;
    }
    default: return false;
  }
  std::memcpy(vector, result, 64);
  return true;
}

}  // namespace weft::test
