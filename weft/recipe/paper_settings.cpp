#include "weft/recipe/paper_settings.h"

#include <array>

namespace weft {
namespace {

constexpr std::array kPaperSettings = {
    PaperSettings{"sr-ste@paper", "sr-ste+lambda=2e-4", "Zhou 2021"},
    PaperSettings{"static@paper", "static+forward=transposable", "Hubara 2021"},
    PaperSettings{"transposable@paper", "transposable+lambda=2e-4+mask_every=40+solver=greedy-keep",
                  "Hubara 2021"},
    PaperSettings{"t-sr-ste@paper", "t-sr-ste+lambda=6e-5+mask_every=40+gradient=mvue-two-draw",
                  "Hu 2024a"},
    PaperSettings{"bi-mask@paper",
                  "bi-mask+lambda=2e-4+permutation_every=100+permutation_search=random",
                  "Zhang 2023"},
    PaperSettings{"lbc@paper", "lbc+removal_end=0.5+removal_power=3", "Zhang 2022"},
    PaperSettings{"s-ste@paper", "s-ste+gradient=mvue-two-draw+fp8", "Hu 2024b"},
    PaperSettings{"step@paper", "ste+dense_head=0.25+moment=frozen", "Lu 2023"},
};

}  // namespace

std::span<const PaperSettings> paper_settings() { return kPaperSettings; }

std::string with_paper_settings(std::string_view recipe) {
  const std::string_view name = recipe.substr(0, recipe.find('+'));
  for (const PaperSettings& one : kPaperSettings) {
    if (one.name == name) return std::string(one.recipe) + std::string(recipe.substr(name.size()));
  }
  return std::string(recipe);
}

}  // namespace weft
