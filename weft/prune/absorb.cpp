#include "weft/prune/absorb.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/parallel.h"

namespace weft {

void absorb_means(const double* weights, const WeightShape& shape, int group, const Mask& support,
                  double* out) {
  const int64_t cols = shape.cols();
  WEFT_CHECK(group >= 1 && support.rows() == shape.outs && support.cols() == cols,
             "groups of {} and a support of [{}, {}] for weights of {} x {}", group, support.rows(),
             support.cols(), shape.outs, cols);
  parallel_for(shape.outs, [&](int64_t r) {
    const double* from = weights + r * cols;
    double* to = out + r * cols;
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      for (int64_t first = 0; first < shape.ins; first += group) {
        const int64_t last = std::min<int64_t>(first + group, shape.ins);
        double lost = 0.0;
        int64_t kept = 0;
        for (int64_t i = first; i < last; ++i) {
          const int64_t c = i * shape.taps + tap;
          support.at(r, c) ? static_cast<void>(++kept) : static_cast<void>(lost += from[c]);
        }
        for (int64_t i = first; i < last; ++i) {
          const int64_t c = i * shape.taps + tap;
          to[c] = support.at(r, c) ? from[c] + lost / static_cast<double>(kept) : 0.0;
        }
      }
    }
  });
}

}  // namespace weft
