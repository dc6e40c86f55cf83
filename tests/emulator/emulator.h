// Executes x86 instructions that this CPU lacks, so that the code of kernels for AVX-512 and AMX is
// tested on any x86-64 Linux: what tile_amx.cpp and tile_avx512bf16.cpp were compiled to, and what
// Highway made of the products for AVX-512.
//
// How. An unknown instruction raises SIGILL. The handler (trap.cpp) decodes it (decode.cpp), does
// to memory, to the registers of the thread, and to tiles, masks and vectors of its own what the
// manual says (Intel SDM, volume 2, and volume 1, chapter 18), and continues behind it. execute()
// does the same on a MachineState of the caller's, without a signal, on any CPU.
//
// What.
//   masks.cpp         KMOV, KORTEST, KAND, KANDN, KNOT, KOR, KXNOR, KXOR, KUNPCK, KSHIFTL,
//                     KSHIFTR; comparisons, VPTESTM, VPTESTNM, VFPCLASS
//   tiles.cpp         LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS
//   moves.cpp         VMOV*, VEXTRACT*, VPBROADCAST* from a general register,
//                     VCVTTSD2USI, VCVTUSI2SD
//   arithmetic.cpp    floats, doubles, integers, bits, shifts, fused multiply-add, VDPBF16PS
//   permutations.cpp  broadcasts, shuffles, permutations, unpacking, insertions, blends
//   conversions.cpp   between floats, doubles and integers, VPMOVZX, VPACKUSDW, VPMOVM2
// tests/emulator/catalogue.cpp lists every instruction that is tested; a form that is not there (of
// other elements, say) may be unknown.
//
// What it cannot do.
//   - Any other instruction: the handler prints its bytes and aborts. execute() returns 0.
//   - Embedded rounding ({rn-sae}) and {sae}; gathers, scatters, compressions; half-length results
//     under a mask (VCVTPD2PS, VCVTTPD2DQ).
//   - Faults: alignment is not checked, MXCSR's flags are not set. Only moves leave memory alone
//     that the mask excludes; other instructions read their whole operand.
//   - Tiles of other shapes than 16 rows of 64 bytes.
//   - Half a set: where the CPU has AVX-512 it keeps vectors that the handler does not see. There
//     only AMX, which touches no vectors, could be emulated; tests do not try.
//   - Sanitized code: compilers make it of more instructions than these. The emulator itself may be
//     sanitized.
//
// Cost: a signal for each instruction; and while the upper half of any of the vectors 0
// to 15 is not zero, a signal for each instruction of the CPU's own too (trap.cpp says why).
#pragma once

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>

#include <cstdint>

namespace weft::test {

// The registers of a thread that instructions here read and write.
struct MachineState {
  int64_t general[16] = {};  // as encoded: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15
  uint64_t masks[8] = {};
  uint8_t vectors[32][64] = {};
  uint64_t flags = 0;
  uint64_t tiles_configured = 0;  // 0 or 1
  uint8_t tiles[8][16][64] = {};
};

// Executes the instruction at `code`. Returns its length in bytes; or 0, and leaves state and
// memory alone, if it is not one of those above.
int execute(const uint8_t* code, MachineState& state);

// While one lives, the threads of this process execute those instructions. Not to be nested.
class MissingInstructions {
 public:
  MissingInstructions();
  ~MissingInstructions();
  MissingInstructions(const MissingInstructions&) = delete;
  MissingInstructions& operator=(const MissingInstructions&) = delete;

 private:
  struct sigaction before_ = {}, before_step_ = {};
};

}  // namespace weft::test

#else  // nothing is missing that anybody would call
namespace weft::test {
class MissingInstructions {};
}  // namespace weft::test
#endif
