// What instructions compute, from their text: a second, plain implementation for the emulator's
// tests. It never sees the encoding, which is what the assembler and the emulator's decoder know.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/emulator/emulator.h"

namespace weft::test {

struct AsmOperand {
  enum Kind { kVector, kMask, kTile, kGeneral, kMemory, kConstant } kind = kConstant;
  int number = 0;      // of the register, or the constant
  int bytes = 0;       // of the register or of the memory, where the text says; otherwise 0
  int64_t base = 0;    // address without the index
  int64_t offset = 0;  // scaled index
  int copies = 1;      // {1to16}
  int mask = 0;        // {k1}
  bool zeroing = false;

  uint8_t* address() const { return reinterpret_cast<uint8_t*>(base + offset); }
};

struct AsmInstruction {
  std::string name;
  std::vector<AsmOperand> operands;  // the destination first
};

// `next`: where the following instruction lies, for [rip+...].
AsmInstruction parse_asm(std::string_view text, const uint8_t* next, const MachineState& state);

// Does to `state` and to memory what the instruction does. False if there is no reference for it.
bool apply_reference(const AsmInstruction& instruction, MachineState& state);

// Its parts for instructions of masks alone and of tiles.
bool apply_mask_reference(const AsmInstruction& instruction, MachineState& state);
bool apply_tile_reference(const AsmInstruction& instruction, MachineState& state);

}  // namespace weft::test
