// The emulator, instruction by instruction (catalogue.cpp): called directly, and through the signal
// handlers, against a reference; and, where the CPU has the instruction, against the CPU. The
// reference itself is compared with the CPU on those instructions that also exist in AVX2.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "tests/emulator/catalogue.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/machine_code.h"
#include "tests/emulator/reference.h"
#include "tests/products.h"
#include "tests/support.h"
#include "weft/core/bf16.h"
#include "weft/kernel/tile/tile_unit.h"

namespace weft::test {
namespace {

bool cpu_has(Needs needs) {
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (needs) {
    case Needs::kAvx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Needs::kAvx512: return avx512;
    case Needs::kAvx512Bf16: return avx512 && __builtin_cpu_supports("avx512bf16");
    case Needs::kAmx: break;
  }
  const std::vector<TileUnit> here = available_tile_units();
  return avx512 && std::ranges::find(here, TileUnit::kAmx) != here.end();
}

// Where it has some of AVX-512, it keeps vectors that the handler does not see.
bool cpu_can_be_emulated() { return cpu_has(Needs::kAvx2) && !__builtin_cpu_supports("avx512f"); }

// What an instruction reads and writes.
struct Machine {
  MachineState state;
  alignas(64) std::array<uint8_t, 8192> memory;
};

// Values of all kinds that instructions take elements for, so that each meets what is special to
// it.
class Filler {
 public:
  explicit Filler(uint64_t seed) : dice_(seed) {}

  void fill(uint8_t* bytes, size_t count) {
    const uint64_t kind = below(6);
    for (size_t i = 0; i < count; i += 8) {
      const uint64_t value = kind == 0   ? bits()
                             : kind == 1 ? twice([&] { return bits_of(special<float>()); })
                             : kind == 2 ? bits_of(special<double>())
                             : kind == 3 ? twice([&] { return static_cast<uint32_t>(small()); })
                             : kind == 4 ? static_cast<uint64_t>(small())
                                         : twice([&] { return bits_of(number()); });
      std::memcpy(bytes + i, &value, 8);
    }
  }
  // bf16 and floats: integers whose sums are exact, or any.
  void fill_bf16(uint8_t* bytes, size_t count, bool integers) {
    for (size_t i = 0; i < count; i += 2) {
      const Bf16 value = to_bf16(integers ? static_cast<float>(small()) : number());
      std::memcpy(bytes + i, &value, 2);
    }
  }
  void fill_floats(uint8_t* bytes, size_t count, bool integers) {
    for (size_t i = 0; i < count; i += 4) {
      const float value = integers ? static_cast<float>(small()) : number();
      std::memcpy(bytes + i, &value, 4);
    }
  }
  uint64_t bits() { return dice_.next(); }
  uint64_t below(int64_t count) { return static_cast<uint64_t>(dice_.below(count)); }

 private:
  int64_t small() { return static_cast<int64_t>(below(80)) - 40; }
  float number() { return (static_cast<float>(below(1 << 24)) - 0x1p23f) * 0x1p-20f; }
  template <typename T>
  T special() {
    using Limits = std::numeric_limits<T>;
    const T values[] = {0,
                        T{-0.0},
                        T{0.5},
                        T{-0.75},
                        T{1.5},
                        T{-2.5},
                        T{3e9},
                        T{-3e9},
                        T{0x1p31},
                        T{-0x1p31},
                        T{0x1p32},
                        T{0x1p63},
                        T{0x1p100},
                        T{1} / 3,
                        Limits::infinity(),
                        -Limits::infinity(),
                        Limits::quiet_NaN(),
                        Limits::denorm_min(),
                        Limits::min(),
                        Limits::max()};
    return values[below(std::size(values))];
  }
  static uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
  static uint64_t bits_of(double value) { return std::bit_cast<uint64_t>(value); }
  template <typename F>
  static uint64_t twice(F f) {
    const uint64_t low = f();
    return low | uint64_t{f()} << 32;
  }

  Dice dice_;
};

bool takes_bf16(Needs needs) { return needs == Needs::kAvx512Bf16 || needs == Needs::kAmx; }

Machine draw_machine(Needs needs, uint64_t seed, bool integers) {
  Machine machine;
  Filler filler(seed);
  MachineState& state = machine.state;
  if (takes_bf16(needs)) {  // floats in odd registers, pairs of bf16 in even ones
    for (int v = 0; v < 32; v += 2) {
      filler.fill_bf16(state.vectors[v], 64, integers);
      filler.fill_floats(state.vectors[v + 1], 64, integers);
    }
    for (int t = 0; t < 8; t += 2) {
      filler.fill_bf16(state.tiles[t][0], 1024, integers);
      filler.fill_floats(state.tiles[t + 1][0], 1024, integers);
    }
    filler.fill_bf16(machine.memory.data(), machine.memory.size(), integers);
  } else {
    for (auto& vector : state.vectors) filler.fill(vector, 64);
    for (size_t i = 0; i < machine.memory.size(); i += 64) filler.fill(&machine.memory[i], 64);
  }
  state.tiles_configured = needs == Needs::kAmx ? 1 : 0;
  for (uint64_t& mask : state.masks) mask = filler.bits();
  if (seed % 4 == 1) state.masks[0] = 0;
  if (seed % 4 == 2) state.masks[0] = state.masks[1] = ~uint64_t{0};
  for (int64_t& general : state.general) {
    general = static_cast<int64_t>(filler.bits() >> filler.below(60));
  }
  state.general[9] = static_cast<int64_t>(filler.below(9));  // an index
  if (needs == Needs::kAmx) state.general[10] = 64 + 4 * static_cast<int64_t>(filler.below(9));
  state.flags = (filler.bits() & 0xd5) | 2;
  return machine;
}

// rdi, r12 and r13 point into its memory; so it must not move from here on.
void point_into_memory(Machine& machine) {
  const auto middle = static_cast<int64_t>(reinterpret_cast<uintptr_t>(&machine.memory[2048]));
  machine.state.general[7] = middle;
  machine.state.general[12] = middle + 256;
  machine.state.general[13] = middle + 512;
}

// Which of two NaNs an operation passes on depends on the order that a compiler gave its operands.
template <typename T>
void forgive_nans(const uint8_t* expected, uint8_t* actual) {
  for (int i = 0; i < 64; i += sizeof(T)) {
    T e, a;
    std::memcpy(&e, expected + i, sizeof(T));
    std::memcpy(&a, actual + i, sizeof(T));
    if (std::isnan(e) && std::isnan(a)) std::memcpy(actual + i, &e, sizeof(T));
  }
}

std::string hex(const uint8_t* bytes, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{}{:02x}", i % 4 == 0 ? " " : "", bytes[i]);
  return text;
}

// Empty if they are the same. Of the flags, those that arithmetic sets; rsp is the caller's.
std::string difference(const std::string& name, const Machine& expected, Machine actual) {
  const MachineState &e = expected.state, &a = actual.state;
  const std::string kind = name.substr(name.size() - 2);
  const bool calculates = name.starts_with("vadd") || name.starts_with("vsub") ||
                          name.starts_with("vmul") || name.starts_with("vdiv") ||
                          name.starts_with("vsqrt") || name.starts_with("vf") ||
                          name.starts_with("vcvt");
  std::string text;
  for (int v = 0; v < 32; ++v) {
    if (calculates && (kind == "ps" || kind == "ss")) {
      forgive_nans<float>(e.vectors[v], actual.state.vectors[v]);
    }
    if (calculates && (kind == "pd" || kind == "sd")) {
      forgive_nans<double>(e.vectors[v], actual.state.vectors[v]);
    }
    if (std::memcmp(e.vectors[v], a.vectors[v], 64) == 0) continue;
    text += fmt::format("vector {}: expected{}\n  got{}\n", v, hex(e.vectors[v], 64),
                        hex(a.vectors[v], 64));
  }
  for (int k = 0; k < 8; ++k) {
    if (e.masks[k] == a.masks[k]) continue;
    text += fmt::format("mask {}: expected {:x}, got {:x}\n", k, e.masks[k], a.masks[k]);
  }
  for (int g = 0; g < 16; ++g) {
    if (e.general[g] == a.general[g] || g == 4) continue;
    text += fmt::format("general {}: expected {:x}, got {:x}\n", g, e.general[g], a.general[g]);
  }
  for (int t = 0; t < 8; ++t) {
    if (std::memcmp(e.tiles[t], a.tiles[t], 1024) != 0) text += fmt::format("tile {}\n", t);
  }
  if (((e.flags ^ a.flags) & 0xd5) != 0) {
    text += fmt::format("flags: expected {:x}, got {:x}\n", e.flags & 0xd5, a.flags & 0xd5);
  }
  const auto [at, other] = std::ranges::mismatch(expected.memory, actual.memory);
  if (at != expected.memory.end()) {
    text += fmt::format("memory at {}: expected {:02x}, got {:02x}\n",
                        at - expected.memory.begin() - 2048, *at, *other);
  }
  return text;
}

// Each way of executing an instruction starts from the same machine, at the same address.
class Trial {
 public:
  Trial(const CatalogueEntry& entry, uint64_t seed, bool integers)
      : entry_(entry), code_(entry), start_(draw_machine(entry.needs, seed, integers)) {}

  Machine by_reference() {
    return run([&](MachineState& state) {
      const uint8_t* next = code_.instruction() + (entry_.end - entry_.begin);
      const AsmInstruction instruction = parse_asm(entry_.text, next, state);
      EXPECT_TRUE(apply_reference(instruction, state)) << "no reference for " << entry_.text;
    });
  }
  Machine by_emulator() {
    return run([&](MachineState& state) {
      EXPECT_EQ(execute(code_.instruction(), state), entry_.end - entry_.begin) << entry_.text;
    });
  }
  // Its signal handlers count, if they are installed.
  Machine by_cpu() {
    return run([&](MachineState& state) { code_.run(state); });
  }
  std::string name() const { return parse_asm(entry_.text, nullptr, start_.state).name; }

 private:
  template <typename F>
  Machine run(F f) {
    here_ = start_;
    point_into_memory(here_);
    f(here_.state);
    return here_;
  }

  const CatalogueEntry& entry_;
  MachineCode code_;
  Machine start_, here_;
};

struct Sweep {
  int seeds;
  bool integers = false;  // where bf16 are multiplied
  int step = 1;           // every so many instructions
};

// Calls check(trial) -> difference for the instructions of a kind.
template <typename Check>
void for_each_instruction(Needs needs, const Sweep& sweep, Check check) {
  int count = 0;
  for (const CatalogueEntry& entry : catalogue()) {
    if (entry.needs != needs || count++ % sweep.step != 0) continue;
    for (int seed = 0; seed < sweep.seeds; ++seed) {
      Trial trial(entry, static_cast<uint64_t>(seed), sweep.integers || seed % 2 == 0);
      const std::string wrong = check(trial);
      if (wrong.empty()) continue;
      ADD_FAILURE() << entry.text << ", seed " << test_seed() << ", stream " << seed << "\n"
                    << wrong;
      break;
    }
  }
  EXPECT_GT(count, 0);
}

class Emulator : public ::testing::TestWithParam<Needs> {};

TEST_P(Emulator, ComputesWhatTheReferenceDoes) {
  for_each_instruction(GetParam(), {.seeds = 24}, [](Trial& trial) {
    return difference(trial.name(), trial.by_reference(), trial.by_emulator());
  });
}

TEST_P(Emulator, ComputesWhatTheCpuDoes) {
  if (!cpu_has(GetParam())) GTEST_SKIP() << "this CPU lacks the instructions to compare with";
  // Sums of other numbers than small integers may be rounded elsewhere than the manual says.
  for_each_instruction(GetParam(), {.seeds = 24, .integers = true}, [](Trial& trial) {
    return difference(trial.name(), trial.by_cpu(), trial.by_emulator());
  });
}

TEST_P(Emulator, HandlesTheSignal) {
  if (!cpu_can_be_emulated()) GTEST_SKIP() << "this CPU has AVX-512, or lacks AVX2";
  // Some hundred signals for each, to load and store all vectors; what they run is tested above.
  const Sweep sweep{.seeds = 2, .step = GetParam() == Needs::kAvx512 ? 7 : 1};
  for_each_instruction(GetParam(), sweep, [](Trial& trial) {
    const Machine expected = trial.by_reference();
    const MissingInstructions missing;
    return difference(trial.name(), expected, trial.by_cpu());
  });
}

INSTANTIATE_TEST_SUITE_P(All, Emulator,
                         ::testing::Values(Needs::kAvx512, Needs::kAvx512Bf16, Needs::kAmx),
                         [](const auto& info) {
                           return info.param == Needs::kAvx512       ? "Avx512"
                                  : info.param == Needs::kAvx512Bf16 ? "Avx512Bf16"
                                                                     : "Amx";
                         });

// The CPU executes these itself, between emulated ones that load and store all vectors. So this is
// also about stepping: the upper half of the vector written is cleared, the others stay.
TEST(EmulatorReference, IsWhatTheCpuComputesWithAvx2) {
  if (!cpu_has(Needs::kAvx512) && !cpu_can_be_emulated()) GTEST_SKIP() << "this CPU lacks AVX2";
  for_each_instruction(Needs::kAvx2, {.seeds = 3}, [](Trial& trial) {
    const Machine expected = trial.by_reference();
    std::optional<MissingInstructions> missing;
    if (!cpu_has(Needs::kAvx512)) missing.emplace();
    return difference(trial.name(), expected, trial.by_cpu());
  });
}

TEST(EmulatorRefuses, OtherInstructionsAndLeavesTheStateAlone) {
  for (const CatalogueEntry& entry : unknown_instructions()) {
    Machine machine = draw_machine(Needs::kAmx, 1, true);
    point_into_memory(machine);
    const Machine before = machine;
    EXPECT_EQ(execute(entry.begin, machine.state), 0) << entry.text;
    EXPECT_EQ(difference("unknown", before, machine), "") << entry.text;
  }
}

TEST(EmulatorRefusesDeathTest, ByPrintingTheInstruction) {
  if (!cpu_can_be_emulated()) GTEST_SKIP() << "this CPU has AVX-512, or lacks AVX2";
  const MachineCode code(unknown_instructions()[0]);
  MachineState state;
  EXPECT_DEATH(
      {
        const MissingInstructions missing;
        code.run(state);
      },
      "an instruction that tests do not emulate: 62 ");
}

const CatalogueEntry& entry_of(std::string_view text) {
  for (const CatalogueEntry& entry : catalogue()) {
    std::string plain = entry.text;
    std::erase(plain, ' ');
    std::string wanted(text);
    std::erase(wanted, ' ');
    if (plain == wanted) return entry;
  }
  ADD_FAILURE() << "not in the catalogue: " << text;
  return catalogue()[0];
}

// What the mask excludes from a move may lie where there is no memory.
TEST(EmulatorMoves, TouchOnlyWhatTheMaskIncludes) {
  constexpr size_t kPage = 4096;
  void* pages =
      mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* end = static_cast<uint8_t*>(pages) + kPage;
  ASSERT_EQ(mprotect(end, kPage, PROT_NONE), 0);
  std::memset(end - 12, 7, 12);
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(end - 12));
  MachineState state;
  state.masks[1] = 0b111;
  state.general[7] = address - 128;
  EXPECT_NE(execute(entry_of("{evex} vmovups zmm9{k1}, zmmword ptr [rdi+128]").begin, state), 0);
  EXPECT_EQ(std::count(state.vectors[9], state.vectors[9] + 64, 7), 12);
  state.general[7] = address - 192;
  EXPECT_NE(execute(entry_of("{evex} vmovups zmmword ptr [rdi+192]{k1}, zmm3").begin, state), 0);
  EXPECT_EQ(std::count(end - 12, end, 0), 12);
  munmap(pages, 2 * kPage);
}

// Assemblers prefer another encoding of this move.
TEST(EmulatorMoves, StoreAQuadwordInEitherEncoding) {
  constexpr uint8_t kStore[] = {0x62, 0xe1, 0xfd, 0x08, 0xd6, 0x67, 0x01};  // vmovq [rdi+8], xmm20
  uint64_t memory[3] = {1, 2, 3};
  MachineState state;
  state.general[7] = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory));
  std::memset(state.vectors[20], 7, 64);
  EXPECT_EQ(execute(kStore, state), 7);
  EXPECT_EQ(memory[0], 1);
  EXPECT_EQ(memory[1], 0x0707070707070707);
  EXPECT_EQ(memory[2], 3);
}

constexpr uint8_t kConfigure[] = {0xc4, 0xe2, 0x78, 0x49, 0x07};  // ldtilecfg [rdi]
constexpr uint8_t kRelease[] = {0xc4, 0xe2, 0x78, 0x49, 0xc0};    // tilerelease

TEST(EmulatorTiles, AreWholeAndConfigured) {
  std::array<uint8_t, 64> config = {1};
  for (size_t tile = 0; tile < 8; ++tile) config[16 + 2 * tile] = 64, config[48 + tile] = 16;
  MachineState state;
  state.general[7] = static_cast<int64_t>(reinterpret_cast<uintptr_t>(config.data()));
  const uint8_t* zero = entry_of("tilezero tmm5").begin;
  state.tiles[5][3][1] = 1;
  EXPECT_EQ(execute(zero, state), 0);  // not configured
  EXPECT_EQ(execute(kConfigure, state), 5);
  EXPECT_EQ(execute(zero, state), 5);
  EXPECT_EQ(state.tiles[5][3][1], 0);
  EXPECT_EQ(execute(kRelease, state), 5);
  EXPECT_EQ(execute(zero, state), 0);
  config[48 + 2] = 8;  // rows
  EXPECT_EQ(execute(kConfigure, state), 0);
}

TEST(EmulatorBf16, SubnormalNumbersAreZero) {
  const auto set = [](uint8_t* to, float value) { std::memcpy(to, &value, 4); };
  const auto float_at = [](const uint8_t* from) {
    float value;
    std::memcpy(&value, from, 4);
    return value;
  };
  const uint8_t* multiply = entry_of("{evex} vdpbf16ps zmm1, zmm2, zmm4").begin;
  MachineState state;
  set(state.vectors[1], 3.0f);       // a float; the pairs below are (0, x) as bf16
  set(state.vectors[2], 0x1p-130f);  // subnormal
  set(state.vectors[4], 0x1p120f);
  set(state.vectors[1] + 4, 0);
  set(state.vectors[2] + 4, 0x1p-100f);
  set(state.vectors[4] + 4, 0x1p-30f);  // a subnormal product
  set(state.vectors[1] + 8, 0);
  set(state.vectors[2] + 8, 0x1p-100f);
  set(state.vectors[4] + 8, 0x1p-20f);
  const uint32_t low = float_to_bf16(0x1p-100f), other = float_to_bf16(0x1p-30f);  // (x, 0)
  std::memcpy(state.vectors[2] + 12, &low, 4);
  std::memcpy(state.vectors[4] + 12, &other, 4);
  ASSERT_NE(execute(multiply, state), 0);
  EXPECT_EQ(float_at(state.vectors[1]), 3.0f);
  EXPECT_EQ(float_at(state.vectors[1] + 4), 0.0f);
  EXPECT_EQ(float_at(state.vectors[1] + 8), 0x1p-120f);
  EXPECT_EQ(float_at(state.vectors[1] + 12), 0.0f);
}

// Two at once: vectors, masks and tiles are each thread's own.
TEST(EmulatorThreads, HaveStatesOfTheirOwn) {
  if (!cpu_can_be_emulated()) GTEST_SKIP() << "this CPU has AVX-512, or lacks AVX2";
  const MissingInstructions missing;
  const CatalogueEntry& entry = entry_of("{evex} vpaddd zmm1{k1}, zmm12, zmm3");
  const MachineCode code(entry);
  const auto work = [&](uint64_t seed, int& wrong) {
    MachineState start = draw_machine(Needs::kAvx512, seed, true).state;
    for (int i = 0; i < 50; ++i) {
      Machine expected{start, {}}, actual{start, {}};
      execute(code.instruction(), expected.state);
      code.run(actual.state);
      wrong += difference("vpaddd", expected, actual).empty() ? 0 : 1;
    }
  };
  int wrong[2] = {};
  std::thread first(work, 1, std::ref(wrong[0])), second(work, 2, std::ref(wrong[1]));
  first.join();
  second.join();
  EXPECT_EQ(wrong[0] + wrong[1], 0);
}

}  // namespace
}  // namespace weft::test
