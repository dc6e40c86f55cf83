#include "weft/recipe/best_combination.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/recipe/layer_state.h"
#include "weft/recipe/schedule.h"

namespace weft {
namespace {

double choose(int n, int k) {
  double result = 1.0;
  for (int i = 1; i <= k; ++i) result = result * (n - k + i) / i;
  return std::round(result);
}

uint64_t ones(int count) { return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

bool many_subsets(const Pattern& pattern) {
  return choose(pattern.group(), pattern.keep()) > static_cast<double>(kMaxSubsets);
}

// The next larger word with as many ones.
uint64_t next_subset(uint64_t subset) {
  const uint64_t low = subset & (~subset + 1);
  const uint64_t ripple = subset + low;
  return ripple | (((subset ^ ripple) >> 2) / low);
}

// Calls body(candidate) for those of a row of `alive`, in order.
template <typename Body>
void for_each_alive(const Mask& alive, int64_t row, int count, Body body) {
  for (int first = 0; first < count; first += 64) {
    uint64_t bits = alive.bits(row, first, std::min(64, count - first));
    for (; bits != 0; bits &= bits - 1) body(first + std::countr_zero(bits));
  }
}

}  // namespace

Candidates::Candidates(int keep, int length, bool factorised)
    : keep_(std::min(keep, length)),
      factorised_(factorised),
      subsets_(choose(length, keep_)),
      first_score_(1.0f) {
  if (length == 0) return;
  if (factorised_) {
    for (int k = 0; k < length; ++k) members_.push_back(uint64_t{1} << k);
    return;
  }
  first_score_ = static_cast<float>(1.0 / choose(length - 1, keep_ - 1));
  const auto count = static_cast<int>(subsets_);
  uint64_t subset = ones(keep_);
  for (int i = 0; i < count; ++i) {
    members_.push_back(subset);
    if (i + 1 < count) subset = next_subset(subset);
  }
}

int Candidates::alive(double progress, double power) const {
  const double left = std::pow(std::clamp(1.0 - progress, 0.0, 1.0), power);
  const double subsets = 1.0 + std::ceil((subsets_ - 1.0) * left);
  if (!factorised_) return static_cast<int>(subsets);
  int weights = keep_;
  while (choose(weights, keep_) < subsets) ++weights;
  return weights;
}

BestCombination::BestCombination(const WeightShape& shape, const Pattern& pattern)
    : grouping_(shape, pattern),
      whole_(pattern.keep(), pattern.group(), many_subsets(pattern)),
      short_(pattern.keep(), static_cast<int>(shape.ins % pattern.group()), many_subsets(pattern)) {
}

void BestCombination::first_scores(std::span<float> scores) const {
  for (int64_t cell = 0; cell < cells(); ++cell) {
    for (int64_t g = 0; g < groups(); ++g) {
      const float score = candidates_of(grouping_.group(g)).first_score();
      const auto first = scores.begin() + (cell * groups() + g) * candidates();
      std::fill(first, first + candidates(), score);
    }
  }
}

Mask BestCombination::all_alive() const {
  Mask alive(cells() * groups(), candidates());
  for (int64_t row = 0; row < alive.rows(); ++row) {
    const int count = candidates_of(grouping_.group(row % groups())).count();
    for (int i = 0; i < count; ++i) alive.set(row, i, true);
  }
  return alive;
}

void BestCombination::remove(std::span<const float> scores, double progress, double power,
                             Mask& alive) const {
  // The same for all groups of a length: a power for each of them would take as long as the rest.
  const auto whole_keeps = static_cast<size_t>(whole_.alive(progress, power));
  const auto short_keeps = static_cast<size_t>(short_.alive(progress, power));
  parallel_for(cells(), [&](int64_t cell) {
    std::vector<int> order;
    for (int64_t g = 0; g < groups(); ++g) {
      const int64_t row = cell * groups() + g;
      const Candidates& candidates = candidates_of(grouping_.group(g));
      const size_t keep = &candidates == &whole_ ? whole_keeps : short_keeps;
      order.clear();
      for_each_alive(alive, row, candidates.count(), [&](int i) { order.push_back(i); });
      if (order.size() <= keep) continue;
      const float* score = scores.data() + row * this->candidates();
      for (const int i : order) {
        WEFT_CHECK(std::isfinite(score[i]), "lbc: score {} of group {} of cell {} is {}", i, g,
                   cell, score[i]);
      }
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return score[a] > score[b]; });
      for (size_t i = keep; i < order.size(); ++i) alive.set(row, order[i], false);
    }
  });
}

Mask BestCombination::mask(const Mask& alive) const {
  const WeightShape& shape = grouping_.shape();
  Mask mask(shape.outs, shape.cols());
  parallel_for(cells(), [&](int64_t c) {
    const Cell cell = grouping_.cell(c);
    for (int64_t g = 0; g < groups(); ++g) {
      const Group group = grouping_.group(g);
      const Candidates& candidates = candidates_of(group);
      uint64_t kept = 0;
      for_each_alive(alive, c * groups() + g, candidates.count(),
                     [&](int i) { kept |= candidates.members(i); });
      for (int64_t r = 0; r < cell.rows; ++r) {
        Grouping::put_bits(mask, cell.first_row + r * cell.step, group, kept);
      }
    }
  });
  return mask;
}

double BestCombination::mean_alive(const Mask& alive) const {
  return alive.rows() == 0 ? 0.0
                           : static_cast<double>(alive.count()) / static_cast<double>(alive.rows());
}

template <typename T>
void BestCombination::add_score_gradients(const T* dw, const T* weights, const Mask& alive,
                                          T* d_scores) const {
  const int64_t cols = grouping_.shape().cols();
  parallel_for(cells(), [&](int64_t c) {
    const Cell cell = grouping_.cell(c);
    std::array<T, Pattern::kMaxGroup> moves{};  // dW̃ · W of each weight of a group
    for (int64_t g = 0; g < groups(); ++g) {
      const Group group = grouping_.group(g);
      for (int k = 0; k < group.length; ++k) {
        T sum = 0;
        for (int64_t r = 0; r < cell.rows; ++r) {
          const int64_t at =
              (cell.first_row + r * cell.step) * cols + group.first_col + k * group.step;
          sum += dw[at] * weights[at];
        }
        moves[static_cast<size_t>(k)] = sum;
      }
      const Candidates& candidates = candidates_of(group);
      const int64_t row = c * groups() + g;
      for_each_alive(alive, row, candidates.count(), [&](int i) {
        T sum = 0;
        for (uint64_t bits = candidates.members(i); bits != 0; bits &= bits - 1) {
          sum += moves[static_cast<size_t>(std::countr_zero(bits))];
        }
        d_scores[row * this->candidates() + i] += sum;
      });
    }
  });
}

template void BestCombination::add_score_gradients(const float*, const float*, const Mask&,
                                                   float*) const;
template void BestCombination::add_score_gradients(const double*, const double*, const Mask&,
                                                   double*) const;

// ---- the row

namespace {

bool is_removing(const Recipe& recipe, int64_t step, int64_t total_steps) {
  return removal_progress(recipe, step, total_steps) < 1.0;
}

void find_union(const LayerInput& input, LayerState& state) {
  const Recipe& recipe = *input.recipe;
  if (state.sparse() && !is_removing(recipe, state.step - 1, input.total_steps)) return;
  const BestCombination lbc(input.shape, input.pattern);
  if (state.alive.rows() == 0) state.alive = lbc.all_alive();
  lbc.remove(input.scores, removal_progress(recipe, state.step, input.total_steps),
             recipe.schedule.removal_power, state.alive);
  state.forward = lbc.mask(state.alive);
}

std::string union_objection(const Recipe& recipe, const Pattern&) {
  const Schedule& s = recipe.schedule;
  if (s.removal_end <= s.dense_head) {
    return "subsets need time to learn their scores: removal_end must come after the dense head";
  }
  if (s.removal_end > 1.0 - s.dense_tail) {
    return "removal_end must come before the dense tail";
  }
  if (s.order_every > 0) {
    return "sharing rows learn their scores together; a row order needs masks chosen by magnitude";
  }
  return "";
}

std::string union_schedule(const Recipe& recipe) {
  return fmt::format("removal to the power {:.3g} until {:.3g}", recipe.schedule.removal_power,
                     recipe.schedule.removal_end);
}

template <typename T>
void union_gradient(const LayerInput& input, const LayerState& state, const T* weights, const T* dw,
                    T* d_scores) {
  BestCombination(input.shape, input.pattern)
      .add_score_gradients(dw, weights, state.alive, d_scores);
}

const ScoreRow kUnionScores = {
    .shape = [](const WeightShape& shape, const Pattern& pattern) -> ScoreRow::Shape {
      const BestCombination lbc(shape, pattern);
      return {lbc.cells(), lbc.groups(), lbc.candidates()};
    },
    .first = [](const WeightShape& shape, const Pattern& pattern,
                std::span<float> scores) { BestCombination(shape, pattern).first_scores(scores); },
    .gradient = [](const LayerInput& input, const LayerState& state, const float* dw,
                   float* d_scores) { union_gradient(input, state, input.weights, dw, d_scores); },
    .gradient_in_double = union_gradient<double>,
    .are_trained = is_removing};

// order_every, to refuse it with its reason.
constexpr std::string_view kUnionSettings[] = {"removal_end", "removal_power", "order_every"};

void add_union_figures(const LayerInput& input, const LayerState& state,
                       std::vector<Figure>& figures) {
  if (state.alive.rows() == 0) return;
  figures.push_back({"alive", BestCombination(input.shape, input.pattern).mean_alive(state.alive)});
}

}  // namespace

const ForwardPart kUnionPart = {.name = "union",
                                .scores = &kUnionScores,
                                .settings = kUnionSettings,
                                .find = find_union,
                                .keeps_more = is_removing,
                                .objection = union_objection,
                                .schedule_text = union_schedule,
                                .add_figures = add_union_figures};

}  // namespace weft
