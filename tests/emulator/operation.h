// The operations by family. Each function returns whether it knows the instruction; one that does
// not has changed nothing.
#pragma once

#include <cstdint>
#include <cstring>

#include "tests/emulator/decode.h"

namespace weft::test {

// Element `index` of a vector of T.
template <typename T>
T element_at(const uint8_t* vector, int index) {
  T value;
  std::memcpy(&value, vector + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

inline bool kept(const Instruction& in, const MachineState& state, int element) {
  return in.mask == 0 || (state.masks[in.mask] >> element & 1) != 0;
}

// An EVEX instruction that computes a whole vector from whole vectors. The mask and the destination
// come later (execute.cpp).
struct Operation {
  const Instruction& in;
  const MachineState& state;
  const uint8_t* left;      // the second operand
  uint8_t right[64] = {};   // the third, from a vector or from memory
  const uint8_t* old;       // the destination as it was
  uint8_t result[64] = {};  // out
  int element;              // out: bytes for each bit of the mask
  bool masked = false;      // out: the mask is part of the operation and was obeyed

  int count() const { return in.size / 4; }
  float l(int i) const { return element_at<float>(left, i); }
  float r(int i) const { return element_at<float>(right, i); }
  uint32_t li(int i) const { return element_at<uint32_t>(left, i); }
  uint32_t ri(int i) const { return element_at<uint32_t>(right, i); }
  uint64_t lq(int i) const { return element_at<uint64_t>(left, i); }
  uint64_t rq(int i) const { return element_at<uint64_t>(right, i); }
  // Two bits of the constant for each of four elements.
  int chosen(int i) const { return in.constant >> (i % 4 * 2) & 3; }

  // result[i] = f(i), for elements of type T.
  template <typename T, typename F>
  bool each(F f) {
    element = sizeof(T);
    for (int i = 0; i < in.size / static_cast<int>(sizeof(T)); ++i) {
      const T value = f(i);
      std::memcpy(result + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
    }
    return true;
  }
  // The same where T only moves bits: the mask counts in what W says.
  template <typename T, typename F>
  bool bits(F f) {
    each<T>(f);
    element = in.lane();
    return true;
  }
  // A result of half the length, behind which there are zeros.
  template <typename T, typename F>
  bool each_half(F f) {
    if (in.mask != 0) return false;
    const int half = in.size / 2 / static_cast<int>(sizeof(T));
    return each<T>([&](int i) { return i < half ? f(i) : T{}; });
  }
};

bool compute_arithmetic(Operation& op);
bool compute_permutation(Operation& op);
bool compute_conversion(Operation& op);

// Instructions that do their whole work, destination included.
bool execute_mask(const Instruction& in, MachineState& state);     // of masks alone
bool execute_compare(const Operation& op, MachineState& state);    // vectors to a mask
bool execute_tile(const Instruction& in, MachineState& state);     // AMX
bool execute_move(const Operation& op, MachineState& state);       // loads, of vectors to vectors
bool execute_store(const Instruction& in, MachineState& state);    // to memory or to rm
bool execute_general(const Instruction& in, MachineState& state);  // from, to general registers

// Puts `result` into a vector as the mask says; the rest of the 64 bytes becomes zero.
void put(const Instruction& in, const MachineState& state, const uint8_t* result, int element,
         uint8_t* to);
bool is_load(const Instruction& in);
bool is_store(const Instruction& in);
int move_element(const Instruction& in);  // of loads and stores: bytes for each bit of the mask

}  // namespace weft::test
