// Arithmetic of vectors: floats and doubles, integers, bits, shifts, multiply-add, VDPBF16PS.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/emulator/float_bf16.h"
#include "tests/emulator/operation.h"

namespace weft::test {
namespace {

template <typename T>
T calculated(int opcode, T l, T r) {
  switch (opcode) {
    case 0x51: return std::sqrt(r);
    case 0x58: return l + r;
    case 0x59: return l * r;
    case 0x5c: return l - r;
    case 0x5d: return l < r ? l : r;
    case 0x5e: return l / r;
    default: return l > r ? l : r;
  }
}

// VADDPS and its like, with PD, SS, SD.
template <typename T>
bool calculate(Operation& op) {
  const Instruction& in = op.in;
  return op.each<T>([&](int i) {
    const T left = element_at<T>(op.left, i);
    if (in.scalar() && i > 0) return left;
    return calculated(in.opcode, left, element_at<T>(op.right, i));
  });
}

bool is_calculation(const Instruction& in) {
  if (in.map != 1) return false;
  const int opcode = in.opcode;
  return opcode == 0x51 || opcode == 0x58 || opcode == 0x59 || (opcode >= 0x5c && opcode <= 0x5f);
}

// VFMADD132PS, 213, 231 and their like with signs; with PD, SS, SD.
template <typename T>
bool multiply_add(Operation& op) {
  const int form = op.in.opcode >> 4, kind = op.in.opcode & 0x0f;
  const T product_sign = kind >= 0xc ? -1 : 1, sum_sign = (kind & 2) != 0 ? -1 : 1;
  return op.each<T>([&](int i) {
    const T a = element_at<T>(op.old, i);
    const T b = element_at<T>(op.left, i), c = element_at<T>(op.right, i);
    if (op.in.scalar() && i > 0) return a;
    const T x = form == 0xb ? b : a, y = form == 0xa ? b : c;
    const T sum = form == 9 ? b : form == 0xa ? c : a;
    return std::fma(product_sign * x, y, sum_sign * sum);
  });
}

bool is_multiply_add(const Instruction& in) {
  const int form = in.opcode >> 4, kind = in.opcode & 0x0f;
  return in.map == 2 && in.prefix == 1 && form >= 9 && form <= 0xb && kind >= 8;
}

// VDPBF16PS: sum += a1 b1, then a0 b0, of pairs.
bool dot_pairs(Operation& op) {
  return op.each<float>([&](int i) {
    const float sum = flushed(element_at<float>(op.old, i) +
                              bf16_at(op.left, 2 * i + 1) * bf16_at(op.right, 2 * i + 1));
    return flushed(sum + bf16_at(op.left, 2 * i) * bf16_at(op.right, 2 * i));
  });
}

template <typename T>
bool shift(Operation& op, const uint8_t* values, uint64_t by, bool down) {
  return op.each<T>([&](int i) -> T {
    const T value = element_at<T>(values, i);
    return by >= 8 * sizeof(T) ? 0 : down ? value >> by : value << by;
  });
}

// VPSRLD, VPSRAD, VPSLLD, VPSRLQ, VPSLLQ by a constant; reg says which.
bool shift_by_constant(Operation& op) {
  const int kind = op.in.reg & 7, by = op.in.constant;
  if (op.in.opcode == 0x73) {
    return (kind == 2 || kind == 6) && shift<uint64_t>(op, op.right, by, kind == 2);
  }
  if (op.in.wide) return false;
  if (kind == 4) {
    return op.each<int32_t>(
        [&](int i) { return element_at<int32_t>(op.right, i) >> std::min(by, 31); });
  }
  return (kind == 2 || kind == 6) && shift<uint32_t>(op, op.right, by, kind == 2);
}

// VPTERNLOG: the constant is a table of the results of three bits.
uint32_t looked_up(uint32_t a, uint32_t b, uint32_t c, int table) {
  uint32_t bits = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const uint32_t which = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
    bits |= static_cast<uint32_t>(table >> which & 1) << bit;
  }
  return bits;
}

bool compute_bits(Operation& op) {
  switch (op.in.key()) {
    case 0x1'0'54:  // VANDPS, VANDPD, VPANDD
    case 0x1'1'54:
    case 0x1'1'db: return op.bits<uint32_t>([&](int i) { return op.li(i) & op.ri(i); });
    case 0x1'0'55:  // VANDNPS, VANDNPD, VPANDND
    case 0x1'1'55:
    case 0x1'1'df: return op.bits<uint32_t>([&](int i) { return ~op.li(i) & op.ri(i); });
    case 0x1'0'56:  // VORPS, VORPD, VPORD
    case 0x1'1'56:
    case 0x1'1'eb: return op.bits<uint32_t>([&](int i) { return op.li(i) | op.ri(i); });
    case 0x1'0'57:  // VXORPS, VXORPD, VPXORD
    case 0x1'1'57:
    case 0x1'1'ef: return op.bits<uint32_t>([&](int i) { return op.li(i) ^ op.ri(i); });
    case 0x3'1'25:
      return op.bits<uint32_t>([&](int i) {
        return looked_up(element_at<uint32_t>(op.old, i), op.li(i), op.ri(i), op.in.constant);
      });
    case 0x1'1'd2: return shift<uint32_t>(op, op.left, op.rq(0), true);   // VPSRLD
    case 0x1'1'd3: return shift<uint64_t>(op, op.left, op.rq(0), true);   // VPSRLQ
    case 0x1'1'f2: return shift<uint32_t>(op, op.left, op.rq(0), false);  // VPSLLD
    case 0x1'1'f3: return shift<uint64_t>(op, op.left, op.rq(0), false);  // VPSLLQ
    case 0x1'1'72:
    case 0x1'1'73: return shift_by_constant(op);
    case 0x2'1'45:  // VPSRLVD
      return !op.in.wide &&
             op.each<uint32_t>([&](int i) { return op.ri(i) < 32 ? op.li(i) >> op.ri(i) : 0; });
    case 0x2'1'47:  // VPSLLVD
      return !op.in.wide &&
             op.each<uint32_t>([&](int i) { return op.ri(i) < 32 ? op.li(i) << op.ri(i) : 0; });
    default: return false;
  }
}

bool compute_integers(Operation& op) {
  const auto ls = [&](int i) { return element_at<int32_t>(op.left, i); };
  const auto rs = [&](int i) { return element_at<int32_t>(op.right, i); };
  const auto lw = [&](int i) { return unsigned{element_at<uint16_t>(op.left, i)}; };
  const auto rw = [&](int i) { return unsigned{element_at<uint16_t>(op.right, i)}; };
  switch (op.in.key()) {
    case 0x1'1'fe: return op.each<uint32_t>([&](int i) { return op.li(i) + op.ri(i); });  // VPADDD
    case 0x1'1'fa: return op.each<uint32_t>([&](int i) { return op.li(i) - op.ri(i); });  // VPSUBD
    case 0x1'1'd4: return op.each<uint64_t>([&](int i) { return op.lq(i) + op.rq(i); });  // VPADDQ
    case 0x1'1'fd:                                                                        // VPADDW
      return op.each<uint16_t>([&](int i) { return static_cast<uint16_t>(lw(i) + rw(i)); });
    case 0x1'1'd5:  // VPMULLW
      return op.each<uint16_t>([&](int i) { return static_cast<uint16_t>(lw(i) * rw(i)); });
    case 0x1'1'f4:  // VPMULUDQ
      return op.each<uint64_t>([&](int i) { return uint64_t{op.li(2 * i)} * op.ri(2 * i); });
    case 0x2'1'40:  // VPMULLD, VPMULLQ
      return op.in.wide ? op.each<uint64_t>([&](int i) { return op.lq(i) * op.rq(i); })
                        : op.each<uint32_t>([&](int i) { return op.li(i) * op.ri(i); });
    case 0x2'1'1e:  // VPABSD
      return op.each<uint32_t>([&](int i) { return rs(i) < 0 ? -op.ri(i) : op.ri(i); });
    case 0x2'1'39:  // VPMINSD
      return !op.in.wide && op.each<int32_t>([&](int i) { return std::min(ls(i), rs(i)); });
    case 0x2'1'3d:  // VPMAXSD
      return !op.in.wide && op.each<int32_t>([&](int i) { return std::max(ls(i), rs(i)); });
    default: return false;
  }
}

}  // namespace

bool compute_arithmetic(Operation& op) {
  const Instruction& in = op.in;
  if (is_calculation(in)) {
    return (in.prefix & 1) != 0 ? calculate<double>(op) : calculate<float>(op);
  }
  if (is_multiply_add(in)) return in.wide ? multiply_add<double>(op) : multiply_add<float>(op);
  if (in.key() == 0x2'2'52) return dot_pairs(op);
  return compute_bits(op) || compute_integers(op);
}

}  // namespace weft::test
