#include "weft/core/isa.h"

#include <fmt/ranges.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstdlib>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

std::string lower_name(int64_t target) {
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

// Highway's targets are single bits; the lower the bit, the better the target.
std::vector<int64_t> available_targets() {
  std::vector<int64_t> targets;
  for (uint64_t rest = static_cast<uint64_t>(hwy::SupportedTargets() & HWY_TARGETS); rest != 0;
       rest &= rest - 1) {
    targets.push_back(int64_t{1} << std::countr_zero(rest));
  }
  return targets;
}

// 0: whatever the CPU has.
void use_targets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const int64_t target : available_targets()) names.push_back(lower_name(target));
  return names;
}

std::string current_isa() { return available_isas().front(); }

void force_isa(std::string_view name) {
  const int64_t before = available_targets().front();
  restore_isa();
  const std::vector<int64_t> targets = available_targets();
  const std::vector<std::string> names = available_isas();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end() && before != targets.front()) use_targets(before);
  WEFT_CHECK(found != names.end(),
             "instruction set '{}' is not available here: accepted is one of {}", printable(name),
             fmt::join(names, ", "));
  use_targets(targets[static_cast<size_t>(found - names.begin())]);
}

void restore_isa() { use_targets(0); }

void force_isa_from_environment() {
  const char* name = std::getenv("WEFT_ISA");
  if (name == nullptr || *name == '\0') return;
  try {
    force_isa(name);
  } catch (const Error& error) {
    throw Error(fmt::format("WEFT_ISA: {}", error.what()));
  }
}

}  // namespace weft
