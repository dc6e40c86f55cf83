#include "weft/recipe/gradient.h"

#include "weft/recipe/recipe.h"

namespace weft {
namespace {

std::string masked_objection(const Recipe& recipe, const Pattern&) {
  if (recipe.has_fixed_mask() || recipe.forward->scores != nullptr) return "";
  return "gradient=masked does not update pruned weights, so a mask chosen by magnitude could "
         "never change: use mask_every=0 or forward=union";
}

std::string two_draw_objection(const Recipe& recipe, const Pattern& weights) {
  const Pattern pattern = recipe.sample_pattern(weights);
  return pattern.keep() == 2 && pattern.group() == 4
             ? ""
             : "the two-draw sampler is for 2:4; mvue takes any pattern";
}

}  // namespace

const GradientPart kExactPart = {.name = "exact"};
const GradientPart kMaskedPart = {.name = "masked", .masked = true, .objection = masked_objection};
const GradientPart kMvuePart = {.name = "mvue", .sampler = Sampler::kExact};
const GradientPart kTwoDrawPart = {
    .name = "mvue-two-draw", .sampler = Sampler::kTwoDraw, .objection = two_draw_objection};

}  // namespace weft
