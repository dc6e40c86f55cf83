// What the bytes of a VEX or EVEX instruction say, before any register is read.
//
//   VEX    c5 RvvvvLpp                     opcode modrm ...
//   VEX    c4 RXBmmmmm WvvvvLpp            opcode modrm ...
//   EVEX   62 RXBR'0mmm Wvvvv1pp zL'Lbv'aaa opcode modrm ...   (R, X, B, R', v, v' inverted)
//
//   mmm map: 1 is 0F, 2 is 0F38, 3 is 0F3A    pp prefix: 0 none, 1 is 66, 2 is F3, 3 is F2
#pragma once

#include <cstdint>
#include <optional>

#include "tests/emulator/emulator.h"

namespace weft::test {

struct Instruction {
  bool evex = false;
  int map = 0, prefix = 0, opcode = 0;
  bool wide = false;  // W
  int size = 0;       // bytes of a vector: 16, 32, 64
  // Operands, 0 to 31 where they are vectors.
  int reg = 0, rm = 0, third = 0;
  int mask = 0;          // 0: none
  bool zeroing = false;  // what the mask excludes becomes zero; otherwise it stays
  bool broadcast = false;
  int constant = 0;
  const uint8_t* next = nullptr;  // behind the instruction
  // The operand in memory that is there instead of rm.
  bool memory = false;
  int base = -1, index = -1;  // general registers; -1: none
  int shift = 0;              // of the index
  int64_t displacement = 0;
  bool from_next = false;  // counted from `next`

  // 0xMPOO: map, prefix, opcode. Written 0x1'1'fe.
  int key() const { return map << 12 | prefix << 8 | opcode; }
  int lane() const { return wide ? 8 : 4; }  // bytes of what W says
  bool scalar() const;                       // only the lowest element is computed and masked
  // The bytes of the operand in memory: also the unit of displacements of one byte in EVEX.
  int memory_bytes() const;

  int64_t scaled_index(const MachineState& state) const;
  int64_t base_address(const MachineState& state) const;  // without the index
  uint8_t* address(const MachineState& state) const;
};

// Nothing if the bytes do not begin a VEX or EVEX instruction.
std::optional<Instruction> decode(const uint8_t* code);

}  // namespace weft::test
