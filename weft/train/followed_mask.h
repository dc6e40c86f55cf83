// FollowedMask: the masks that a recipe would find, and when it would find them, on the weights of
// a layer that is trained without it (recipe/layer_state.h). Forward masks only, and not of lbc,
// whose masks follow from scores.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "weft/torch/layer_module.h"

namespace weft {

struct FollowedMask {
  std::shared_ptr<LayerModule> layer;
  LayerSettings settings;  // of the recipe
  LayerState state = {};
  int64_t pending = 0;  // bits that the next training pass would change before it begins

  FollowedMask(std::shared_ptr<LayerModule> layer, const LayerSettings& settings);

  // After that many steps: finds the mask of the weights as they are. The bits that changed since
  // the last call; nothing if there was no mask (the first call, a dense phase).
  std::optional<int64_t> follow(int64_t step);
};

}  // namespace weft
