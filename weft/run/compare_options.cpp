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
      if (recipe != "dense" && recipe.find('@') == std::string::npos) add(recipe, pattern);
    }
  }
  for (const std::string& recipe : options.recipes) {
    const size_t at = recipe.find('@');
    if (at != std::string::npos) add(recipe.substr(0, at), recipe.substr(at + 1));
  }
  return entries;
}

}  // namespace weft
