// The papers' own settings of their recipes, by name: "t-sr-ste@paper". weft's defaults differ where
// that serves its users (docs/papers.md says where and why). Only what a recipe can say: optimisers,
// rates and which layers are sparse are not parts of one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weft {

struct PaperSettings {
  std::string_view name;    // "t-sr-ste@paper"
  std::string_view recipe;  // the same, spelled out; Recipe::parse takes both
  std::string_view paper;   // whose they are
};
std::span<const PaperSettings> paper_settings();

// A recipe with the name in front spelled out, if it is one of these; otherwise as it is.
std::string with_paper_settings(std::string_view recipe);

}  // namespace weft
