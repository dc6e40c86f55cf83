// Conversions of vectors between floats, doubles, integers of several lengths, and masks.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/emulator/operation.h"

namespace weft::test {
namespace {

// Towards zero; what does not fit is the least.
int32_t integer(double value) {
  return value > -0x1p31 - 1 && value < 0x1p31 ? static_cast<int32_t>(value) : INT32_MIN;
}

}  // namespace

bool compute_conversion(Operation& op) {
  const Instruction& in = op.in;
  const auto as_double = [&](int i) { return element_at<double>(op.right, i); };
  const auto as_integer = [&](int i) { return element_at<int32_t>(op.right, i); };
  switch (in.key()) {
    case 0x1'0'5a: return op.each<double>([&](int i) { return double{op.r(i)}; });  // VCVTPS2PD
    case 0x1'1'5a:                                                                  // VCVTPD2PS
      return op.each_half<float>([&](int i) { return static_cast<float>(as_double(i)); });
    case 0x1'0'5b:  // VCVTDQ2PS
      return !in.wide && op.each<float>([&](int i) { return static_cast<float>(as_integer(i)); });
    case 0x1'1'5b:  // VCVTPS2DQ
      return !in.wide && op.each<int32_t>([&](int i) { return integer(std::nearbyint(op.r(i))); });
    case 0x1'2'5b:  // VCVTTPS2DQ
      return !in.wide && op.each<int32_t>([&](int i) { return integer(op.r(i)); });
    case 0x1'2'e6:  // VCVTDQ2PD, VCVTQQ2PD
      return op.each<double>([&](int i) {
        return in.wide ? static_cast<double>(element_at<int64_t>(op.right, i))
                       : static_cast<double>(as_integer(i));
      });
    case 0x1'1'e6:  // VCVTTPD2DQ
      return op.each_half<int32_t>([&](int i) { return integer(as_double(i)); });
    case 0x2'1'33:  // VPMOVZXWD
      return op.each<uint32_t>([&](int i) { return uint32_t{element_at<uint16_t>(op.right, i)}; });
    case 0x2'1'35:
      return op.each<uint64_t>([&](int i) { return uint64_t{op.ri(i)}; });  // VPMOVZXDQ
    case 0x2'1'2b:                                                          // VPACKUSDW
      return op.each<uint16_t>([&](int i) {
        const int from = i / 8 * 4 + i % 4;
        const auto value = element_at<int32_t>(i % 8 < 4 ? op.left : op.right, from);
        return static_cast<uint16_t>(std::clamp(value, 0, 0xffff));
      });
    case 0x2'2'38: {  // VPMOVM2D, VPMOVM2Q
      const uint64_t mask = op.state.masks[in.rm & 7];
      return in.wide
                 ? op.each<uint64_t>([&](int i) { return -(mask >> i & 1); })
                 : op.each<uint32_t>([&](int i) { return -static_cast<uint32_t>(mask >> i & 1); });
    }
    default: return false;
  }
}

}  // namespace weft::test
