// A convolution is `taps` interleaved matrices (WeightShape): taken out, or put back.
#pragma once

#include <vector>

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/weight_shape.h"

namespace weft {

// block: [rows, shape.cols()] -> [taps, rows, ins]
template <typename T>
std::vector<T> take_taps(MatrixView<const T> block, const WeightShape& shape);

// The reverse for masks: of_taps is [taps * rows, ins].
void put_taps(const Mask& of_taps, const WeightShape& shape, Mask& mask, int64_t first_row);

// [outs, shape.cols()] -> [outs, ins]
Mask take_tap(const Mask& mask, const WeightShape& shape, int64_t tap);

}  // namespace weft
