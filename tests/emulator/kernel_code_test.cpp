// Whether the emulator knows every instruction that the kernels were compiled to and that a CPU with
// AVX2 lacks. On such a CPU a test of a kernel would find out, one instruction at a time; on a CPU
// with AVX-512 no other test does, and a new kernel would fail where nobody looks.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/emulator/emulator.h"
#include "tests/support.h"

namespace weft::test {
namespace {

struct CodeLine {
  std::vector<uint8_t> bytes;
  std::string text;  // as objdump has it, and the function
};

// Of a line of objdump: "   4c1:\t62 f1 7c 48 28 c1 \tvmovaps %zmm1,%zmm0".
std::optional<CodeLine> read_line(const std::string& line) {
  const size_t first = line.find('\t');
  const size_t second = first == line.npos ? line.npos : line.find('\t', first + 1);
  if (second == line.npos) return std::nullopt;
  CodeLine code{{}, line.substr(second + 1)};
  std::istringstream in(line.substr(first, second - first));
  for (unsigned byte = 0; in >> std::hex >> byte;) {
    code.bytes.push_back(static_cast<uint8_t>(byte));
  }
  return code;
}

// EVEX, masks and tiles.
bool is_missing_with_avx2(const CodeLine& line) {
  const auto begins = [&](const char* with) { return line.text.rfind(with, 0) == 0; };
  return (!line.bytes.empty() && line.bytes[0] == 0x62) || begins("k") || begins("tile") ||
         begins("tdp");
}

// Each one once. Nothing if there is no objdump.
std::vector<CodeLine> instructions_of(const std::string& archive) {
  std::vector<CodeLine> found;
  std::set<std::vector<uint8_t>> seen;
  const std::string command = "objdump -d -C --insn-width=16 " + archive + " 2>/dev/null";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), pclose);
  std::string function;
  std::vector<char> buffer(1 << 16);
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe.get()) != nullptr) {
    std::string line(buffer.data());
    if (!line.empty() && line.back() == '\n') line.pop_back();
    if (line.ends_with(">:")) function = line.substr(line.find('<'));
    std::optional<CodeLine> code = read_line(line);
    if (!code || !is_missing_with_avx2(*code) || !seen.insert(code->bytes).second) continue;
    code->text += " in " + function;
    found.push_back(std::move(*code));
  }
  return found;
}

// All general registers hold kBase, so an operand lies near a multiple of it, where there is memory:
// at base + index · 8 at most, and rows of a tile at base + 15 · stride.
class Memory {
 public:
  static constexpr uint64_t kBase = uint64_t{1} << 38, kAround = 1 << 26;

  Memory() {
    for (uint64_t times = 1; times <= 16; ++times) {
      void* const at = reinterpret_cast<void*>(times * kBase - kAround / 2);
      void* const got =
          ::mmap(at, kAround, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
      if (got != at) throw Error("no memory at a multiple of 2^38");
      parts_.push_back(got);
    }
  }
  ~Memory() {
    for (void* part : parts_) ::munmap(part, kAround);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 private:
  std::vector<void*> parts_;
};

bool is_known(const CodeLine& line) {
  const auto state = std::make_unique<MachineState>();
  std::ranges::fill(state->general, static_cast<int64_t>(Memory::kBase));
  state->tiles_configured = 1;
  std::vector<uint8_t> code(4096);  // what is relative to the instruction reads zeros
  std::ranges::copy(line.bytes, code.begin());
  return execute(code.data(), *state) == static_cast<int>(line.bytes.size());
}

TEST(Emulator, KnowsEveryInstructionOfTheKernels) {
  if (sanitized()) GTEST_SKIP() << "sanitized code is made of more instructions";
  const Memory memory;
  size_t seen = 0;
  std::istringstream archives(WEFT_KERNEL_CODE);
  for (std::string archive; std::getline(archives, archive, ':');) {
    const std::vector<CodeLine> lines = instructions_of(archive);
    seen += lines.size();
    for (const CodeLine& line : lines) EXPECT_TRUE(is_known(line)) << line.text;
  }
  if (seen == 0) GTEST_SKIP() << "no objdump";
  EXPECT_GT(seen, 1000u);
}

}  // namespace
}  // namespace weft::test
