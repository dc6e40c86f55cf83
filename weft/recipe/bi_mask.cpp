#include "weft/recipe/bi_mask.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/recipe/layer_state.h"
#include "weft/recipe/permutation.h"
#include "weft/recipe/schedule.h"

namespace weft {
namespace {

// The columns among 64 in which more than `keep` of the rows have a bit. The counters of all
// columns are kept side by side, a plane of words per binary digit.
uint64_t crowded(std::span<const uint64_t> rows, int keep) {
  std::array<uint64_t, 7> digits{};
  for (uint64_t carry : rows) {
    for (size_t d = 0; carry != 0 && d < digits.size(); ++d) {
      const uint64_t sum = digits[d] ^ carry;
      carry &= digits[d];
      digits[d] = sum;
    }
  }
  uint64_t more = 0, equal = ~uint64_t{0};  // compared with keep, from the highest digit down
  for (size_t d = digits.size(); d-- > 0;) {
    const uint64_t digit = ((keep >> d) & 1) != 0 ? ~uint64_t{0} : 0;
    more |= equal & digits[d] & ~digit;
    equal &= ~(digits[d] ^ digit);
  }
  return more;
}

// A group of permuted outputs, 64 columns at a time.
class GroupOfOutputs {
 public:
  GroupOfOutputs(const float* values, int64_t cols, std::span<const int64_t> outputs, int keep)
      : values_(values), cols_(cols), outputs_(outputs), keep_(keep) {}

  void thin_out(Mask& mask, int64_t first_col, int count) const {
    std::array<uint64_t, Pattern::kMaxGroup> rows{};
    for (size_t r = 0; r < outputs_.size(); ++r) {
      rows[r] = mask.bits(outputs_[r], first_col, count);
    }
    const std::span<uint64_t> all(rows.data(), outputs_.size());
    for (uint64_t left = crowded(all, keep_); left != 0; left &= left - 1) {
      const int column = std::countr_zero(left);
      drop_smallest(all, first_col, column);
    }
    for (size_t r = 0; r < outputs_.size(); ++r) {
      mask.put_bits(outputs_[r], first_col, count, rows[r]);
    }
  }

 private:
  void drop_smallest(std::span<uint64_t> rows, int64_t first_col, int column) const {
    const uint64_t bit = uint64_t{1} << column;
    int held = 0;
    for (const uint64_t row : rows) held += (row & bit) != 0;
    for (; held > keep_; --held) {
      size_t smallest = rows.size();
      float size = 0.0f;
      for (size_t r = 0; r < rows.size(); ++r) {
        if ((rows[r] & bit) == 0) continue;
        const float candidate = std::abs(values_[outputs_[r] * cols_ + first_col + column]);
        if (smallest == rows.size() || candidate <= size) {
          smallest = r;
          size = candidate;
        }
      }
      rows[smallest] &= ~bit;
    }
  }

  const float* values_;
  int64_t cols_;
  std::span<const int64_t> outputs_;
  int keep_;
};

}  // namespace

Mask backward_mask(const float* values, const Mask& forward, const WeightShape& shape,
                   const Pattern& pattern, std::span<const int64_t> permutation) {
  WEFT_CHECK(static_cast<int64_t>(permutation.size()) == shape.outs,
             "a permutation of {} outputs for a layer of {}", permutation.size(), shape.outs);
  Mask mask = forward;
  const int64_t cols = shape.cols(), group = pattern.group();
  // Each row of a mask has its own words, so groups can be pruned in parallel.
  parallel_for((shape.outs + group - 1) / group, [&](int64_t g) {
    const int64_t first = g * group;
    const auto outputs = permutation.subspan(
        static_cast<size_t>(first), static_cast<size_t>(std::min(group, shape.outs - first)));
    const GroupOfOutputs members(values, cols, outputs, pattern.keep());
    for (int64_t col = 0; col < cols; col += 64) {
      members.thin_out(mask, col, static_cast<int>(std::min<int64_t>(64, cols - col)));
    }
  });
  return mask;
}

// ---- the row

namespace {

bool is_permutation_due(const LayerInput& input, const LayerState& state) {
  const int64_t every = input.recipe->schedule.permutation_every;
  return every > 0 && (state.permutation.empty() || comes_due(every, state.refreshed, state.step));
}

void refresh_permutation(const LayerInput& input, LayerState& state) {
  const bool due = is_permutation_due(input, state);
  if (state.permutation.empty()) state.permutation = identity_permutation(input.shape.outs);
  if (!due) return;
  improve_permutation(state.forward, input.pattern,
                      {input.recipe->permutation_search, input.recipe->permutation_goal, 0},
                      rng_for(RandomUse::kPermutation, state), state.permutation);
}

std::string bi_mask_objection(const Recipe& recipe, const Pattern&) {
  if (recipe.is_dense()) {
    return "backward=bi-mask prunes a sparse forward operand; this one is dense";
  }
  return recipe.forward->transposable
             ? "a transposable operand is N:M along outputs already; bi-mask would only prune more"
             : "";
}

std::string bi_mask_schedule(const Recipe& recipe) {
  const int64_t every = recipe.schedule.permutation_every;
  return every > 0 ? fmt::format("permutation every {}", every) : "";
}

constexpr int64_t kPermutationEvery = 100;  // the paper's
constexpr std::string_view kBiMaskSettings[] = {"permutation_every", "permutation_search",
                                                "permutation_goal"};

}  // namespace

const BackwardPart kBiMaskPart = {
    .name = "bi-mask",
    .permutes_outputs = true,
    .settings = kBiMaskSettings,
    .find =
        [](const LayerInput& input, const float* values, LayerState& state) {
          state.backward =
              backward_mask(values, state.forward, input.shape, input.pattern, state.permutation);
        },
    .is_refresh_due = is_permutation_due,
    .refresh = refresh_permutation,
    .objection = bi_mask_objection,
    .schedule_text = bi_mask_schedule,
    .set_defaults =
        [](Recipe& recipe) {
          int64_t& every = recipe.schedule.permutation_every;
          if (every == 0) every = kPermutationEvery;
        }};

}  // namespace weft
