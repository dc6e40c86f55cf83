#include "weft/study/claims.h"

#include <fmt/format.h>

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {

std::span<const Claim> claims() {
  static const std::vector<Claim> rows = {diversity_claim(), approximation_claim()};
  return rows;
}

const Claim& claim(std::string_view name) {
  std::string known;
  for (const Claim& one : claims()) {
    if (one.name == name) return one;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
  }
  throw Error(fmt::format("study '{}': known are {}", printable(name), known));
}

std::string_view verdict_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::kHolds: return "holds";
    case Verdict::kInPart: return "holds in part";
    case Verdict::kDoesNotHold: return "does not hold";
    case Verdict::kUndecided: return "cannot be decided with these seeds";
  }
  return "";
}

size_t Claim::figure(std::string_view wanted) const {
  const auto found = std::ranges::find(figures, wanted);
  WEFT_CHECK(found != figures.end(), "study '{}' has no figure '{}'", name, wanted);
  return static_cast<size_t>(found - figures.begin());
}

std::vector<double> values_of(std::span<const StudyRow> rows, std::string_view variant,
                              size_t figure) {
  std::vector<std::pair<int64_t, double>> found;
  for (const StudyRow& row : rows) {
    if (row.run.variant == variant) found.emplace_back(row.run.seed, row.figures.at(figure));
  }
  std::ranges::sort(found);
  std::vector<double> values;
  for (const auto& [seed, value] : found) values.push_back(value);
  return values;
}

}  // namespace weft
