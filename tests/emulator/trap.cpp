// The signal handlers: SIGILL executes an instruction that the CPU lacks, SIGTRAP follows those
// that it has.
//
// The lower 32 bytes of vectors 0 to 15 are the CPU's own YMM registers, which the kernel saves on
// the stack of the handler and restores from there; general registers and flags too. The upper 32
// bytes, vectors 16 to 31, masks and tiles are kept here, for each thread.
//
// The CPU clears the upper half of a vector that a VEX instruction writes, and it does not tell. So
// while there are upper halves, the trap flag makes it execute one instruction at a time, and
// SIGTRAP clears the half that belongs to the vector written.
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/emulator/decode.h"
#include "tests/emulator/emulator.h"

namespace weft::test {
namespace {

constexpr greg_t kTrapFlag = 0x100;
constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                             REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                             REG_R12, REG_R13, REG_R14, REG_R15};

struct Thread {
  MachineState state;
  const uint8_t* next = nullptr;  // what the CPU executes itself, one step
};

Thread& this_thread() {
  static thread_local Thread thread;
  return thread;
}

// What the kernel saved: XMM in the old part of it, then a header, then the upper halves of YMM.
//
//   0     160        416    512 (bits: 2 SSE, 4 AVX)   576
//   | ... | XMM 0-15 | ...  | header ...               | YMM 0-15, upper halves | ...
class SavedVectors {
 public:
  explicit SavedVectors(const ucontext_t& context)
      : bytes_(reinterpret_cast<uint8_t*>(context.uc_mcontext.fpregs)) {}

  void load(MachineState& state) const {
    for (int v = 0; v < 16; ++v) {
      std::memset(state.vectors[v], 0, 32);
      std::memcpy(state.vectors[v], low(v), 16);
      if (has_high()) std::memcpy(state.vectors[v] + 16, high(v), 16);
    }
  }
  void store(const MachineState& state) {
    for (int v = 0; v < 16; ++v) {
      std::memcpy(low(v), state.vectors[v], 16);
      std::memcpy(high(v), state.vectors[v] + 16, 16);
    }
    bytes_[512] |= 2 | 4;
  }

 private:
  // Halves that were not saved are zero.
  bool has_high() const { return (bytes_[512] & 4) != 0; }
  uint8_t* low(int vector) const { return bytes_ + 160 + 16 * vector; }
  uint8_t* high(int vector) const { return bytes_ + 576 + 16 * vector; }

  uint8_t* bytes_;
};

const uint8_t* instruction_at(const ucontext_t& context) {
  return reinterpret_cast<const uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
}

void load(const ucontext_t& context, MachineState& state) {
  for (int i = 0; i < 16; ++i) state.general[i] = context.uc_mcontext.gregs[kPlaces[i]];
  state.flags = static_cast<uint64_t>(context.uc_mcontext.gregs[REG_EFL]);
  SavedVectors(context).load(state);
}

void store(const MachineState& state, ucontext_t& context) {
  for (int i = 0; i < 16; ++i) context.uc_mcontext.gregs[kPlaces[i]] = state.general[i];
  context.uc_mcontext.gregs[REG_EFL] = static_cast<greg_t>(state.flags);
  SavedVectors(context).store(state);
}

void step_while_upper_halves(ucontext_t& context) {
  Thread& thread = this_thread();
  bool any = false;
  for (int v = 0; v < 16; ++v) {
    for (int i = 32; i < 64; ++i) any = any || thread.state.vectors[v][i] != 0;
  }
  greg_t& flags = context.uc_mcontext.gregs[REG_EFL];
  flags = any ? flags | kTrapFlag : flags & ~kTrapFlag;
  thread.next = instruction_at(context);
}

void clear_upper(int vector) { std::memset(this_thread().state.vectors[vector] + 32, 0, 32); }

constexpr int kNone = -1;

// The vector that a VEX instruction of map 0F writes, or kNone.
int written_by_first(const Instruction& in) {
  switch (in.opcode) {
    case 0x11:
    case 0x29:
    case 0x7f:
    case 0xd6: return in.memory ? kNone : in.rm;
    case 0x71:
    case 0x72:
    case 0x73: return in.third;
    case 0x7e: return in.prefix == 2 ? in.reg : kNone;
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
    default: return in.reg;
  }
}

int written(const Instruction& in) {
  const int opcode = in.opcode;
  if (in.map == 1) return written_by_first(in);
  if (in.map == 2) {
    const bool general = opcode >= 0xf0;  // BMI
    const bool stores = opcode == 0x2e || opcode == 0x2f || opcode == 0x8e;
    const bool tests = opcode == 0x0e || opcode == 0x0f || opcode == 0x17;
    return general || stores || tests ? kNone : in.reg;
  }
  if (opcode == 0x19 || opcode == 0x39 || opcode == 0x1d) {  // VEXTRACTF128, VCVTPS2PH
    return in.memory ? kNone : in.rm;
  }
  return (opcode >= 0x14 && opcode <= 0x17) || opcode >= 0xf0 ? kNone : in.reg;
}

void clear_what_was_written(const uint8_t* code) {
  while (*code == 0x64 || *code == 0x65 || *code == 0x67) ++code;  // prefixes of an address
  if (*code != 0xc4 && *code != 0xc5) return;
  const Instruction in = *decode(code);
  if (in.map == 1 && in.opcode == 0x77) {  // VZEROUPPER
    for (int v = 0; v < 16; ++v) clear_upper(v);
    return;
  }
  const bool gather = in.map == 2 && in.opcode >= 0x90 && in.opcode <= 0x93;
  if (gather) clear_upper(in.third);  // its mask
  if (const int vector = written(in); vector != kNone) clear_upper(vector);
}

void on_illegal(int, siginfo_t*, void* saved) {
  ucontext_t& context = *static_cast<ucontext_t*>(saved);
  MachineState& state = this_thread().state;
  const uint8_t* code = instruction_at(context);
  load(context, state);
  const int length = execute(code, state);
  if (length == 0) {
    std::fprintf(stderr, "an instruction that tests do not emulate:");
    for (int i = 0; i < 12; ++i) std::fprintf(stderr, " %02x", code[i]);
    std::fprintf(stderr, "\n");
    std::abort();
  }
  store(state, context);
  context.uc_mcontext.gregs[REG_RIP] += length;
  step_while_upper_halves(context);
}

void on_step(int, siginfo_t*, void* saved) {
  ucontext_t& context = *static_cast<ucontext_t*>(saved);
  if (this_thread().next == nullptr) {  // a thread that began while its parent went by steps
    context.uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
    return;
  }
  clear_what_was_written(this_thread().next);
  step_while_upper_halves(context);
}

}  // namespace

MissingInstructions::MissingInstructions() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &before_);
  action.sa_sigaction = on_step;
  sigaction(SIGTRAP, &action, &before_step_);
}

MissingInstructions::~MissingInstructions() {
  __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() & ~uint64_t{kTrapFlag});
  sigaction(SIGILL, &before_, nullptr);
  sigaction(SIGTRAP, &before_step_, nullptr);
}

}  // namespace weft::test
