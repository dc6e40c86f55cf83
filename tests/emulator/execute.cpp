#include <algorithm>
#include <cstring>

#include "tests/emulator/emulator.h"
#include "tests/emulator/operation.h"

namespace weft::test {
namespace {

void read_right(Operation& op) {
  const Instruction& in = op.in;
  if (!in.memory) {
    std::memcpy(op.right, op.state.vectors[in.rm], 64);
    return;
  }
  const uint8_t* address = in.address(op.state);
  const int bytes = in.memory_bytes(), element = move_element(in);
  for (int i = 0; i < bytes; i += element) {
    // What a mask excludes from a move may lie where there is no memory.
    if (is_load(in) && !kept(in, op.state, i / element)) continue;
    std::memcpy(op.right + i, address + i, static_cast<size_t>(element));
  }
  if (!in.broadcast) return;
  for (int i = bytes; i < in.size; i += bytes) std::memcpy(op.right + i, op.right, bytes);
}

bool execute_evex(const Instruction& in, MachineState& state) {
  if (in.size > 64) return false;
  if (in.broadcast && !in.memory) return false;  // a rounding of its own
  if (execute_general(in, state)) return true;
  if (is_store(in)) return execute_store(in, state);
  Operation op{in, state, state.vectors[in.third], {}, state.vectors[in.reg], {}, in.lane()};
  read_right(op);
  if (execute_compare(op, state) || execute_move(op, state)) return true;
  if (!compute_arithmetic(op) && !compute_permutation(op) && !compute_conversion(op)) return false;
  Instruction to = in;
  if (op.masked) to.mask = 0;
  // Shifts by a constant have their destination in the third operand.
  const bool shift = in.map == 1 && (in.opcode == 0x72 || in.opcode == 0x73);
  put(to, state, op.result, op.element, state.vectors[shift ? in.third : in.reg]);
  return true;
}

}  // namespace

int execute(const uint8_t* code, MachineState& state) {
  const std::optional<Instruction> in = decode(code);
  if (!in) return 0;
  const bool known =
      in->evex ? execute_evex(*in, state) : execute_mask(*in, state) || execute_tile(*in, state);
  return known ? static_cast<int>(in->next - code) : 0;
}

}  // namespace weft::test
