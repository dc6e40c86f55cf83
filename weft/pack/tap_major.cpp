#include "weft/core/error.h"
#include "weft/pack/pack.h"

namespace weft {

TapMajor tap_major(const float* weights, const Mask& mask, const WeightShape& shape) {
  shape.check();
  WEFT_CHECK(mask.rows() == shape.outs && mask.cols() == shape.cols(),
             "a mask of {} x {} does not fit weights of {} x {}", mask.rows(), mask.cols(),
             shape.outs, shape.cols());
  TapMajor result{std::vector<float>(static_cast<size_t>(shape.outs * shape.cols())),
                  Mask(shape.outs, shape.cols())};
  for (int64_t o = 0; o < shape.outs; ++o) {
    for (int64_t i = 0; i < shape.ins; ++i) {
      for (int64_t tap = 0; tap < shape.taps; ++tap) {
        const int64_t from = i * shape.taps + tap, to = tap * shape.ins + i;
        result.weights[static_cast<size_t>(o * shape.cols() + to)] =
            weights[o * shape.cols() + from];
        if (mask.at(o, from)) result.mask.set(o, to, true);
      }
    }
  }
  return result;
}

}  // namespace weft
