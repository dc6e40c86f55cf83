#include "weft/recipe/decay.h"

#include <algorithm>

#include "weft/core/parallel.h"

namespace weft {

template <typename T>
void add_where_pruned(const T* weights, const Mask& mask, T scale, T* to) {
  const int64_t cols = mask.cols();
  constexpr int64_t kRows = 64;
  parallel_for((mask.rows() + kRows - 1) / kRows, [&](int64_t item) {
    for (int64_t row = item * kRows; row < std::min(mask.rows(), (item + 1) * kRows); ++row) {
      const T* from = weights + row * cols;
      T* into = to + row * cols;
      for (int64_t col = 0; col < cols; col += 64) {
        const int count = static_cast<int>(std::min<int64_t>(64, cols - col));
        const uint64_t kept = mask.bits(row, col, count);
        for (int k = 0; k < count; ++k) {
          into[col + k] += ((kept >> k) & 1) != 0 ? T(0) : scale * from[col + k];
        }
      }
    }
  });
}
template void add_where_pruned(const float*, const Mask&, float, float*);
template void add_where_pruned(const double*, const Mask&, double, double*);

namespace {

template <typename T>
void decay_in_gradient(const DecayCall<T>& call) {
  add_where_pruned(static_cast<const T*>(call.weights), call.mask, static_cast<T>(call.lambda),
                   call.gradient);
}

template <typename T>
void decay_decoupled(const DecayCall<T>& call) {
  add_where_pruned(static_cast<const T*>(call.weights), call.mask,
                   static_cast<T>(-call.learning_rate * call.lambda), call.weights);
}

}  // namespace

const DecayPart kNoDecay = {.name = "none"};
const DecayPart kGradientDecay = {.name = "gradient",
                                  .apply = decay_in_gradient<float>,
                                  .apply_in_double = decay_in_gradient<double>};
const DecayPart kDecoupledDecay = {.name = "decoupled",
                                   .apply = decay_decoupled<float>,
                                   .apply_in_double = decay_decoupled<double>};

}  // namespace weft
