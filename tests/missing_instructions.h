// Instructions that this CPU does not have, executed anyway: what tile_amx.cpp and
// tile_avx512bf16.cpp were compiled to is run on any x86-64, one trap at a time.
//
// An instruction that the CPU does not know raises SIGILL. The handler decodes it, does to tiles
// and vectors of its own, to memory and to the registers of the thread what the manual says (Intel
// SDM, volumes 2 and 1, chapter 18), and goes on behind it. It knows what the two sources need and
// no more; anything else is printed and ends the program, as it would have without.
//
//   VEX.0F38   LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS
//   EVEX       moves of vectors and VMOVQ, VPUNPCKLWD, VPUNPCKHWD, VPXORD, VPBROADCASTD, VDPBF16PS
//
// The lower 32 bytes of vectors 0 to 15 are the CPU's own YMM registers, which instructions that it
// does know may have changed since the last trap: then the rest of the vector is zero, as these
// instructions leave it.
#pragma once

#include <signal.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "weft/core/bf16.h"

namespace weft::test {

class MissingInstructions {
 public:
  MissingInstructions() {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
  }
  ~MissingInstructions() { sigaction(SIGILL, &before_, nullptr); }
  MissingInstructions(const MissingInstructions&) = delete;
  MissingInstructions& operator=(const MissingInstructions&) = delete;

 private:
  struct State {
    bool configured = false;
    uint8_t tiles[8][16][64];
    uint8_t vectors[32][64];
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
      const bool known = *at_ == 0xc4 ? execute_vex() : *at_ == 0x62 && execute_evex();
      if (!known) return false;
      store_vectors();
      registers_[REG_RIP] = static_cast<greg_t>(reinterpret_cast<uintptr_t>(at_));
      return true;
    }

    void print() const {
      std::fprintf(stderr, "an instruction that tests do not emulate:");
      for (int i = 0; i < 12; ++i) std::fprintf(stderr, " %02x", begin_[i]);
      std::fprintf(stderr, "\n");
    }

   private:
    bool execute_vex() {
      const uint8_t first = at_[1], second = at_[2], opcode = at_[3];
      at_ += 4;
      r_ = (first & 0x80) == 0, x_ = (first & 0x40) == 0, b_ = (first & 0x20) == 0;
      const int map = first & 0x1f, prefix = second & 3, third = ~(second >> 3) & 7;
      if (map != 2 || (second & 0x84) != 0) return false;
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

    bool execute_evex() {
      const uint8_t p0 = at_[1], p1 = at_[2], p2 = at_[3], opcode = at_[4];
      at_ += 5;
      r_ = (p0 & 0x80) == 0, x_ = (p0 & 0x40) == 0, b_ = (p0 & 0x20) == 0;
      const bool high_r = (p0 & 0x10) == 0, high_v = (p2 & 0x08) == 0;
      const int map = p0 & 7, prefix = p1 & 3, size = 16 << (p2 >> 5 & 3);
      const bool masked = (p2 & 7) != 0, broadcast = (p2 & 0x10) != 0;
      if (masked) return false;
      const bool quad = map == 1 && (opcode == 0x6e || opcode == 0x7e);  // VMOVQ
      const bool one_number = (map == 2 && opcode == 0x58) || broadcast;
      read_modrm(quad ? 8 : one_number ? 4 : size);
      State& s = state();
      uint8_t* to = s.vectors[reg_ | (high_r ? 16 : 0)];
      const uint8_t* left = s.vectors[(~(p1 >> 3) & 15) | (high_v ? 16 : 0)];
      uint8_t* right = memory_ ? address_ : s.vectors[(rm_ & 15) | (x_ ? 16 : 0)];
      uint8_t repeated[64], result[64] = {};
      const auto load = [&](const uint8_t* from, uint8_t(&vector)[64]) {
        for (int i = 0; i < size; i += 4) std::memcpy(vector + i, broadcast ? from : from + i, 4);
      };
      if (quad) {
        if (prefix != 1 || (p1 & 0x80) == 0) return false;
        if (opcode == 0x7e && memory_) return false;
        if (opcode == 0x7e) {
          std::memcpy(&registers_[place(rm_)], to, 8);
          return true;
        }
        const int64_t value = memory_ ? 0 : general(rm_);
        std::memcpy(result, memory_ ? right : reinterpret_cast<const uint8_t*>(&value), 8);
      } else if (map == 1 &&
                 (opcode == 0x6f || opcode == 0x10 || opcode == 0x28)) {  // loads, copies
        load(right, result);
      } else if (map == 1 && (opcode == 0x7f || opcode == 0x11 || opcode == 0x29)) {  // stores
        if (!memory_) return false;
        std::memcpy(right, to, static_cast<size_t>(size));
        return true;
      } else if (map == 1 && (opcode == 0x61 || opcode == 0x69)) {  // VPUNPCKLWD, VPUNPCKHWD
        load(right, repeated);
        for (int lane = 0; lane < size; lane += 16) {
          for (int i = 0; i < 4; ++i) {
            const int from = lane + (opcode == 0x69 ? 8 : 0) + 2 * i;
            std::memcpy(result + lane + 4 * i, left + from, 2);
            std::memcpy(result + lane + 4 * i + 2, repeated + from, 2);
          }
        }
      } else if (map == 1 && opcode == 0xef) {  // VPXORD
        load(right, repeated);
        for (int i = 0; i < size; ++i) result[i] = left[i] ^ repeated[i];
      } else if (map == 2 && opcode == 0x58 && prefix == 1) {  // VPBROADCASTD
        for (int i = 0; i < size; i += 4) std::memcpy(result + i, right, 4);
      } else if (map == 2 && opcode == 0x7c && prefix == 1 && !memory_) {  // of a register
        const auto value = static_cast<uint32_t>(general(rm_ & 15));
        for (int i = 0; i < size; i += 4) std::memcpy(result + i, &value, 4);
      } else if (map == 2 && opcode == 0x52 && prefix == 2) {  // VDPBF16PS
        load(right, repeated);
        std::memcpy(result, to, static_cast<size_t>(size));
        for (int i = 0; i < size; i += 4) add_pair(result + i, left + i, repeated + i);
      } else {
        return false;
      }
      std::memcpy(to, result, 64);
      return true;
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
      } else if ((modrm & 7) == 5 && mode == 0) {
        base = displacement(4) + static_cast<int64_t>(reinterpret_cast<uintptr_t>(at_));
      } else {
        base = general(rm_);
      }
      if (mode == 1) base += displacement(1) * displacement_of;
      if (mode == 2) base += displacement(4);
      base_ = reinterpret_cast<uint8_t*>(base);
      address_ = base_ + index_;
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
        uint8_t now[32] = {};
        std::memcpy(now, low(v), 16);
        if (has_high()) std::memcpy(now + 16, high(v), 16);
        uint8_t* vector = state().vectors[v];
        if (std::memcmp(now, vector, 32) == 0) continue;
        std::memcpy(vector, now, 32);
        std::memset(vector + 32, 0, 32);
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
    int64_t index_ = 0;  // scaled
    uint8_t *base_ = nullptr, *address_ = nullptr;
  };

  static void handle(int, siginfo_t*, void* context) {
    Instruction instruction(static_cast<ucontext_t*>(context));
    if (instruction.execute()) return;
    instruction.print();
    std::abort();
  }

  struct sigaction before_ = {};
};

}  // namespace weft::test
