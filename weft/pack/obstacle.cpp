#include "weft/pack/obstacle.h"

#include "weft/core/error.h"

namespace weft {

std::string obstacle_text(PackObstacle obstacle, const TensorInfo& tensor,
                          const std::optional<Pattern>& promised) {
  switch (obstacle) {
    case PackObstacle::kDtype:
      return fmt::format("dtype {}: accepted are F32, F16 and BF16", dtype_name(tensor.dtype));
    case PackObstacle::kAlongOutputs: return "sparse along outputs only";
    case PackObstacle::kGrows: return "larger when packed";
    case PackObstacle::kNotTwoOfFour:
      return fmt::format("{} is not 2:4", promised ? promised->str() : "the pattern");
    case PackObstacle::kTransposed: return "stored [ins, outs], which the format cannot record";
    case PackObstacle::kName: return "sparse-24-bitmask takes names that end in '.weight'";
    case PackObstacle::kDimensions: return "sparse-24-bitmask takes 2 dimensions";
    case PackObstacle::kColumns:
      return fmt::format("sparse-24-bitmask takes a multiple of 4 columns, not {}",
                         tensor.shape[1]);
    case PackObstacle::kNoZero:
      return fmt::format("dtype {} has no zero", dtype_name(tensor.dtype));
  }
  return "";
}

}  // namespace weft
