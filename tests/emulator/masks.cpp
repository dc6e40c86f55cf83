// Masks: their own operations (VEX), and comparisons of vectors that give one (EVEX).
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tests/emulator/operation.h"

namespace weft::test {
namespace {

uint64_t ones(int bits) { return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

// Of operations on masks alone: W and 66 say of how many bits.
int bits_of(const Instruction& in) { return (in.wide ? 64 : 16) / (in.prefix == 1 ? 2 : 1); }

// KAND, KANDN, KNOT, KOR, KXNOR, KXOR
uint64_t combined(int opcode, uint64_t a, uint64_t b) {
  switch (opcode) {
    case 0x41: return a & b;
    case 0x42: return ~a & b;
    case 0x44: return ~b;
    case 0x45: return a | b;
    case 0x46: return ~(a ^ b);
    default: return a ^ b;
  }
}

bool combine(const Instruction& in, MachineState& state) {
  if (in.memory || in.opcode == 0x43) return false;
  const uint64_t value =
      combined(in.opcode, state.masks[in.third & 7], state.masks[in.rm & 7]) & ones(bits_of(in));
  state.masks[in.reg & 7] = value;
  return true;
}

// KUNPCK: the lower halves, that of the second source below.
bool unpack(const Instruction& in, MachineState& state) {
  if (in.memory) return false;
  const int bits = in.wide ? 64 : in.prefix == 1 ? 16 : 32, half = bits / 2;
  const uint64_t low = state.masks[in.rm & 7] & ones(half);
  state.masks[in.reg & 7] = (state.masks[in.third & 7] & ones(half)) << half | low;
  return true;
}

// KSHIFTR, KSHIFTL
bool shift(const Instruction& in, MachineState& state) {
  if (in.opcode < 0x30 || in.opcode > 0x33 || in.memory) return false;
  const int bits = (in.opcode & 1) != 0 ? (in.wide ? 64 : 32) : (in.wide ? 16 : 8);
  const int by = in.constant;
  const uint64_t value = state.masks[in.rm & 7] & ones(bits);
  state.masks[in.reg & 7] =
      by >= bits ? 0 : (in.opcode >= 0x32 ? value << by : value >> by) & ones(bits);
  return true;
}

void ortest(const Instruction& in, MachineState& state) {
  constexpr uint64_t kCarry = 0x01, kZero = 0x40, kFlags = 0x8d5;
  const uint64_t all = ones(bits_of(in));
  const uint64_t value = (state.masks[in.reg & 7] | state.masks[in.rm & 7]) & all;
  state.flags &= ~kFlags;
  if (value == 0) state.flags |= kZero;
  if (value == all) state.flags |= kCarry;
}

}  // namespace

bool execute_mask(const Instruction& in, MachineState& state) {
  if (in.map == 3) return shift(in, state);
  if (in.map != 1) return false;
  if (in.opcode >= 0x41 && in.opcode <= 0x47) return combine(in, state);
  if (in.opcode == 0x4b) return unpack(in, state);
  uint64_t& reg = state.masks[in.reg & 7];
  uint64_t& rm = state.masks[in.rm & 7];
  // To and from general registers: F2 for 32 and 64 bits.
  const int bits = in.prefix == 3 ? (in.wide ? 64 : 32) : in.prefix == 1 ? 8 : 16;
  switch (in.opcode) {
    case 0x90: {  // KMOV
      uint64_t value = rm;
      if (in.memory) std::memcpy(&value, in.address(state), static_cast<size_t>(bits_of(in) / 8));
      reg = value & ones(bits_of(in));
      return true;
    }
    case 0x91:
      if (!in.memory) return false;
      std::memcpy(in.address(state), &reg, static_cast<size_t>(bits_of(in) / 8));
      return true;
    case 0x92:
      if (in.memory) return false;
      reg = static_cast<uint64_t>(state.general[in.rm]) & ones(bits);
      return true;
    case 0x93:
      if (in.memory) return false;
      state.general[in.reg] = static_cast<int64_t>(rm & ones(bits));
      return true;
    case 0x98:
      if (in.memory) return false;
      ortest(in, state);
      return true;
    default: return false;
  }
}

namespace {

template <typename T, typename F>
bool find(const Operation& op, MachineState& state, F f) {
  uint64_t bits = 0;
  for (int i = 0; i < op.in.size / static_cast<int>(sizeof(T)); ++i) {
    if (kept(op.in, state, i) && f(i)) bits |= uint64_t{1} << i;
  }
  state.masks[op.in.reg & 7] = bits;
  return true;
}

// Of integers three bits say which, of floats four: half of the sixteen are true of a NaN.
template <typename T>
bool holds(T l, T r, int how) {
  const bool nan = l != l || r != r;
  switch (how & (std::is_floating_point_v<T> ? 15 : 7)) {
    case 0: return l == r;
    case 1: return l < r;
    case 2: return l <= r;
    case 3: return nan;
    case 4: return l != r;
    case 5: return !(l < r);
    case 6: return !(l <= r);
    case 7: return !nan;
    case 8: return l == r || nan;
    case 9: return !(l >= r);
    case 10: return !(l > r);
    case 11: return false;
    case 12: return l != r && !nan;
    case 13: return l >= r;
    case 14: return l > r;
    default: return true;
  }
}

template <typename T>
bool compare(const Operation& op, MachineState& state, int how) {
  return find<T>(op, state, [&](int i) {
    return holds(element_at<T>(op.left, i), element_at<T>(op.right, i), how);
  });
}

// VFPCLASS: NaN of both kinds, zeros and infinities of either sign.
bool is_of_class(double value, int classes) {
  const bool minus = std::signbit(value), zero = value == 0;
  return ((classes & 0x81) != 0 && std::isnan(value)) ||
         ((classes & 0x02) != 0 && zero && !minus) || ((classes & 0x04) != 0 && zero && minus) ||
         ((classes & 0x08) != 0 && std::isinf(value) && !minus) ||
         ((classes & 0x10) != 0 && std::isinf(value) && minus);
}

bool classify(const Operation& op, MachineState& state) {
  const int classes = op.in.constant, nan = classes & 0x81;
  if ((classes & 0x60) != 0 || (nan != 0 && nan != 0x81)) return false;
  if (!op.in.wide) {
    return find<float>(op, state, [&](int i) { return is_of_class(op.r(i), classes); });
  }
  return find<double>(op, state,
                      [&](int i) { return is_of_class(element_at<double>(op.right, i), classes); });
}

}  // namespace

bool execute_compare(const Operation& op, MachineState& state) {
  const Instruction& in = op.in;
  const int how = in.constant;
  switch (in.key()) {
    case 0x1'0'c2: return compare<float>(op, state, how);   // VCMPPS
    case 0x1'1'c2: return compare<double>(op, state, how);  // VCMPPD
    case 0x3'1'1e:                                          // VPCMPUD, VPCMPUQ
      return in.wide ? compare<uint64_t>(op, state, how) : compare<uint32_t>(op, state, how);
    case 0x3'1'1f:  // VPCMPD, VPCMPQ
      return in.wide ? compare<int64_t>(op, state, how) : compare<int32_t>(op, state, how);
    case 0x1'1'76: return compare<int32_t>(op, state, 0);  // VPCMPEQD
    case 0x1'1'66: return compare<int32_t>(op, state, 6);  // VPCMPGTD
    case 0x2'1'27:                                         // VPTESTMD
    case 0x2'2'27:                                         // VPTESTNMD
      return !in.wide && find<uint32_t>(op, state, [&](int i) {
        return ((op.li(i) & op.ri(i)) != 0) == (in.prefix == 1);
      });
    case 0x3'1'66: return classify(op, state);
    default: return false;
  }
}

}  // namespace weft::test
