// Elements that change places: broadcasts, shuffles, permutations, unpacking, insertions, blends.
#include <cstring>

#include "tests/emulator/operation.h"

namespace weft::test {
namespace {

// VUNPCKLPS, VPUNPCKLWD and their like: halves of 16 bytes, interleaved.
bool unpack(Operation& op, int bytes, bool upper) {
  op.element = bytes;
  for (int lane = 0; lane < op.in.size; lane += 16) {
    for (int i = 0; i < 8 / bytes; ++i) {
      const int from = lane + (upper ? 8 : 0) + bytes * i;
      uint8_t* to = op.result + lane + 2 * bytes * i;
      std::memcpy(to, op.left + from, bytes);
      std::memcpy(to + bytes, op.right + from, bytes);
    }
  }
  return true;
}

// VPERMI2, VPERMT2: from two vectors. The former has its indices in the destination.
template <typename T>
bool permute_two(Operation& op, bool indices_in_old) {
  const uint8_t* low = indices_in_old ? op.left : op.old;
  const uint8_t* index = indices_in_old ? op.old : op.left;
  const int count = op.in.size / static_cast<int>(sizeof(T));
  return op.each<T>([&](int i) {
    const int from = static_cast<int>(element_at<T>(index, i) & (2 * count - 1));
    return element_at<T>(from < count ? low : op.right, from & (count - 1));
  });
}

// VPERMPS, VPERMD, VPERMPD, VPERMQ by a vector
template <typename T>
bool permute(Operation& op) {
  const int count = op.in.size / static_cast<int>(sizeof(T));
  return op.each<T>([&](int i) {
    return element_at<T>(op.right, static_cast<int>(element_at<T>(op.left, i) & (count - 1)));
  });
}

// VALIGND, VALIGNQ
template <typename T>
bool align(Operation& op) {
  const int count = op.in.size / static_cast<int>(sizeof(T));
  return op.each<T>([&](int i) {
    const int from = i + (op.in.constant & (count - 1));
    return from < count ? element_at<T>(op.right, from) : element_at<T>(op.left, from - count);
  });
}

// VINSERTF32X4 and its like
bool insert(Operation& op, int bytes) {
  if (op.in.size <= bytes) return false;
  std::memcpy(op.result, op.left, static_cast<size_t>(op.in.size));
  std::memcpy(op.result + (op.in.constant & (op.in.size / bytes - 1)) * bytes, op.right, bytes);
  return true;
}

// VSHUFF32X4 and its like
bool shuffle_lanes(Operation& op) {
  const int bits = op.in.size == 64 ? 2 : 1;
  for (int lane = 0; lane < op.in.size / 16; ++lane) {
    const int from = op.in.constant >> (lane * bits) & ((1 << bits) - 1);
    std::memcpy(op.result + 16 * lane, (lane < op.in.size / 32 ? op.left : op.right) + 16 * from,
                16);
  }
  return true;
}

// VPBLENDMD, VBLENDMPS and their like: the mask chooses the operand.
bool blend(Operation& op) {
  const int bytes = op.in.lane();
  for (int i = 0; i < op.in.size; i += bytes) {
    const bool right = kept(op.in, op.state, i / bytes);
    if (right || !op.in.zeroing) {
      std::memcpy(op.result + i, (right ? op.right : op.left) + i, bytes);
    }
  }
  op.masked = true;
  return true;
}

// VPSHUFHW, VPSHUFLW: four of every eight, from `moved` on
bool shuffle_words(Operation& op, int moved) {
  return op.each<uint16_t>([&](int i) {
    const bool stays = (i & 4) != moved;
    return element_at<uint16_t>(op.right, stays ? i : (i & ~7) + moved + op.chosen(i));
  });
}

bool compute_broadcast(Operation& op) {
  switch (op.in.key()) {
    case 0x2'1'79:  // VPBROADCASTW
      return op.each<uint16_t>([&](int) { return element_at<uint16_t>(op.right, 0); });
    case 0x2'1'18:  // VBROADCASTSS, VPBROADCASTD
    case 0x2'1'58: return op.each<uint32_t>([&](int) { return op.ri(0); });
    case 0x2'1'19:  // VBROADCASTSD, VPBROADCASTQ; with W = 0 VBROADCASTF32X2, VBROADCASTI32X2
    case 0x2'1'59: return op.bits<uint64_t>([&](int) { return op.rq(0); });
    case 0x2'1'1a:  // VBROADCASTF32X4 and its like
    case 0x2'1'5a: return op.bits<uint32_t>([&](int i) { return op.ri(i & 3); });
    case 0x2'1'1b:  // VBROADCASTF32X8 and its like
    case 0x2'1'5b: return op.bits<uint32_t>([&](int i) { return op.ri(i & 7); });
    default: return false;
  }
}

bool compute_shuffle(Operation& op) {
  switch (op.in.key()) {
    case 0x1'2'12: return op.each<uint32_t>([&](int i) { return op.ri(i & ~1); });  // VMOVSLDUP
    case 0x1'2'16: return op.each<uint32_t>([&](int i) { return op.ri(i | 1); });   // VMOVSHDUP
    case 0x1'1'70:                                                                  // VPSHUFD
    case 0x3'1'04:                                                                  // VPERMILPS
      return op.each<uint32_t>([&](int i) { return op.ri((i & ~3) + op.chosen(i)); });
    case 0x1'2'70: return shuffle_words(op, 4);
    case 0x1'3'70: return shuffle_words(op, 0);
    case 0x1'0'c6:  // VSHUFPS
      return op.each<uint32_t>([&](int i) {
        const int from = (i & ~3) + op.chosen(i);
        return i % 4 < 2 ? op.li(from) : op.ri(from);
      });
    case 0x2'1'0c:  // VPERMILPS by a vector
      return op.each<uint32_t>(
          [&](int i) { return op.li((i & ~3) + static_cast<int>(op.ri(i) & 3)); });
    case 0x3'1'05:  // VPERMILPD
      return op.each<uint64_t>([&](int i) { return op.rq((i & ~1) + (op.in.constant >> i & 1)); });
    case 0x3'1'00:  // VPERMQ
      return op.in.wide && op.each<uint64_t>([&](int i) { return op.rq((i & ~3) + op.chosen(i)); });
    case 0x3'1'23:
    case 0x3'1'43: return shuffle_lanes(op);
    default: return false;
  }
}

}  // namespace

bool compute_permutation(Operation& op) {
  const Instruction& in = op.in;
  switch (in.key()) {
    case 0x1'0'14:
    case 0x1'1'14: return unpack(op, in.lane(), false);
    case 0x1'0'15:
    case 0x1'1'15: return unpack(op, in.lane(), true);
    case 0x1'1'61: return unpack(op, 2, false);
    case 0x1'1'69: return unpack(op, 2, true);
    case 0x1'1'62: return unpack(op, 4, false);
    case 0x1'1'6a: return unpack(op, 4, true);
    case 0x1'1'6c: return unpack(op, 8, false);
    case 0x1'1'6d: return unpack(op, 8, true);
    case 0x2'1'75: return in.wide && permute_two<uint16_t>(op, true);    // VPERMI2W
    case 0x2'1'7d: return in.wide && permute_two<uint16_t>(op, false);   // VPERMT2W
    case 0x2'1'77: return !in.wide && permute_two<uint32_t>(op, true);   // VPERMI2PS
    case 0x2'1'7f: return !in.wide && permute_two<uint32_t>(op, false);  // VPERMT2PS
    case 0x2'1'16:
    case 0x2'1'36: return in.wide ? permute<uint64_t>(op) : permute<uint32_t>(op);
    case 0x2'1'64:
    case 0x2'1'65: return blend(op);
    case 0x3'1'03: return in.wide ? align<uint64_t>(op) : align<uint32_t>(op);
    case 0x3'1'18:
    case 0x3'1'38: return insert(op, 16);
    case 0x3'1'1a:
    case 0x3'1'3a: return insert(op, 32);
    default: return compute_broadcast(op) || compute_shuffle(op);
  }
}

}  // namespace weft::test
