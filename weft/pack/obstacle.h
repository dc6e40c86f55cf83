// Why a weight cannot be packed in a format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "weft/checkpoint/header.h"
#include "weft/core/pattern.h"

namespace weft {

enum class PackObstacle : uint8_t {
  kDtype,         // weft: packed are F32, F16 and BF16
  kAlongOutputs,  // the file promises a pattern along outputs only
  kGrows,         // packed it would be larger: few rows, or a pattern that keeps much
  // sparse-24-bitmask:
  kNotTwoOfFour,  // the file promises another pattern
  kTransposed,
  kName,
  kDimensions,
  kColumns,
  kNoZero,  // of the type
};

// Fit to follow "skipped: ". promised: the pattern of kNotTwoOfFour.
std::string obstacle_text(PackObstacle obstacle, const TensorInfo& tensor,
                          const std::optional<Pattern>& promised = std::nullopt);

}  // namespace weft
