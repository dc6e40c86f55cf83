// Parses Intel's notation, as far as catalogue.cpp has it.
#include <algorithm>
#include <array>
#include <cstdlib>

#include "tests/emulator/reference.h"

namespace weft::test {
namespace {

constexpr std::array<std::string_view, 16> kGeneralNames = {
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
    "r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};

int number_in(std::string_view text) { return std::atoi(std::string(text).c_str()); }

bool take(std::string_view& text, std::string_view start) {
  if (!text.starts_with(start)) return false;
  text.remove_prefix(start.size());
  return true;
}

// rdx, edx, r8d
bool parse_general(std::string_view text, AsmOperand& operand) {
  std::string name(text);
  operand.bytes = 8;
  if (name[0] == 'e' || name.back() == 'd') operand.bytes = 4;
  if (name[0] == 'e') name[0] = 'r';
  if (name.back() == 'd') name.pop_back();
  const auto* at = std::ranges::find(kGeneralNames, name);
  if (at == kGeneralNames.end()) return false;
  operand.kind = AsmOperand::kGeneral;
  operand.number = static_cast<int>(at - kGeneralNames.begin());
  return true;
}

// rdi+r9*4-0x345
void parse_address(std::string_view text, const uint8_t* next, const MachineState& state,
                   AsmOperand& operand) {
  while (!text.empty()) {
    const bool minus = text[0] == '-';
    if (minus || text[0] == '+') text.remove_prefix(1);
    const std::string_view term = text.substr(0, text.find_first_of("+-"));
    text.remove_prefix(term.size());
    const size_t times = term.find('*');
    AsmOperand general;
    if (term == "rip") {
      operand.base += static_cast<int64_t>(reinterpret_cast<uintptr_t>(next));
    } else if (times != std::string_view::npos) {
      parse_general(term.substr(0, times), general);
      operand.offset = state.general[general.number] * number_in(term.substr(times + 1));
    } else if (parse_general(term, general)) {
      operand.base += state.general[general.number];
    } else {
      const int64_t value = std::strtoll(std::string(term).c_str(), nullptr, 0);
      operand.base += minus ? -value : value;
    }
  }
}

AsmOperand parse_operand(std::string_view text, const uint8_t* next, const MachineState& state) {
  AsmOperand operand;
  // Suffixes: {k1}, {z}, {1to16}.
  for (size_t open; (open = text.rfind('{')) != std::string_view::npos;
       text = text.substr(0, open)) {
    std::string_view suffix = text.substr(open + 1);
    if (take(suffix, "k")) operand.mask = number_in(suffix);
    if (take(suffix, "z")) operand.zeroing = true;
    if (take(suffix, "1to")) operand.copies = number_in(suffix);
  }
  static constexpr std::pair<std::string_view, int> kParts[] = {
      {"byte", 1},     {"word", 2},     {"dword", 4},   {"qword", 8},
      {"xmmword", 16}, {"ymmword", 32}, {"zmmword", 64}};
  if (const size_t open = text.find('['); open != std::string_view::npos) {
    operand.kind = AsmOperand::kMemory;
    for (const auto& [name, bytes] : kParts) {
      if (text.substr(0, text.find(' ')) == name) operand.bytes = bytes;
    }
    parse_address(text.substr(open + 1, text.find(']') - open - 1), next, state, operand);
    return operand;
  }
  static constexpr std::pair<std::string_view, int> kVectors[] = {
      {"xmm", 16}, {"ymm", 32}, {"zmm", 64}};
  for (const auto& [name, bytes] : kVectors) {
    if (!take(text, name)) continue;
    operand.kind = AsmOperand::kVector;
    operand.bytes = bytes;
    operand.number = number_in(text);
    return operand;
  }
  if (take(text, "tmm")) {
    operand.kind = AsmOperand::kTile;
    operand.number = number_in(text);
  } else if (take(text, "k")) {
    operand.kind = AsmOperand::kMask;
    operand.number = number_in(text);
  } else if (!parse_general(text, operand)) {
    operand.kind = AsmOperand::kConstant;
    operand.number = static_cast<int>(std::strtol(std::string(text).c_str(), nullptr, 0));
  }
  return operand;
}

}  // namespace

AsmInstruction parse_asm(std::string_view text, const uint8_t* next, const MachineState& state) {
  take(text, "{evex}");
  while (text.starts_with(' ')) text.remove_prefix(1);  // newer assemblers drop the space
  AsmInstruction instruction;
  const size_t space = text.find(' ');
  instruction.name = text.substr(0, space);
  text.remove_prefix(space);
  while (!text.empty()) {
    while (text[0] == ' ' || text[0] == ',') text.remove_prefix(1);
    const std::string_view operand = text.substr(0, text.find(','));
    text.remove_prefix(operand.size());
    instruction.operands.push_back(parse_operand(operand, next, state));
  }
  return instruction;
}

}  // namespace weft::test
