#include "weft/recipe/soft_threshold.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "weft/core/parallel.h"
#include "weft/recipe/layer_state.h"
#include "weft/recipe/magnitude_masks.h"
#include "weft/recipe/schedule.h"

namespace weft {
namespace {

// One group of one row: the threshold itself is subtracted, so that S is exact at ties.
template <typename T>
void shrink_row(const T* w, uint64_t kept, const Group& group, T beta, T* out) {
  T threshold = 0;
  for (int k = 0; k < group.length; ++k) {
    const T size = std::abs(w[k * group.step]);
    if (((kept >> k) & 1) == 0) threshold = std::max(threshold, size);
  }
  for (int k = 0; k < group.length; ++k) {
    const T value = w[k * group.step];
    const T left = std::max(std::abs(value) - threshold, T{0});
    out[k * group.step] = ((kept >> k) & 1) != 0 ? beta * std::copysign(left, value) : T{0};
  }
}

// Where the rows of a cell begin.
std::vector<int64_t> row_offsets(const Cell& cell, int64_t cols,
                                 std::span<const int64_t> row_order) {
  std::vector<int64_t> offsets;
  for (int64_t r = 0; r < cell.rows; ++r) {
    const int64_t place = cell.first_row + r * cell.step;
    offsets.push_back((row_order.empty() ? place : row_order[static_cast<size_t>(place)]) * cols);
  }
  return offsets;
}

// One group of a cell: every row loses the same share of a weight.
template <typename T>
void shrink_cell(const T* w, const std::vector<int64_t>& rows, uint64_t kept, const Group& group,
                 T beta, T* out) {
  std::array<double, Pattern::kMaxGroup> sums{};
  double threshold = 0.0;
  for (int k = 0; k < group.length; ++k) {
    for (const int64_t row : rows) {
      sums[static_cast<size_t>(k)] +=
          std::abs(static_cast<double>(w[row + group.first_col + k * group.step]));
    }
    if (((kept >> k) & 1) == 0) threshold = std::max(threshold, sums[static_cast<size_t>(k)]);
  }
  for (int k = 0; k < group.length; ++k) {
    const double sum = sums[static_cast<size_t>(k)];
    const bool stays = ((kept >> k) & 1) != 0 && sum > threshold;
    const T share = stays ? static_cast<T>(1.0 - threshold / sum) : T{0};
    for (const int64_t row : rows) {
      const int64_t at = row + group.first_col + k * group.step;
      out[at] = stays ? beta * (w[at] * share) : T{0};
    }
  }
}

// The bits of a group of four as numbers.
constexpr float kOnes[16][4] = {{0, 0, 0, 0}, {1, 0, 0, 0}, {0, 1, 0, 0}, {1, 1, 0, 0},
                                {0, 0, 1, 0}, {1, 0, 1, 0}, {0, 1, 1, 0}, {1, 1, 1, 0},
                                {0, 0, 0, 1}, {1, 0, 0, 1}, {0, 1, 0, 1}, {1, 1, 0, 1},
                                {0, 0, 1, 1}, {1, 0, 1, 1}, {0, 1, 1, 1}, {1, 1, 1, 1}};

// 16 groups of four in a row, the pattern that comes most often, as loops that become vectors: the
// same numbers in a fraction of the time. kept: their bits.
template <typename T>
void shrink_fours(const T* w, uint64_t kept, T beta, T* out) {
  T stays[64], dropped[64], threshold[64];  // 1 or 0; |w| or 0; of the group of each
  for (int i = 0; i < 64; ++i) stays[i] = T{kOnes[(kept >> (i & ~3)) & 15][i & 3]};
  for (int i = 0; i < 64; ++i) dropped[i] = std::abs(w[i]) * (T{1} - stays[i]);
  for (int g = 0; g < 64; g += 4) {
    const T largest =
        std::max(std::max(dropped[g], dropped[g + 1]), std::max(dropped[g + 2], dropped[g + 3]));
    for (int k = 0; k < 4; ++k) threshold[g + k] = largest;
  }
  for (int i = 0; i < 64; ++i) {
    const T left = std::max(std::abs(w[i]) - threshold[i], T{0}) * stays[i];
    out[i] = beta * std::copysign(left, w[i]);
  }
}

// The groups of all taps of some inputs, which are adjacent in a convolution: loops over the taps, for
// the same reason. 3 x 3 filters, 512 x 512 at 2:4, one thread of a Zen 4: 17.6 -> 4.3 ms.
constexpr int64_t kMostTogether = 1024;
template <typename T>
void shrink_taps(const T* w, const Mask& mask, int64_t row, int64_t col, int64_t taps, int64_t ins,
                 T beta, T* out) {
  T stays[kMostTogether], threshold[kMostTogether];
  for (int64_t i = 0; i < ins * taps; i += 64) {
    const int count = static_cast<int>(std::min<int64_t>(64, ins * taps - i));
    const uint64_t kept = mask.bits(row, col + i, count);
    for (int k = 0; k < count; ++k) stays[i + k] = static_cast<T>((kept >> k) & 1);
  }
  std::fill_n(threshold, taps, T{0});
  for (int64_t i = 0; i < ins * taps; i += taps) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      threshold[tap] = std::max(threshold[tap], std::abs(w[i + tap]) * (T{1} - stays[i + tap]));
    }
  }
  for (int64_t i = 0; i < ins * taps; i += taps) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      const T value = w[i + tap];
      const T left = std::max(std::abs(value) - threshold[tap], T{0}) * stays[i + tap];
      out[i + tap] = beta * std::copysign(left, value);
    }
  }
}

constexpr int64_t kCellsPerItem = 16;

}  // namespace

template <typename T>
void soft_threshold(const T* weights, const Mask& mask, const WeightShape& shape,
                    const Pattern& pattern, double beta, T* out,
                    std::span<const int64_t> row_order) {
  const Grouping grouping(shape, pattern);
  const int64_t cols = shape.cols(), cells = grouping.cells();
  const T scale = static_cast<T>(beta);
  const bool fours = pattern.share() == 1 && pattern.group() == 4 && shape.taps == 1;
  const int64_t taps_together = pattern.group() * shape.taps;
  const bool by_taps = pattern.share() == 1 && shape.taps > 1 && taps_together <= kMostTogether;
  // Columns of a row that are computed together, as often as there are so many.
  const int64_t together = fours ? 64 : by_taps ? taps_together : cols + 1;
  const int64_t whole = cols / together * together;
  std::vector<Group> groups = grouping.all_groups();
  std::erase_if(groups, [&](const Group& group) { return group.first_col < whole; });
  parallel_for((cells + kCellsPerItem - 1) / kCellsPerItem, [&](int64_t item) {
    const int64_t end = std::min(cells, (item + 1) * kCellsPerItem);
    for (int64_t c = item * kCellsPerItem; c < end; ++c) {
      const Cell cell = grouping.cell(c);
      const int64_t row = cell.first_row * cols;
      std::vector<int64_t> members;
      if (pattern.share() > 1) members = row_offsets(cell, cols, row_order);
      for (int64_t col = 0; col < whole; col += together) {
        const T* from = weights + row + col;
        fours
            ? shrink_fours(from, mask.bits(c, col, 64), scale, out + row + col)
            : shrink_taps(from, mask, c, col, shape.taps, pattern.group(), scale, out + row + col);
      }
      for (const Group& group : groups) {
        if (pattern.share() == 1) {
          const int64_t at = row + group.first_col;
          shrink_row(weights + at, Grouping::bits(mask, cell.first_row, group), group, scale,
                     out + at);
        } else {
          const uint64_t kept = Grouping::bits(mask, members.front() / cols, group);
          shrink_cell(weights, members, kept, group, scale, out);
        }
      }
    }
  });
}

template void soft_threshold(const float*, const Mask&, const WeightShape&, const Pattern&, double,
                             float*, std::span<const int64_t>);
template void soft_threshold(const double*, const Mask&, const WeightShape&, const Pattern&, double,
                             double*, std::span<const int64_t>);

double soft_threshold_scale(const float* weights, const Mask& mask, const WeightShape& shape,
                            const Pattern& pattern, std::span<const int64_t> row_order) {
  if (pattern.keep() == pattern.group()) return 1.0;
  const int64_t cols = shape.cols();
  std::vector<float> soft(static_cast<size_t>(shape.outs * cols));
  soft_threshold(weights, mask, shape, pattern, 1.0, soft.data(), row_order);
  double product = 0.0, square = 0.0;  // one after the other: the same for any number of threads
  for (size_t i = 0; i < soft.size(); ++i) {
    product += static_cast<double>(weights[i]) * soft[i];
    square += static_cast<double>(soft[i]) * soft[i];
  }
  return square > 0.0 ? product / square : 1.0;
}

namespace {

void find_soft(const LayerInput& input, LayerState& state) {
  find_magnitude_mask(input, state);
  if (state.scaled) return;
  state.beta = soft_threshold_scale(input.weights, state.forward, input.shape, input.pattern,
                                    state.row_order);
  state.scaled = true;
}

template <typename T>
void soft_values(const LayerInput& input, const LayerState& state, const T* weights, T* out) {
  soft_threshold(weights, state.forward, input.shape, input.pattern, state.beta, out,
                 state.row_order);
}

std::string soft_objection(const Recipe& recipe, const Pattern& pattern) {
  return mask_interval(recipe, pattern) == 1 ? ""
                                             : "the soft threshold needs mask_every=1: it is "
                                               "continuous only if updated at every step";
}

constexpr std::string_view kSoftSettings[] = {"mask_every", "order_every", "order_end"};

}  // namespace

const ForwardPart kSoftPart = {
    .name = "soft",
    .by_magnitude = true,
    .masks_of = "top-n",
    .settings = kSoftSettings,
    .find = find_soft,
    .values = [](const LayerInput& input, const LayerState& state,
                 float* out) { soft_values(input, state, input.weights, out); },
    .values_in_double = soft_values<double>,
    .objection = soft_objection,
    .schedule_text = [](const Recipe&) { return std::string("mask every step; β frozen"); },
    .add_figures =
        [](const LayerInput&, const LayerState& state, std::vector<Figure>& figures) {
          figures.push_back({"beta", state.beta});
        }};

}  // namespace weft
