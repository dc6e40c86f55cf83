// Runs an instruction of the catalogue with the CPU: loads all registers from a MachineState,
// executes it, and stores them.
#pragma once

#include <cstddef>

#include "tests/emulator/catalogue.h"
#include "tests/emulator/emulator.h"

namespace weft::test {

class MachineCode {
 public:
  explicit MachineCode(const CatalogueEntry& entry);
  ~MachineCode();
  MachineCode(const MachineCode&) = delete;
  MachineCode& operator=(const MachineCode&) = delete;

  const uint8_t* instruction() const { return instruction_; }
  // Loading and storing takes AVX-512, for entries that need AMX also AMX: of the CPU, or of
  // MissingInstructions. rsp and the trap flag are not the state's; of the flags only the lower
  // byte.
  void run(MachineState& state) const;

 private:
  uint8_t* page_;
  const uint8_t* instruction_;
  size_t entry_;  // offset of the first instruction
};

}  // namespace weft::test
