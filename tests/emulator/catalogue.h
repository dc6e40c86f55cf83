// The instructions of the emulator's tests: their text, and the bytes that the assembler made of
// it.
#pragma once

#include <cstdint>
#include <span>

namespace weft::test {

// What a CPU must have to execute an instruction.
enum class Needs : uint64_t { kAvx512 = 0, kAvx512Bf16 = 1, kAmx = 2, kAvx2 = 3 };

struct CatalogueEntry {
  const char* text;  // "{evex} vaddps zmm1{k1},zmm2,zmm3"
  const uint8_t *begin, *end;
  Needs needs;
};

// Every family of instructions, in all forms of its operands: registers up to 31, masks of both
// kinds, memory with displacements of one byte and of four, with an index, relative to rip;
// broadcasts. With kAvx2: instructions of the CPU's own that share a reference with those emulated.
std::span<const CatalogueEntry> catalogue();

// Instructions that the emulator refuses.
std::span<const CatalogueEntry> unknown_instructions();

}  // namespace weft::test
