#include "weft/run/compare_options.h"

#include "weft/recipe/recipe.h"

namespace weft {

// Dense once, whatever the patterns.
std::vector<CompareEntry> compare_entries(const CompareOptions& options) {
  std::vector<CompareEntry> entries = {{"dense", ""}};
  const auto add = [&](const std::string& recipe, const std::string& pattern) {
    Recipe::parse(recipe).check(Pattern::parse(pattern));
    for (const CompareEntry& entry : entries) {
      if (entry.recipe == recipe && entry.pattern == pattern) return;
    }
    entries.push_back({recipe, pattern});
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

}  // namespace weft
