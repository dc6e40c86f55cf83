#include "weft/run/compare_options.h"

#include <charconv>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/recipe/recipe.h"

namespace weft {

// Dense once, whatever the patterns.
std::vector<CompareEntry> compare_entries(const CompareOptions& options) {
  std::vector<CompareEntry> entries = {{"dense", "", 0}};
  const auto add = [&](const std::string& recipe, const std::string& pattern) {
    Recipe::parse(recipe).check(Pattern::parse(pattern));
    for (const CompareEntry& entry : entries) {
      if (entry.recipe == recipe && entry.pattern == pattern) return;
    }
    entries.push_back({recipe, pattern, 0});
  };
  for (const std::string& pattern : options.patterns) {
    for (const std::string& recipe : options.recipes) {
      if (recipe != "dense" && !split_pattern(recipe).pattern) add(recipe, pattern);
    }
  }
  for (const std::string& text : options.recipes) {
    const auto [recipe, pattern] = split_pattern(text);
    if (pattern) add(std::string(recipe), std::string(*pattern));
  }
  return entries;
}

double parse_duration(const std::string& text) {
  double value = 0.0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const double seconds = unit.empty() || unit == "s" ? 1.0
                         : unit == "m"               ? 60.0
                         : unit == "h"               ? 3600.0
                                                     : 0.0;
  WEFT_CHECK(problem == std::errc() && seconds > 0.0 && value > 0.0 && value * seconds <= 1e9,
             "'{}': accepted is a time above 0, as in 90, 300s, 10m or 1.5h", printable(text));
  return value * seconds;
}

}  // namespace weft
