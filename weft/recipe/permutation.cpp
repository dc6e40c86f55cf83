#include "weft/recipe/permutation.h"

#include <algorithm>
#include <numeric>

#include "weft/core/error.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// What a block of `held` kept entries is worth.
int worth(int held, int keep, PermutationGoal goal) {
  if (goal == PermutationGoal::kKept) return std::min(held, keep);
  return held <= keep ? 1 : 0;
}

// Groups of outputs with their number of kept entries at every input.
class Groups {
 public:
  Groups(const Mask& forward, const Pattern& pattern, PermutationGoal goal)
      : cols_(forward.cols()), group_(pattern.group()), keep_(pattern.keep()), goal_(goal) {
    bytes_.resize(static_cast<size_t>(forward.rows() * cols_));
    parallel_for(forward.rows(), [&](int64_t row) {
      for (int64_t c = 0; c < cols_; ++c) {
        bytes_[static_cast<size_t>(row * cols_ + c)] = forward.at(row, c) ? 1 : 0;
      }
    });
  }

  void arrange(std::span<const int64_t> permutation) {
    const int64_t outs = static_cast<int64_t>(permutation.size());
    const int64_t groups = (outs + group_ - 1) / group_;
    held_.assign(static_cast<size_t>(groups * cols_), 0);
    for (int64_t place = 0; place < outs; ++place) {
      uint8_t* held = held_of(place / group_);
      const uint8_t* row = row_of(permutation[static_cast<size_t>(place)]);
      for (int64_t c = 0; c < cols_; ++c) held[c] = static_cast<uint8_t>(held[c] + row[c]);
    }
  }

  int64_t value() const {
    int64_t total = 0;
    for (const uint8_t held : held_) total += worth(held, keep_, goal_);
    return total;
  }

  // What is gained if outputs a and b, of the groups of places i and j, change places.
  int64_t gain(int64_t place_a, int64_t a, int64_t place_b, int64_t b) const {
    const uint8_t* held_a = held_.data() + place_a / group_ * cols_;
    const uint8_t* held_b = held_.data() + place_b / group_ * cols_;
    const uint8_t *row_a = row_of(a), *row_b = row_of(b);
    return goal_ == PermutationGoal::kKept
               ? gain_of<PermutationGoal::kKept>(held_a, held_b, row_a, row_b)
               : gain_of<PermutationGoal::kEligible>(held_a, held_b, row_a, row_b);
  }

  void exchange(int64_t place_a, int64_t a, int64_t place_b, int64_t b) {
    uint8_t *held_a = held_of(place_a / group_), *held_b = held_of(place_b / group_);
    const uint8_t *row_a = row_of(a), *row_b = row_of(b);
    for (int64_t c = 0; c < cols_; ++c) {
      held_a[c] = static_cast<uint8_t>(held_a[c] + row_b[c] - row_a[c]);
      held_b[c] = static_cast<uint8_t>(held_b[c] + row_a[c] - row_b[c]);
    }
  }

  int64_t group() const { return group_; }

 private:
  const uint8_t* row_of(int64_t out) const { return bytes_.data() + out * cols_; }
  uint8_t* held_of(int64_t group) { return held_.data() + group * cols_; }

  template <PermutationGoal goal>
  int64_t gain_of(const uint8_t* held_a, const uint8_t* held_b, const uint8_t* row_a,
                  const uint8_t* row_b) const {
    // In chunks whose sum fits 16 bits, so that the compiler can use short lanes.
    int64_t total = 0;
    for (int64_t first = 0; first < cols_; first += 4096) {
      int16_t sum = 0;
      for (int64_t c = first; c < std::min(cols_, first + 4096); ++c) {
        const int change = row_b[c] - row_a[c];
        sum = static_cast<int16_t>(
            sum + worth(held_a[c] + change, keep_, goal) - worth(held_a[c], keep_, goal) +
            worth(held_b[c] - change, keep_, goal) - worth(held_b[c], keep_, goal));
      }
      total += sum;
    }
    return total;
  }

  int64_t cols_;
  int64_t group_;
  int keep_;
  PermutationGoal goal_;
  std::vector<uint8_t> bytes_;  // [outs, cols]: 1 where the forward mask keeps
  std::vector<uint8_t> held_;   // [groups, cols]
};

void search_at_random(Groups& groups, int64_t tries, const Rng& rng,
                      std::vector<int64_t>& permutation) {
  const auto outs = static_cast<int64_t>(permutation.size());
  groups.arrange(permutation);
  int64_t best = groups.value();
  for (int64_t t = 0; t < tries; ++t) {
    std::vector<int64_t> candidate = identity_permutation(outs);
    for (int64_t i = outs - 1; i > 0; --i) {
      const uint64_t index = static_cast<uint64_t>(t * outs + i);
      const auto j = static_cast<size_t>(rng.below(index, static_cast<uint64_t>(i + 1)));
      std::swap(candidate[static_cast<size_t>(i)], candidate[j]);
    }
    groups.arrange(candidate);
    if (groups.value() > best) {
      best = groups.value();
      permutation = std::move(candidate);
    }
  }
}

void search_by_swaps(Groups& groups, int64_t tries, const Rng& rng,
                     std::vector<int64_t>& permutation) {
  const auto outs = static_cast<uint64_t>(permutation.size());
  groups.arrange(permutation);
  for (int64_t t = 0; t < tries; ++t) {
    const auto i = static_cast<int64_t>(rng.below(static_cast<uint64_t>(2 * t), outs));
    const auto j = static_cast<int64_t>(rng.below(static_cast<uint64_t>(2 * t + 1), outs));
    if (i / groups.group() == j / groups.group()) continue;
    int64_t& a = permutation[static_cast<size_t>(i)];
    int64_t& b = permutation[static_cast<size_t>(j)];
    if (groups.gain(i, a, j, b) <= 0) continue;
    groups.exchange(i, a, j, b);
    std::swap(a, b);
  }
}

}  // namespace

std::vector<int64_t> identity_permutation(int64_t outs) {
  std::vector<int64_t> permutation(static_cast<size_t>(outs));
  std::iota(permutation.begin(), permutation.end(), int64_t{0});
  return permutation;
}

bool is_permutation(std::span<const int64_t> permutation) {
  std::vector<bool> seen(permutation.size(), false);
  for (const int64_t out : permutation) {
    if (out < 0 || out >= static_cast<int64_t>(seen.size()) || seen[static_cast<size_t>(out)]) {
      return false;
    }
    seen[static_cast<size_t>(out)] = true;
  }
  return true;
}

int64_t permutation_value(const Mask& forward, const Pattern& pattern, PermutationGoal goal,
                          std::span<const int64_t> permutation) {
  Groups groups(forward, pattern, goal);
  groups.arrange(permutation);
  return groups.value();
}

void improve_permutation(const Mask& forward, const Pattern& pattern,
                         const PermutationOptions& options, const Rng& rng,
                         std::vector<int64_t>& permutation) {
  WEFT_CHECK(static_cast<int64_t>(permutation.size()) == forward.rows(),
             "a permutation of {} outputs for a layer of {}", permutation.size(), forward.rows());
  if (permutation.empty()) return;
  Groups groups(forward, pattern, options.goal);
  if (options.search == PermutationSearch::kRandom) {
    search_at_random(groups, options.tries > 0 ? options.tries : 100, rng, permutation);
  } else {
    search_by_swaps(groups, options.tries > 0 ? options.tries : 8 * forward.rows(), rng,
                    permutation);
  }
}

}  // namespace weft
