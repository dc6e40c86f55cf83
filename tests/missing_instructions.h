// Instructions that this CPU does not have, executed anyway: what tile_amx.cpp and
// tile_avx512bf16.cpp were compiled to, and what Highway made of the products for AVX-512, is run
// on any x86-64, one trap at a time.
//
// An instruction that the CPU does not know raises SIGILL. The handler decodes it, does to tiles
// and vectors of its own, to memory and to the registers of the thread what the manual says (Intel
// SDM, volumes 2 and 1, chapter 18), and goes on behind it. It knows what these sources need and no
// more; anything else is printed and ends the program, as it would have without.
//
//   VEX.0F     KMOV, KORTEST, KAND and its like
//   VEX.0F3A   KSHIFTL, KSHIFTR
//   VEX.0F38   LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS
//   EVEX       VDPBF16PS; moves, arithmetic, conversions, permutations and comparisons
//
// The lower 32 bytes of vectors 0 to 15 are the CPU's own YMM registers. The upper ones are kept
// here, and are cleared when an instruction that the CPU does know writes the vector.
#pragma once

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#include "weft/core/bf16.h"

namespace weft::test {

class MissingInstructions {
 public:
  MissingInstructions() {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
    action.sa_sigaction = step;
    sigaction(SIGTRAP, &action, &before_step_);
  }
  ~MissingInstructions() {
    __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() & ~uint64_t{kTrap});
    sigaction(SIGILL, &before_, nullptr);
    sigaction(SIGTRAP, &before_step_, nullptr);
  }
  MissingInstructions(const MissingInstructions&) = delete;
  MissingInstructions& operator=(const MissingInstructions&) = delete;

 private:
  static constexpr greg_t kTrap = 0x100;  // of the flags: one instruction at a time

  struct State {
    bool configured = false;
    uint8_t tiles[8][16][64];
    uint8_t vectors[32][64];
    uint64_t masks[8];
    const uint8_t* next = nullptr;  // what the CPU executes itself, one step
  };

  static State& state() {
    static thread_local State of_thread;
    return of_thread;
  }

  // One instruction, and the thread it belongs to.
  class Instruction {
   public:
    explicit Instruction(ucontext_t* context)
        : context_(context),
          registers_(context->uc_mcontext.gregs),
          at_(reinterpret_cast<const uint8_t*>(registers_[REG_RIP])),
          begin_(at_) {}

    bool execute() {
      load_vectors();
      const bool known =
          *at_ == 0xc4 || *at_ == 0xc5 ? execute_vex() : *at_ == 0x62 && execute_evex();
      if (!known) return false;
      store_vectors();
      registers_[REG_RIP] = static_cast<greg_t>(reinterpret_cast<uintptr_t>(at_));
      step_while_upper_halves();
      return true;
    }

    // After an instruction of the CPU's own, at `state().next`.
    void stepped() {
      if (state().next == nullptr) {  // a thread that began while its parent went by steps
        registers_[REG_EFL] &= ~kTrap;
        return;
      }
      at_ = state().next;
      const int written = vector_written();
      for (int v = 0; v < 16; ++v) {
        if (written == v || written == kAll) clear_upper(v);
      }
      at_ = reinterpret_cast<const uint8_t*>(registers_[REG_RIP]);
      step_while_upper_halves();
    }

    void print() const {
      std::fprintf(stderr, "an instruction that tests do not emulate:");
      for (int i = 0; i < 12; ++i) std::fprintf(stderr, " %02x", begin_[i]);
      std::fprintf(stderr, "\n");
    }

   private:
    static constexpr int kNone = -1, kAll = 16;

    // The CPU clears the upper half of a vector that a VEX instruction writes, and it does not
    // tell: so while there are upper halves, it executes one instruction at a time.
    void step_while_upper_halves() {
      bool any = false;
      for (int v = 0; v < 16; ++v) {
        for (int i = 32; i < 64; ++i) any = any || state().vectors[v][i] != 0;
      }
      registers_[REG_EFL] = any ? registers_[REG_EFL] | kTrap : registers_[REG_EFL] & ~kTrap;
      state().next = at_;
    }

    static void clear_upper(int vector) { std::memset(state().vectors[vector] + 32, 0, 32); }

    // Which vector a VEX instruction writes.
    int vector_written() {
      while (*at_ == 0x64 || *at_ == 0x65 || *at_ == 0x67) ++at_;  // prefixes of an address
      if (*at_ != 0xc4 && *at_ != 0xc5) return kNone;
      read_vex();
      if (map_ == 1 && opcode_ == 0x77) return kAll;  // VZEROUPPER
      read_modrm(/*displacement_of=*/1);
      const int to_rm = memory_ ? kNone : rm_;
      if (map_ == 1) {
        switch (opcode_) {
          case 0x11:
          case 0x29:
          case 0x7f:
          case 0xd6: return to_rm;
          case 0x71:
          case 0x72:
          case 0x73: return third_;
          case 0x7e: return prefix_ == 2 ? reg_ : kNone;
          case 0x13:
          case 0x17:
          case 0x2b:
          case 0x2c:
          case 0x2d:
          case 0x2e:
          case 0x2f:
          case 0x50:
          case 0xae:
          case 0xc5:
          case 0xd7:
          case 0xe7: return kNone;
          default: return reg_;
        }
      }
      if (map_ == 2) {
        if (opcode_ >= 0x90 && opcode_ <= 0x93) clear_upper(third_);  // a gather's mask
        const bool general = opcode_ >= 0xf0;                         // BMI
        const bool stores = opcode_ == 0x2e || opcode_ == 0x2f || opcode_ == 0x8e;
        const bool tests = opcode_ == 0x0e || opcode_ == 0x0f || opcode_ == 0x17;
        return general || stores || tests ? kNone : reg_;
      }
      if (opcode_ == 0x19 || opcode_ == 0x39 || opcode_ == 0x1d) return to_rm;  // VEXTRACTF128
      return (opcode_ >= 0x14 && opcode_ <= 0x17) || opcode_ >= 0xf0 ? kNone : reg_;
    }

    void read_vex() {
      const bool longer = *at_ == 0xc4;
      const uint8_t first = at_[1], second = longer ? at_[2] : at_[1];
      opcode_ = at_[longer ? 3 : 2];
      at_ += longer ? 4 : 3;
      r_ = (first & 0x80) == 0;
      x_ = longer && (first & 0x40) == 0, b_ = longer && (first & 0x20) == 0;
      map_ = longer ? first & 0x1f : 1;
      prefix_ = second & 3;
      wide_ = longer && (second & 0x80) != 0;
      third_ = ~(second >> 3) & 15;
    }

    bool execute_vex() {
      read_vex();
      if (map_ == 1) return execute_mask();
      if (map_ == 3) return shift_mask();
      return map_ == 2 && !wide_ && execute_tile();
    }

    // Of as many bits as the prefix says.
    bool execute_mask() {
      read_modrm(/*displacement_of=*/1);
      uint64_t* masks = state().masks;
      const bool of_masks = opcode_ == 0x90 || opcode_ == 0x91 || opcode_ == 0x98;
      const size_t bytes = of_masks ? (wide_ ? 8 : 2) / (prefix_ == 1 ? 2 : 1)
                                    : (prefix_ == 3   ? (wide_ ? 8 : 4)
                                       : prefix_ == 1 ? 1
                                                      : 2);
      uint64_t value = 0;
      if (opcode_ >= 0x41 && opcode_ <= 0x47 && !memory_) {
        const size_t width = (wide_ ? 8 : 2) / (prefix_ == 1 ? 2 : 1);
        value = combined(masks[third_ & 7], masks[rm_ & 7]);
        masks[reg_ & 7] = 0;
        std::memcpy(&masks[reg_ & 7], &value, width);
        return opcode_ != 0x43;
      }
      switch (opcode_) {
        case 0x90:
          std::memcpy(&value, memory_ ? address_ : reinterpret_cast<uint8_t*>(&masks[rm_ & 7]),
                      bytes);
          masks[reg_ & 7] = value;
          return true;
        case 0x91: std::memcpy(address_, &masks[reg_ & 7], bytes); return memory_;
        case 0x92:
          std::memcpy(&value, &registers_[place(rm_)], bytes);
          masks[reg_ & 7] = value;
          return !memory_;
        case 0x93:
          std::memcpy(&value, &masks[rm_ & 7], bytes);
          registers_[place(reg_)] = static_cast<greg_t>(value);
          return !memory_;
        case 0x98: {  // KORTEST
          value = masks[reg_ & 7] | masks[rm_ & 7];
          const uint64_t all = bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * bytes) - 1;
          constexpr greg_t kCarry = 0x01, kZero = 0x40, kFlags = 0x8d5;
          registers_[REG_EFL] &= ~kFlags;
          if ((value & all) == 0) registers_[REG_EFL] |= kZero;
          if ((value & all) == all) registers_[REG_EFL] |= kCarry;
          return !memory_;
        }
        default: return false;
      }
    }

    // KAND, KANDN, KNOT, KOR, KXNOR, KXOR
    uint64_t combined(uint64_t a, uint64_t b) const {
      switch (opcode_) {
        case 0x41: return a & b;
        case 0x42: return ~a & b;
        case 0x44: return ~b;
        case 0x45: return a | b;
        case 0x46: return ~(a ^ b);
        default: return a ^ b;
      }
    }

    // KSHIFTL, KSHIFTR
    bool shift_mask() {
      read_modrm(/*displacement_of=*/1);
      const int by = *at_++;
      if (opcode_ < 0x30 || opcode_ > 0x33 || memory_) return false;
      const int bits = (opcode_ & 1) != 0 ? (wide_ ? 64 : 32) : (wide_ ? 16 : 8);
      const uint64_t all = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
      const uint64_t value = state().masks[rm_ & 7] & all;
      state().masks[reg_ & 7] =
          by >= bits ? 0 : (opcode_ >= 0x32 ? value << by : value >> by) & all;
      return true;
    }

    bool execute_tile() {
      const int opcode = opcode_, prefix = prefix_, third = third_ & 7;
      read_modrm(/*displacement_of=*/1);
      State& s = state();
      if (opcode == 0x49 && prefix == 0 && memory_) {  // LDTILECFG
        s.configured = check_config(address_);
        return s.configured;
      }
      if (opcode == 0x49 && prefix == 0) {  // TILERELEASE
        s.configured = false;
        return true;
      }
      if (!s.configured) return false;                  // the CPU would refuse as well
      if (opcode == 0x49 && prefix == 3 && !memory_) {  // TILEZERO
        std::memset(s.tiles[reg_ & 7], 0, 1024);
        return true;
      }
      if (opcode == 0x4b && memory_) {  // TILELOADD, TILESTORED
        for (int row = 0; row < 16; ++row) {
          uint8_t* line = base_ + static_cast<int64_t>(index_) * row;
          if (prefix == 3) std::memcpy(s.tiles[reg_ & 7][row], line, 64);
          if (prefix == 2) std::memcpy(line, s.tiles[reg_ & 7][row], 64);
        }
        return prefix == 2 || prefix == 3;
      }
      if (opcode == 0x5c && prefix == 2 && !memory_) {  // TDPBF16PS
        multiply_tiles(s.tiles[reg_ & 7], s.tiles[rm_ & 7], s.tiles[third]);
        return true;
      }
      return false;
    }

    // All but moves and comparisons compute a whole vector from whole vectors; then come the mask
    // and the destination.
    bool execute_evex() {
      const uint8_t p0 = at_[1], p1 = at_[2], p2 = at_[3];
      opcode_ = at_[4];
      at_ += 5;
      r_ = (p0 & 0x80) == 0, x_ = (p0 & 0x40) == 0, b_ = (p0 & 0x20) == 0;
      high_r_ = (p0 & 0x10) == 0;
      map_ = p0 & 7, prefix_ = p1 & 3, size_ = 16 << (p2 >> 5 & 3);
      wide_ = (p1 & 0x80) != 0;
      third_ = (~(p1 >> 3) & 15) | ((p2 & 0x08) == 0 ? 16 : 0);
      broadcast_ = (p2 & 0x10) != 0;
      mask_ = p2 & 7;
      zeroing_ = (p2 & 0x80) != 0;
      read_modrm(displacement_unit());
      if (moves_general()) return true;
      if (broadcast_ && !memory_) return false;  // rounding of its own
      State& s = state();
      const uint8_t* left = s.vectors[third_];
      uint8_t right[64] = {}, result[64] = {};
      if (!stores()) load_right(right);
      if (compares(left, right)) return true;
      int element = wide_ ? 8 : 4;
      if (stores()) return store();
      if (!compute(left, right, result, element)) return false;
      // Shifts by a constant have their destination in the third operand.
      const bool shift = map_ == 1 && (opcode_ == 0x72 || opcode_ == 0x73);
      put(s.vectors[shift ? third_ : vector_of_reg()], result, element);
      return true;
    }

    int vector_of_reg() const { return reg_ | (high_r_ ? 16 : 0); }
    int vector_of_rm() const { return (rm_ & 15) | (x_ ? 16 : 0); }

    // In which units a displacement of one byte counts: what the memory operand has.
    int displacement_unit() const {
      const int element = wide_ ? 8 : 4;
      if (broadcast_) return element;
      if (map_ == 1) {
        if (opcode_ == 0x6e || opcode_ == 0x7e || opcode_ == 0xd6) return element;
        const bool widens = (opcode_ == 0x5a && prefix_ == 0) || (opcode_ == 0xe6 && !wide_);
        if (widens) return size_ / 2;
        if (opcode_ == 0xd2 || opcode_ == 0xd3 || opcode_ == 0xf2 || opcode_ == 0xf3) return 16;
        if (opcode_ == 0x78 || opcode_ == 0x7b) return element;
        const bool scalar =
            prefix_ >= 2 && (opcode_ == 0x10 || opcode_ == 0x11 ||
                             (opcode_ >= 0x51 && opcode_ <= 0x5f && opcode_ != 0x5b));
        return scalar ? (prefix_ == 2 ? 4 : 8) : size_;
      }
      if (map_ == 2) {
        switch (opcode_) {
          case 0x18: return 4;
          case 0x19: return 8;
          case 0x1a:
          case 0x5a: return 16;
          case 0x1b:
          case 0x5b: return 32;
          case 0x33:
          case 0x35: return size_ / 2;
          case 0x58: return 4;
          case 0x59: return 8;
          case 0x79: return 2;
          default: return is_scalar_fma() ? element : size_;
        }
      }
      switch (opcode_) {
        case 0x17: return 4;
        case 0x18:
        case 0x19:
        case 0x38:
        case 0x39: return 16;
        case 0x1a:
        case 0x1b:
        case 0x3a:
        case 0x3b: return 32;
        default: return size_;
      }
    }
    bool is_scalar_fma() const {
      return map_ == 2 && (opcode_ & 0x09) == 0x09 && opcode_ >= 0x99 && opcode_ <= 0xbf;
    }

    // How many bytes an instruction reads from memory.
    int bytes_to_read() const {
      if (broadcast_) return wide_ ? 8 : 4;
      return std::min(displacement_unit(), 64);
    }

    void load_right(uint8_t (&right)[64]) const {
      if (!memory_) {
        std::memcpy(right, state().vectors[vector_of_rm()], 64);
        return;
      }
      const int bytes = bytes_to_read();
      const bool move = map_ == 1 && (opcode_ == 0x10 || opcode_ == 0x28 || opcode_ == 0x6f);
      const int element = move_element();
      for (int i = 0; i < bytes; i += element) {
        // What a mask leaves out of a move may lie where there is no memory.
        if (!move || kept(i / element)) {
          std::memcpy(right + i, address_ + i, static_cast<size_t>(element));
        }
      }
      if (!broadcast_) return;
      for (int i = bytes; i < size_; i += bytes) std::memcpy(right + i, right, bytes);
    }

    bool kept(int element) const {
      return mask_ == 0 || (state().masks[mask_] >> element & 1) != 0;
    }
    // VMOVDQU8 and VMOVDQU16 have elements of their own.
    int move_element() const {
      const bool small = map_ == 1 && prefix_ == 3 && (opcode_ == 0x6f || opcode_ == 0x7f);
      return small ? (wide_ ? 2 : 1) : std::min(wide_ ? 8 : 4, bytes_to_read());
    }

    void put(uint8_t* to, const uint8_t* result, int element) const {
      uint8_t merged[64] = {};
      for (int i = 0; i < size_; i += element) {
        const bool whole = kept(i / element);
        if (whole || !zeroing_) std::memcpy(merged + i, (whole ? result : to) + i, element);
      }
      std::memcpy(to, merged, 64);
    }

    // VMOVD and VMOVQ between vectors and general registers or memory, and broadcasts from the
    // former.
    bool moves_general() {
      uint8_t* vector = state().vectors[vector_of_reg()];
      const size_t bytes = wide_ ? 8 : 4;
      uint8_t result[64] = {};
      if (map_ == 1 && prefix_ == 1 && opcode_ == 0x6e) {
        const int64_t value = memory_ ? 0 : general(rm_ & 15);
        std::memcpy(result, memory_ ? address_ : reinterpret_cast<const uint8_t*>(&value), bytes);
      } else if (map_ == 1 && prefix_ == 2 && opcode_ == 0x7e && wide_) {
        std::memcpy(result, memory_ ? address_ : state().vectors[vector_of_rm()], 8);
      } else if (map_ == 1 && prefix_ == 1 && (opcode_ == 0x7e || opcode_ == 0xd6) && memory_) {
        std::memcpy(address_, vector, bytes);
        return true;
      } else if (map_ == 1 && prefix_ == 1 && opcode_ == 0x7e) {
        registers_[place(rm_ & 15)] = 0;
        std::memcpy(&registers_[place(rm_ & 15)], vector, bytes);
        return true;
      } else if (map_ == 2 && prefix_ == 1 && opcode_ >= 0x7a && opcode_ <= 0x7c && !memory_) {
        const int64_t value = general(rm_ & 15);
        const int element = opcode_ == 0x7a ? 1 : opcode_ == 0x7b ? 2 : static_cast<int>(bytes);
        for (int i = 0; i < size_; i += element) std::memcpy(result + i, &value, element);
        put(vector, result, element);
        return true;
      } else if (map_ == 1 && prefix_ == 3 && opcode_ == 0x78 && !memory_) {  // VCVTTSD2USI
        const auto value = at<double>(state().vectors[vector_of_rm()], 0);
        registers_[place(reg_)] = static_cast<greg_t>(wide_ ? static_cast<uint64_t>(value)
                                                            : static_cast<uint32_t>(value));
        return true;
      } else if (map_ == 1 && prefix_ == 3 && opcode_ == 0x7b && !memory_) {  // VCVTUSI2SD
        const auto value = static_cast<uint64_t>(general(rm_ & 15));
        const double wide =
            wide_ ? static_cast<double>(value) : static_cast<double>(static_cast<uint32_t>(value));
        std::memcpy(result, state().vectors[third_], 16);
        std::memcpy(result, &wide, 8);
      } else {
        return false;
      }
      std::memcpy(vector, result, 64);
      return true;
    }

    // Comparisons give a mask.
    bool compares(const uint8_t* left, const uint8_t* right) {
      if (map_ == 3 && opcode_ == 0x66 && (*at_ & 0x60) == 0) {
        const int how = *at_++;
        return wide_ ? found<double>([&](int i) { return is_of_class(at<double>(right, i), how); })
                     : found<float>([&](int i) { return is_of_class(at<float>(right, i), how); });
      }
      if (map_ == 1 && opcode_ == 0xc2 && prefix_ < 2) {
        const int how = *at_++;
        return wide_ ? compared<double>(left, right, how) : compared<float>(left, right, how);
      }
      if (map_ == 3 && opcode_ == 0x1e) {
        const int how = *at_++;
        return wide_ ? compared<uint64_t>(left, right, how) : compared<uint32_t>(left, right, how);
      }
      if (map_ == 3 && opcode_ == 0x1f) {
        const int how = *at_++;
        return wide_ ? compared<int64_t>(left, right, how) : compared<int32_t>(left, right, how);
      }
      if (map_ == 1 && opcode_ == 0x76) return compared<int32_t>(left, right, 0);
      if (map_ == 1 && opcode_ == 0x66) return compared<int32_t>(left, right, 6);
      if (map_ == 2 && opcode_ == 0x27 && !wide_) {  // VPTESTMD, VPTESTNMD
        return found<uint32_t>([&](int i) {
          return ((at<uint32_t>(left, i) & at<uint32_t>(right, i)) != 0) == (prefix_ == 1);
        });
      }
      return false;
    }
    template <typename T, typename F>
    bool found(F f) const {
      uint64_t bits = 0;
      for (int i = 0; i < size_ / static_cast<int>(sizeof(T)); ++i) {
        if (kept(i) && f(i)) bits |= uint64_t{1} << i;
      }
      state().masks[reg_ & 7] = bits;
      return true;
    }
    template <typename T>
    bool compared(const uint8_t* left, const uint8_t* right, int how) const {
      return found<T>([&](int i) { return holds(at<T>(left, i), at<T>(right, i), how); });
    }
    // Of integers three bits say which, of floats four: half of the sixteen are true of a NaN.
    template <typename T>
    static bool holds(T l, T r, int how) {
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
    static bool is_of_class(double value, int classes) {
      const bool minus = std::signbit(value), zero = value == 0;
      return ((classes & 0x81) != 0 && std::isnan(value)) ||
             ((classes & 0x02) != 0 && zero && !minus) ||
             ((classes & 0x04) != 0 && zero && minus) ||
             ((classes & 0x08) != 0 && std::isinf(value) && !minus) ||
             ((classes & 0x10) != 0 && std::isinf(value) && minus);
    }

    bool stores() const {
      if (map_ == 1) return opcode_ == 0x7f || opcode_ == 0x11 || opcode_ == 0x29;
      if (map_ == 3 && opcode_ == 0x17) return memory_;  // VEXTRACTPS
      return map_ == 3 &&
             (opcode_ == 0x19 || opcode_ == 0x1b || opcode_ == 0x39 || opcode_ == 0x3b);
    }
    // To memory or to the register of the other operand: vectors, a number, or a part of a vector.
    bool store() {
      const uint8_t* from = state().vectors[vector_of_reg()];
      int bytes = displacement_unit();
      if (map_ == 3) from += (*at_++ & (size_ / bytes - 1)) * bytes;
      const int element = map_ == 3 ? (wide_ ? 8 : 4) : move_element();
      if (map_ == 1 && bytes < 16 && !memory_) return false;
      uint8_t merged[64] = {};
      uint8_t* to = memory_ ? address_ : state().vectors[vector_of_rm()];
      for (int i = 0; i < bytes; i += element) {
        const bool whole = kept(i / element);
        if (memory_ && whole) std::memcpy(to + i, from + i, static_cast<size_t>(element));
        if (!memory_ && (whole || !zeroing_))
          std::memcpy(merged + i, (whole ? from : to) + i, element);
      }
      if (!memory_) std::memcpy(to, merged, 64);
      return true;
    }

    template <typename T>
    static T at(const uint8_t* vector, int index) {
      T value;
      std::memcpy(&value, vector + static_cast<size_t>(index) * sizeof(T), sizeof(T));
      return value;
    }
    // result[i] = f(i), for elements of type T.
    template <typename T, typename F>
    bool each(uint8_t* result, int& element, F f) const {
      element = sizeof(T);
      for (int i = 0; i < size_ / static_cast<int>(sizeof(T)); ++i) {
        const T value = f(i);
        std::memcpy(result + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
      }
      return true;
    }

    // The same for operations on bits, with elements that only a mask tells apart.
    template <typename F>
    bool bits(uint8_t* result, int& element, F f) const {
      each<uint32_t>(result, element, f);
      element = wide_ ? 8 : 4;
      return true;
    }

    // A result of half the length, behind which there are zeros.
    template <typename T, typename F>
    bool each_half(uint8_t* result, int& element, F f) const {
      if (mask_ != 0) return false;
      uint8_t twice[64] = {};
      const int count = size_ / 2 / static_cast<int>(sizeof(T));
      each<T>(twice, element, [&](int i) { return i < count ? f(i) : T{}; });
      std::memcpy(result, twice, 64);
      return true;
    }

    bool compute(const uint8_t* left, const uint8_t* right, uint8_t* result, int& element) {
      switch (map_) {
        case 1: return compute_first(left, right, result, element);
        case 2: return compute_second(left, right, result, element);
        case 3: return compute_third(left, right, result, element);
        default: return false;
      }
    }

    // Map 0F.
    bool compute_first(const uint8_t* left, const uint8_t* right, uint8_t* result, int& element) {
      const auto l = [&](int i) { return at<float>(left, i); };
      const auto r = [&](int i) { return at<float>(right, i); };
      const auto li = [&](int i) { return at<uint32_t>(left, i); };
      const auto ri = [&](int i) { return at<uint32_t>(right, i); };
      const bool scalar = prefix_ == 2;  // of floats
      switch (opcode_) {
        case 0x10:
        case 0x28:
        case 0x6f:
          if (opcode_ == 0x10 && prefix_ >= 2 && !memory_) return false;
          element = move_element();
          std::memcpy(result, right, 64);
          return true;
        case 0x12: return scalar && each<float>(result, element, [&](int i) { return r(i & ~1); });
        case 0x16: return scalar && each<float>(result, element, [&](int i) { return r(i | 1); });
        case 0x14:
        case 0x15: return unpack(wide_ ? 8 : 4, opcode_ == 0x15, left, right, result);
        case 0x61:
        case 0x69: return (element = 2, unpack(2, opcode_ == 0x69, left, right, result));
        case 0x62:
        case 0x6a: return unpack(4, opcode_ == 0x6a, left, right, result);
        case 0x6c:
        case 0x6d: return unpack(8, opcode_ == 0x6d, left, right, result);
        case 0x54:
        case 0xdb: return bits(result, element, [&](int i) { return li(i) & ri(i); });
        case 0x55:
        case 0xdf: return bits(result, element, [&](int i) { return ~li(i) & ri(i); });
        case 0x56:
        case 0xeb: return bits(result, element, [&](int i) { return li(i) | ri(i); });
        case 0x57:
        case 0xef: return bits(result, element, [&](int i) { return li(i) ^ ri(i); });
        case 0xfe: return each<uint32_t>(result, element, [&](int i) { return li(i) + ri(i); });
        case 0xfa: return each<uint32_t>(result, element, [&](int i) { return li(i) - ri(i); });
        case 0xd2:
        case 0xd3:
        case 0xf2:
        case 0xf3: {  // shifts by what another vector says
          const auto by = at<uint64_t>(right, 0);
          const bool down = opcode_ < 0xe0;
          if ((opcode_ & 1) != 0) {
            return each<uint64_t>(result, element, [&](int i) {
              const auto value = at<uint64_t>(left, i);
              return by > 63 ? 0 : down ? value >> by : value << by;
            });
          }
          return each<uint32_t>(result, element, [&](int i) {
            return by > 31 ? 0 : down ? li(i) >> by : li(i) << by;
          });
        }
        case 0xd4:
          return each<uint64_t>(result, element, [&](int i) {
            return at<uint64_t>(left, i) + at<uint64_t>(right, i);
          });
        case 0xd5:
        case 0xfd:
          return each<uint16_t>(result, element, [&](int i) {
            const unsigned a = at<uint16_t>(left, i), b = at<uint16_t>(right, i);
            return static_cast<uint16_t>(opcode_ == 0xd5 ? a * b : a + b);
          });
        case 0xf4:
          return each<uint64_t>(result, element,
                                [&](int i) { return uint64_t{li(2 * i)} * ri(2 * i); });
        case 0x51:
        case 0x58:
        case 0x59:
        case 0x5c:
        case 0x5d:
        case 0x5e:
        case 0x5f:
          if (prefix_ == 1 || prefix_ == 3) {
            return each<double>(result, element, [&](int i) {
              const auto a = at<double>(left, i), b = at<double>(right, i);
              return prefix_ == 3 && i > 0 ? a : arithmetic(a, b);
            });
          }
          return each<float>(result, element, [&](int i) {
            return scalar && i > 0 ? l(i) : arithmetic(l(i), r(i));
          });
        case 0x5a:  // between floats and doubles
          if (prefix_ == 0) {
            return each<double>(result, element, [&](int i) { return double{r(i)}; });
          }
          return prefix_ == 1 && each_half<float>(result, element, [&](int i) {
                   return static_cast<float>(at<double>(right, i));
                 });
        case 0x5b:  // between floats and integers
          if (wide_) return false;
          if (prefix_ == 0) {
            return each<float>(result, element,
                               [&](int i) { return static_cast<float>(at<int32_t>(right, i)); });
          }
          return each<int32_t>(result, element, [&](int i) {
            return integer(prefix_ == 2 ? r(i) : std::nearbyint(r(i)));
          });
        case 0xe6:  // between doubles and integers
          if (prefix_ == 2) {
            return each<double>(result, element, [&](int i) {
              return wide_ ? static_cast<double>(at<int64_t>(right, i))
                           : static_cast<double>(at<int32_t>(right, i));
            });
          }
          return prefix_ == 1 && each_half<int32_t>(result, element, [&](int i) {
                   return integer(at<double>(right, i));
                 });
        case 0x70: {
          const int by = *at_++;
          if (prefix_ >= 2) {  // VPSHUFHW, VPSHUFLW: four of every eight
            const int moved = prefix_ == 2 ? 4 : 0;
            return each<uint16_t>(result, element, [&](int i) {
              const bool stays = (i & 4) != moved;
              return at<uint16_t>(right, stays ? i : (i & ~7) + moved + (by >> (i % 4 * 2) & 3));
            });
          }
          return prefix_ == 1 && each<uint32_t>(result, element, [&](int i) {
                   return ri((i & ~3) + (by >> (i % 4 * 2) & 3));
                 });
        }
        case 0x73: {
          const int by = *at_++;
          const int kind = reg_ & 7;
          return (kind == 2 || kind == 6) && by < 64 && each<uint64_t>(result, element, [&](int i) {
                   const auto value = at<uint64_t>(right, i);
                   return kind == 2 ? value >> by : value << by;
                 });
        }
        case 0x72: {
          const int by = *at_++;
          const int kind = reg_ & 7;
          return !wide_ && (kind == 2 || kind == 4 || kind == 6) && by < 32 &&
                 each<uint32_t>(result, element, [&](int i) {
                   if (kind == 4) return static_cast<uint32_t>(at<int32_t>(right, i) >> by);
                   return kind == 2 ? ri(i) >> by : ri(i) << by;
                 });
        }
        case 0xc6: {
          const int by = *at_++;
          return prefix_ == 0 && each<float>(result, element, [&](int i) {
                   const int from = (i & ~3) + (by >> (i % 4 * 2) & 3);
                   return i % 4 < 2 ? l(from) : r(from);
                 });
        }
        default: return false;
      }
    }
    // Towards zero; what does not fit is the least.
    static int32_t integer(double value) {
      return value > -0x1p31 - 1 && value < 0x1p31 ? static_cast<int32_t>(value) : INT32_MIN;
    }
    template <typename T>
    T arithmetic(T l, T r) const {
      switch (opcode_) {
        case 0x51: return std::sqrt(r);
        case 0x58: return l + r;
        case 0x59: return l * r;
        case 0x5c: return l - r;
        case 0x5d: return l < r ? l : r;
        case 0x5e: return l / r;
        default: return l > r ? l : r;
      }
    }
    bool unpack(int bytes, bool upper, const uint8_t* left, const uint8_t* right,
                uint8_t* result) const {
      for (int lane = 0; lane < size_; lane += 16) {
        for (int i = 0; i < 8 / bytes; ++i) {
          const int from = lane + (upper ? 8 : 0) + bytes * i;
          std::memcpy(result + lane + 2 * bytes * i, left + from, bytes);
          std::memcpy(result + lane + 2 * bytes * i + bytes, right + from, bytes);
        }
      }
      return true;
    }

    // Map 0F38.
    bool compute_second(const uint8_t* left, const uint8_t* right, uint8_t* result, int& element) {
      const auto r = [&](int i) { return at<float>(right, i); };
      const auto li = [&](int i) { return at<uint32_t>(left, i); };
      const auto ri = [&](int i) { return at<uint32_t>(right, i); };
      const int count = size_ / 4;
      const uint8_t* old = state().vectors[vector_of_reg()];
      if (prefix_ == 2 && opcode_ == 0x52) {  // VDPBF16PS
        std::memcpy(result, old, static_cast<size_t>(size_));
        for (int i = 0; i < size_; i += 4) add_pair(result + i, left + i, right + i);
        return true;
      }
      if (prefix_ == 2 && opcode_ == 0x38) {  // VPMOVM2D, VPMOVM2Q
        const uint64_t mask = state().masks[rm_ & 7];
        if (wide_) {
          return each<uint64_t>(result, element, [&](int i) { return -(mask >> i & 1); });
        }
        return each<uint32_t>(result, element,
                              [&](int i) { return -static_cast<uint32_t>(mask >> i & 1); });
      }
      if (prefix_ != 1) return false;
      const auto ls = [&](int i) { return at<int32_t>(left, i); };
      const auto rs = [&](int i) { return at<int32_t>(right, i); };
      switch (opcode_) {
        case 0x1e: return each<int32_t>(result, element, [&](int i) { return std::abs(rs(i)); });
        case 0x39:
          return !wide_ &&
                 each<int32_t>(result, element, [&](int i) { return std::min(ls(i), rs(i)); });
        case 0x3d:
          return !wide_ &&
                 each<int32_t>(result, element, [&](int i) { return std::max(ls(i), rs(i)); });
        case 0x35: return each<uint64_t>(result, element, [&](int i) { return uint64_t{ri(i)}; });
        case 0x77:
        case 0x7f: {  // VPERMI2PS, VPERMT2PS
          const uint8_t* low = opcode_ == 0x77 ? left : old;
          const uint8_t* index = opcode_ == 0x77 ? old : left;
          return !wide_ && each<float>(result, element, [&](int i) {
            const int from = static_cast<int>(at<uint32_t>(index, i)) & (2 * count - 1);
            return at<float>(from < count ? low : right, from & (count - 1));
          });
        }
        case 0x0c:
          return each<float>(result, element, [&](int i) {
            return at<float>(left, (i & ~3) + static_cast<int>(ri(i) & 3));
          });
        case 0x16:
        case 0x36:
          if (wide_) {
            return each<double>(result, element, [&](int i) {
              const auto from = static_cast<int>(at<uint64_t>(left, i));
              return at<double>(right, from & (count / 2 - 1));
            });
          }
          return each<float>(result, element,
                             [&](int i) { return r(static_cast<int>(li(i)) & (count - 1)); });
        case 0x2b:  // VPACKUSDW
          return each<uint16_t>(result, element, [&](int i) {
            const int from = i / 8 * 4 + i % 4;
            const int32_t value = i % 8 < 4 ? ls(from) : rs(from);
            return static_cast<uint16_t>(std::clamp(value, 0, 0xffff));
          });
        case 0x18:
        case 0x58: return each<float>(result, element, [&](int) { return r(0); });
        case 0x19:
        case 0x59: return each<double>(result, element, [&](int) { return at<double>(right, 0); });
        case 0x1a:
        case 0x5a: return each<float>(result, element, [&](int i) { return r(i & 3); });
        case 0x5b:
        case 0x1b: return each<float>(result, element, [&](int i) { return r(i & 7); });
        case 0x79:
          return each<uint16_t>(result, element, [&](int) { return at<uint16_t>(right, 0); });
        case 0x33:
          return each<uint32_t>(result, element,
                                [&](int i) { return uint32_t{at<uint16_t>(right, i)}; });
        case 0x40:
          if (wide_) {
            return each<uint64_t>(result, element, [&](int i) {
              return at<uint64_t>(left, i) * at<uint64_t>(right, i);
            });
          }
          return each<uint32_t>(result, element, [&](int i) { return li(i) * ri(i); });
        case 0x45:
          return !wide_ && each<uint32_t>(result, element,
                                          [&](int i) { return ri(i) < 32 ? li(i) >> ri(i) : 0; });
        case 0x47:
          return !wide_ && each<uint32_t>(result, element,
                                          [&](int i) { return ri(i) < 32 ? li(i) << ri(i) : 0; });
        case 0x64:
        case 0x65: {  // what the mask does not keep is the left operand's
          const int bytes = wide_ ? 8 : 4;
          for (int i = 0; i < size_; i += bytes) {
            std::memcpy(result + i, (kept(i / bytes) ? right : left) + i, bytes);
          }
          mask_ = 0;
          return true;
        }
        case 0x75:
        case 0x7d: {  // VPERMI2W, VPERMT2W: the former has its indices in the destination
          const uint8_t* low = opcode_ == 0x75 ? left : old;
          const uint8_t* index = opcode_ == 0x75 ? old : left;
          const int half = size_ / 2;
          return wide_ && each<uint16_t>(result, element, [&](int i) {
                   const int from = at<uint16_t>(index, i) & (2 * half - 1);
                   return at<uint16_t>(from < half ? low : right, from & (half - 1));
                 });
        }
        default: return multiply_add(left, right, old, result, element);
      }
    }
    // VFMADD132PS, 213, 231 and their like with signs; of floats and doubles, and of one.
    bool multiply_add(const uint8_t* left, const uint8_t* right, const uint8_t* old,
                      uint8_t* result, int& element) const {
      const int form = opcode_ >> 4, kind = opcode_ & 0x0f;
      if (form < 9 || form > 0xb || kind < 8 || kind > 0xf) return false;
      return wide_ ? multiply_add_of<double>(left, right, old, result, element)
                   : multiply_add_of<float>(left, right, old, result, element);
    }
    template <typename T>
    bool multiply_add_of(const uint8_t* left, const uint8_t* right, const uint8_t* old,
                         uint8_t* result, int& element) const {
      const int form = opcode_ >> 4, kind = opcode_ & 0x0f;
      const bool scalar = (kind & 1) != 0;
      const T product_sign = kind >= 0xc ? -1 : 1, sum_sign = (kind & 2) != 0 ? -1 : 1;
      return each<T>(result, element, [&](int i) {
        const T a = at<T>(old, i), b = at<T>(left, i), c = at<T>(right, i);
        if (scalar && i > 0) return a;
        const T x = form == 0xb ? b : a, y = form == 0xa ? b : c;
        const T sum = form == 9 ? b : form == 0xa ? c : a;
        return std::fma(product_sign * x, y, sum_sign * sum);
      });
    }

    // Map 0F3A: with a constant.
    bool compute_third(const uint8_t* left, const uint8_t* right, uint8_t* result, int& element) {
      const int by = *at_++;
      const auto r = [&](int i) { return at<float>(right, i); };
      const int part = opcode_ == 0x1a || opcode_ == 0x3a ? 32 : 16;
      switch (opcode_) {
        case 0x00:  // VPERMQ
          return wide_ && each<double>(result, element, [&](int i) {
                   return at<double>(right, (i & ~3) + (by >> (i % 4 * 2) & 3));
                 });
        case 0x03:  // VALIGND, VALIGNQ
          if (wide_) {
            return each<double>(result, element, [&](int i) {
              const int from = i + (by & (size_ / 8 - 1));
              return from < size_ / 8 ? at<double>(right, from)
                                      : at<double>(left, from - size_ / 8);
            });
          }
          return each<float>(result, element, [&](int i) {
            const int from = i + (by & (size_ / 4 - 1));
            return from < size_ / 4 ? r(from) : at<float>(left, from - size_ / 4);
          });
        case 0x04:
          return each<float>(result, element,
                             [&](int i) { return r((i & ~3) + (by >> (i % 4 * 2) & 3)); });
        case 0x05:  // VPERMILPD
          return each<uint64_t>(result, element, [&](int i) {
            return at<uint64_t>(right, (i & ~1) + (by >> i & 1));
          });
        case 0x18:
        case 0x1a:
        case 0x38:
        case 0x3a:  // VINSERTF32X4 and its like
          std::memcpy(result, left, static_cast<size_t>(size_));
          std::memcpy(result + (by & (size_ / part - 1)) * part, right, static_cast<size_t>(part));
          return true;
        case 0x23:
        case 0x43:  // VSHUFF32X4
          for (int lane = 0; lane < size_ / 16; ++lane) {
            const int bits = size_ == 64 ? 2 : 1;
            const int from = by >> (lane * bits) & ((1 << bits) - 1);
            std::memcpy(result + 16 * lane, (lane < size_ / 32 ? left : right) + 16 * from, 16);
          }
          return true;
        case 0x25:  // VPTERNLOG
          return bits(result, element, [&](int i) {
            const auto a = at<uint32_t>(state().vectors[vector_of_reg()], i);
            const auto b = at<uint32_t>(left, i), c = at<uint32_t>(right, i);
            uint32_t bits = 0;
            for (int bit = 0; bit < 32; ++bit) {
              const int which =
                  static_cast<int>((a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1));
              bits |= static_cast<uint32_t>(by >> which & 1) << bit;
            }
            return bits;
          });
        default: return false;
      }
    }

    // The operands of the ModRM byte and what follows; displacements of a byte count in units.
    void read_modrm(int displacement_of) {
      const uint8_t modrm = *at_++;
      const int mode = modrm >> 6;
      reg_ = (modrm >> 3 & 7) | (r_ ? 8 : 0);
      rm_ = (modrm & 7) | (b_ ? 8 : 0);
      memory_ = mode != 3;
      if (!memory_) return;
      int64_t base = 0;
      index_ = 0;
      if ((modrm & 7) == 4) {
        const uint8_t sib = *at_++;
        const int index = (sib >> 3 & 7) | (x_ ? 8 : 0), from = (sib & 7) | (b_ ? 8 : 0);
        if (index != 4) index_ = general(index) << (sib >> 6);
        if ((sib & 7) == 5 && mode == 0) {
          base = displacement(4);
        } else {
          base = general(from);
        }
      } else if ((modrm & 7) == 5 && mode == 0) {  // from the next instruction on
        base = displacement(4) + static_cast<int64_t>(reinterpret_cast<uintptr_t>(at_)) +
               (has_constant() ? 1 : 0);
      } else {
        base = general(rm_);
      }
      if (mode == 1) base += displacement(1) * displacement_of;
      if (mode == 2) base += displacement(4);
      base_ = reinterpret_cast<uint8_t*>(base);
      address_ = base_ + index_;
    }

    bool has_constant() const {
      return map_ == 3 || (map_ == 1 && (opcode_ == 0x70 || opcode_ == 0x72 || opcode_ == 0x73 ||
                                         opcode_ == 0xc6 || opcode_ == 0xc2));
    }

    int64_t displacement(int bytes) {
      int64_t value = static_cast<int8_t>(*at_);
      if (bytes == 4) {
        int32_t wide;
        std::memcpy(&wide, at_, 4);
        value = wide;
      }
      at_ += bytes;
      return value;
    }

    static int place(int number) {
      static constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                          REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                          REG_R12, REG_R13, REG_R14, REG_R15};
      return kPlaces[number];
    }
    int64_t general(int number) const { return registers_[place(number)]; }

    // Whole tiles, in palette 1: all that weft uses.
    static bool check_config(const uint8_t* config) {
      bool right = config[0] == 1 && config[1] == 0;
      for (int i = 2; i < 16; ++i) right = right && config[i] == 0;
      for (int tile = 0; tile < 16; ++tile) {
        uint16_t bytes;
        std::memcpy(&bytes, config + 16 + 2 * tile, 2);
        right = right && bytes == (tile < 8 ? 64 : 0) && config[48 + tile] == (tile < 8 ? 16 : 0);
      }
      return right;
    }

    static float number(const uint8_t* bits) {
      Bf16 value;
      std::memcpy(&value, bits, 2);
      return flushed(to_float(value));
    }
    static float flushed(float value) {
      return std::fabs(value) < std::numeric_limits<float>::min() ? 0.0f : value;
    }

    // sum += a0 b0 + a1 b1, of pairs.
    static void add_pair(uint8_t* to, const uint8_t* a, const uint8_t* b) {
      float sum;
      std::memcpy(&sum, to, 4);
      sum = flushed(sum + number(a + 2) * number(b + 2));
      sum = flushed(sum + number(a) * number(b));
      std::memcpy(to, &sum, 4);
    }

    static void multiply_tiles(uint8_t (&c)[16][64], const uint8_t (&a)[16][64],
                               const uint8_t (&b)[16][64]) {
      for (int m = 0; m < 16; ++m) {
        for (int n = 0; n < 16; ++n) {
          float even = 0, odd = 0, sum;
          for (int k = 0; k < 16; ++k) {
            even += number(&a[m][4 * k]) * number(&b[k][4 * n]);
            odd += number(&a[m][4 * k + 2]) * number(&b[k][4 * n + 2]);
          }
          std::memcpy(&sum, &c[m][4 * n], 4);
          sum = flushed(sum + flushed(even + odd));
          std::memcpy(&c[m][4 * n], &sum, 4);
        }
      }
    }

    // The CPU's own halves: XMM in the old part of the saved state, the upper halves of YMM behind.
    uint8_t* low(int vector) const {
      return reinterpret_cast<uint8_t*>(context_->uc_mcontext.fpregs) + 160 + 16 * vector;
    }
    uint8_t* high(int vector) const {
      return reinterpret_cast<uint8_t*>(context_->uc_mcontext.fpregs) + 576 + 16 * vector;
    }
    // Whether upper halves were saved; they are zero if not.
    bool has_high() const {
      uint64_t saved;
      std::memcpy(&saved, reinterpret_cast<uint8_t*>(context_->uc_mcontext.fpregs) + 512, 8);
      return (saved & 4) != 0;
    }

    void load_vectors() const {
      for (int v = 0; v < 16; ++v) {
        uint8_t* vector = state().vectors[v];
        std::memset(vector, 0, 32);
        std::memcpy(vector, low(v), 16);
        if (has_high()) std::memcpy(vector + 16, high(v), 16);
      }
    }
    void store_vectors() const {
      uint8_t* saved = reinterpret_cast<uint8_t*>(context_->uc_mcontext.fpregs) + 512;
      if (!has_high()) {
        for (int v = 0; v < 16; ++v) std::memset(high(v), 0, 16);
        saved[0] |= 4;
      }
      saved[0] |= 2;
      for (int v = 0; v < 16; ++v) {
        std::memcpy(low(v), state().vectors[v], 16);
        std::memcpy(high(v), state().vectors[v] + 16, 16);
      }
    }

    ucontext_t* context_;
    greg_t* registers_;
    const uint8_t* at_;
    const uint8_t* begin_;
    bool r_ = false, x_ = false, b_ = false, memory_ = false;
    int reg_ = 0, rm_ = 0;
    // Of EVEX.
    bool high_r_ = false, wide_ = false, broadcast_ = false, zeroing_ = false;
    int map_ = 0, prefix_ = 0, opcode_ = 0, size_ = 0, third_ = 0, mask_ = 0;
    int64_t index_ = 0;  // scaled
    uint8_t *base_ = nullptr, *address_ = nullptr;
  };

  static void handle(int, siginfo_t*, void* context) {
    Instruction instruction(static_cast<ucontext_t*>(context));
    if (instruction.execute()) return;
    instruction.print();
    std::abort();
  }

  static void step(int, siginfo_t*, void* context) {
    Instruction(static_cast<ucontext_t*>(context)).stepped();
  }

  struct sigaction before_ = {}, before_step_ = {};
};

}  // namespace weft::test

#else  // nothing is missing that anybody would call
namespace weft::test {
class MissingInstructions {};
}  // namespace weft::test
#endif
