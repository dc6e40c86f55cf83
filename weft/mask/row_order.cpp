#include "weft/mask/row_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "weft/core/bits.h"
#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// |w| with the k-th members of all groups side by side, so that loops over groups are vectors:
//
//   row [group, width]:   at k * width + g      width: groups, up to a multiple of kLanes
//
// Short groups, and the groups up to the width, are filled with zeros, which change no sum.
class GroupedMagnitudes {
 public:
  static constexpr int64_t kLanes = 8;

  GroupedMagnitudes(const float* weights, const WeightShape& shape, const Pattern& pattern,
                    bool sum_columns)
      : keep_(pattern.keep()), group_(pattern.group()) {
    const int64_t span = sum_columns ? pattern.block() : pattern.group();  // columns of a group
    const int64_t per_tap = ceil_div(shape.ins, span);
    width_ = ceil_div(per_tap * shape.taps, kLanes) * kLanes;
    size_ = width_ * group_;
    values_.resize(static_cast<size_t>(shape.outs * size_));
    parallel_for(shape.outs, [&](int64_t r) {
      const float* from = weights + r * shape.cols();
      float* to = values_.data() + r * size_;
      for (int64_t i = 0; i < shape.ins; ++i) {
        float* of_group = to + i % group_ * width_ + i / span;
        for (int64_t tap = 0; tap < shape.taps; ++tap) {
          of_group[tap * per_tap] += std::abs(*from++);
        }
      }
    });
  }

  int64_t size() const { return size_; }  // of a row
  const float* row(int64_t r) const { return values_.data() + r * size_; }

  // The sum of the `keep` largest of every group.
  double top(const float* sums) const {
    if (keep_ == 2 && group_ == 4) return top_2_of_4(sums);
    double total = 0.0;
    std::array<float, Pattern::kMaxGroup> one;
    for (int64_t g = 0; g < width_; ++g) {
      for (int k = 0; k < group_; ++k) one[size_t(k)] = sums[k * width_ + g];
      const auto begin = one.begin();
      std::nth_element(begin, begin + keep_ - 1, begin + group_, std::greater<>());
      total += std::accumulate(begin, begin + keep_, 0.0);
    }
    return total;
  }

  // mask: 1 where one of the `keep` largest of its group stands, else 0; [size()]. Of equal ones
  // the first.
  void mark(const float* sums, float* mask) const {
    const auto limit = static_cast<float>(keep_);
    for (int k = 0; k < group_; ++k) {
      const float* here = sums + k * width_;
      float* before = mask + k * width_;  // members that come first
      std::fill_n(before, width_, 0.0f);
      for (int other = 0; other < group_; ++other) {
        if (other == k) continue;
        const float* there = sums + other * width_;
        if (other < k) {
          for (int64_t g = 0; g < width_; ++g) before[g] += there[g] >= here[g] ? 1.0f : 0.0f;
        } else {
          for (int64_t g = 0; g < width_; ++g) before[g] += there[g] > here[g] ? 1.0f : 0.0f;
        }
      }
      for (int64_t g = 0; g < width_; ++g) before[g] = before[g] < limit ? 1.0f : 0.0f;
    }
  }

 private:
  // The largest sum of two is that of the two larger ones of the pairs, or a pair.
  double top_2_of_4(const float* sums) const {
    const float *a = sums, *b = a + width_, *c = b + width_, *d = c + width_;
    std::array<double, kLanes> lanes{};
    for (int64_t g = 0; g < width_; g += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) {
        const float low = a[g + i] + b[g + i], high = c[g + i] + d[g + i];
        const float mixed = std::max(a[g + i], b[g + i]) + std::max(c[g + i], d[g + i]);
        lanes[size_t(i)] += double{std::max(mixed, std::max(low, high))};
      }
    }
    return std::accumulate(lanes.begin(), lanes.end(), 0.0);
  }

  int keep_, group_;
  int64_t width_ = 0, size_ = 0;
  std::vector<float> values_;
};

// The sum of a[i] (b[i] - c[i]), in lanes of a fixed number.
double dot_difference(const float* a, const float* b, const float* c, int64_t size) {
  constexpr int64_t kLanes = GroupedMagnitudes::kLanes;
  std::array<float, kLanes> lanes{};
  for (int64_t at = 0; at < size; at += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      lanes[size_t(i)] += a[at + i] * (b[at + i] - c[at + i]);
    }
  }
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

// The places of a cell, as in Pattern.
struct CellPlaces {
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 0;
};

std::vector<CellPlaces> cells_of(int64_t outs, const Pattern& pattern) {
  std::vector<CellPlaces> cells;
  for (int64_t block = 0; block < outs; block += pattern.block()) {
    const int64_t end = std::min<int64_t>(outs, block + pattern.block());
    for (int64_t first = block; first < std::min<int64_t>(end, block + pattern.group()); ++first) {
      cells.push_back({first, pattern.group(), (end - 1 - first) / pattern.group() + 1});
    }
  }
  return cells;
}

using CellRows = std::vector<std::vector<int64_t>>;  // the outputs of every cell

CellRows rows_of_cells(std::span<const int64_t> order, const std::vector<CellPlaces>& cells) {
  CellRows rows(cells.size());
  for (size_t c = 0; c < cells.size(); ++c) {
    for (int64_t m = 0; m < cells[c].count; ++m) {
      rows[c].push_back(order[static_cast<size_t>(cells[c].first + m * cells[c].stride)]);
    }
  }
  return rows;
}

// In a cell outputs stand in their own order: which one is where changes nothing.
std::vector<int64_t> order_of_cells(CellRows rows, const std::vector<CellPlaces>& cells,
                                    int64_t outs) {
  std::vector<int64_t> order(static_cast<size_t>(outs));
  for (size_t c = 0; c < cells.size(); ++c) {
    std::sort(rows[c].begin(), rows[c].end());
    for (int64_t m = 0; m < cells[c].count; ++m) {
      order[static_cast<size_t>(cells[c].first + m * cells[c].stride)] = rows[c][size_t(m)];
    }
  }
  return order;
}

// Cells of outputs whose own masks have most in common with that of the first.
class Clusters {
 public:
  Clusters(const float* weights, const WeightShape& shape, const Pattern& pattern) {
    const Mask own =
        find_mask(default_solver(false), weights, shape, Pattern(pattern.keep(), pattern.group()));
    const int64_t words = ceil_div(own.cols(), 64);
    taken_ = std::min(words, kWords);
    bits_.resize(static_cast<size_t>(own.rows() * taken_));
    for (int64_t r = 0; r < own.rows(); ++r) {
      for (int64_t i = 0; i < taken_; ++i) {
        bits_[static_cast<size_t>(r * taken_ + i)] = own.row_words(r)[i * words / taken_];
      }
    }
  }

  CellRows find(const std::vector<CellPlaces>& cells, int64_t outs) const {
    std::vector<int64_t> left = identity_order(outs);
    CellRows rows;
    for (const CellPlaces& cell : cells) rows.push_back(take_cell(cell.count, left));
    return rows;
  }

 private:
  static constexpr int64_t kWords = 16;
  static constexpr int64_t kWindow = 4096;  // of the outputs that are left

  std::vector<int64_t> take_cell(int64_t count, std::vector<int64_t>& left) const {
    const auto seen = std::min<int64_t>(kWindow, static_cast<int64_t>(left.size()));
    struct Near {
      int in_common;
      int64_t row;
    };
    std::vector<Near> near;
    for (int64_t i = 0; i < seen; ++i) {
      near.push_back({i == 0 ? 65 * int{kWords} : in_common(left[0], left[size_t(i)]),
                      left[static_cast<size_t>(i)]});
    }
    std::nth_element(
        near.begin(), near.begin() + count - 1, near.end(), [](const Near& a, const Near& b) {
          return a.in_common != b.in_common ? a.in_common > b.in_common : a.row < b.row;
        });
    std::vector<int64_t> taken;
    for (int64_t i = 0; i < count; ++i) taken.push_back(near[static_cast<size_t>(i)].row);
    std::sort(taken.begin(), taken.end());
    std::erase_if(left,
                  [&](int64_t row) { return std::binary_search(taken.begin(), taken.end(), row); });
    return taken;
  }

  int in_common(int64_t a, int64_t b) const {
    const uint64_t* left = bits_.data() + a * taken_;
    const uint64_t* right = bits_.data() + b * taken_;
    int count = 0;
    for (int64_t i = 0; i < taken_; ++i) count += popcount64(left[i] & right[i]);
    return count;
  }

  int64_t taken_ = 0;  // words of an output
  std::vector<uint64_t> bits_;
};

// The cells, their sums of |w|, and the rounds of swaps.
class CellSearch {
 public:
  CellSearch(const GroupedMagnitudes& magnitudes, CellRows rows)
      : magnitudes_(magnitudes),
        rows_(std::move(rows)),
        sums_(rows_.size() * static_cast<size_t>(magnitudes.size())),
        values_(rows_.size()) {
    parallel_for(static_cast<int64_t>(rows_.size()), [&](int64_t c) {
      float* sums = sums_of(c);
      for (const int64_t row : rows_[static_cast<size_t>(c)]) {
        const float* from = magnitudes_.row(row);
        for (int64_t i = 0; i < magnitudes_.size(); ++i) sums[i] += from[i];
      }
      values_[static_cast<size_t>(c)] = magnitudes_.top(sums);
    });
  }

  double value() const { return std::accumulate(values_.begin(), values_.end(), 0.0); }
  const CellRows& rows() const { return rows_; }
  // The cells of another search over the same magnitudes.
  void take(CellSearch&& other) {
    rows_ = std::move(other.rows_);
    sums_ = std::move(other.sums_);
    values_ = std::move(other.values_);
  }

  // Every cell meets one other.
  void round(const Rng& rng) {
    std::vector<int64_t> cells = identity_order(static_cast<int64_t>(rows_.size()));
    for (size_t i = cells.size(); i > 1; --i) std::swap(cells[i - 1], cells[rng.below(i, i)]);
    const auto meet_pair = [&](int64_t pair) {
      meet(cells[static_cast<size_t>(2 * pair)], cells[static_cast<size_t>(2 * pair + 1)]);
    };
    const auto pairs = static_cast<int64_t>(cells.size() / 2);
    if (weights() >= kWorthThreads) return parallel_for(pairs, meet_pair);
    for (int64_t pair = 0; pair < pairs; ++pair) meet_pair(pair);
  }

 private:
  // Exchanges that are tried each time two cells meet, those with the largest leanings first. Of
  // 1024 x 1024 Gaussian weights at 2:4x16, 8 rounds with 1, 2, 4, 16 retained 0.5705, 0.5711,
  // 0.5713, 0.5712.
  static constexpr size_t kTries = 4;
  // Weights from which on a round is shared among threads. Waiting for others on a busy machine
  // made the 64 rounds of a 128 x 128 layer take 0.6 s.
  static constexpr int64_t kWorthThreads = 256 << 10;

  struct Leaning {
    double gain;  // under the mask of the other cell
    size_t member;
  };
  struct Scratch {
    std::vector<float> mask_a, mask_b, sums_a, sums_b;
  };

  int64_t weights() const {
    int64_t rows = 0;
    for (const auto& cell : rows_) rows += static_cast<int64_t>(cell.size());
    return rows * magnitudes_.size();
  }
  float* sums_of(int64_t cell) { return sums_.data() + cell * magnitudes_.size(); }

  std::vector<Leaning> leanings(const std::vector<int64_t>& rows, const std::vector<float>& own,
                                const std::vector<float>& other) const {
    std::vector<Leaning> found;
    for (size_t m = 0; m < rows.size(); ++m) {
      found.push_back(
          {dot_difference(magnitudes_.row(rows[m]), other.data(), own.data(), magnitudes_.size()),
           m});
    }
    std::sort(found.begin(), found.end(), [](const Leaning& x, const Leaning& y) {
      return x.gain != y.gain ? x.gain > y.gain : x.member < y.member;
    });
    return found;
  }

  void meet(int64_t a, int64_t b) {
    thread_local Scratch scratch;
    const auto size = static_cast<size_t>(magnitudes_.size());
    for (auto* part : {&scratch.mask_a, &scratch.mask_b, &scratch.sums_a, &scratch.sums_b}) {
      part->resize(size);
    }
    magnitudes_.mark(sums_of(a), scratch.mask_a.data());
    magnitudes_.mark(sums_of(b), scratch.mask_b.data());
    auto& rows_a = rows_[static_cast<size_t>(a)];
    auto& rows_b = rows_[static_cast<size_t>(b)];
    const auto from_a = leanings(rows_a, scratch.mask_a, scratch.mask_b);
    const auto from_b = leanings(rows_b, scratch.mask_b, scratch.mask_a);
    const size_t tries = std::min({kTries, from_a.size(), from_b.size()});
    for (size_t i = 0; i < tries; ++i) {
      exchange(a, rows_a[from_a[i].member], b, rows_b[from_b[i].member], scratch);
    }
  }

  // If the goal becomes larger.
  void exchange(int64_t a, int64_t& row_a, int64_t b, int64_t& row_b, Scratch& scratch) {
    const float *out = magnitudes_.row(row_a), *in = magnitudes_.row(row_b);
    float *sums_a = sums_of(a), *sums_b = sums_of(b);
    for (size_t i = 0; i < scratch.sums_a.size(); ++i) {
      const float moved = in[i] - out[i];
      scratch.sums_a[i] = sums_a[i] + moved;
      scratch.sums_b[i] = sums_b[i] - moved;
    }
    double &value_a = values_[static_cast<size_t>(a)], &value_b = values_[static_cast<size_t>(b)];
    const double new_a = magnitudes_.top(scratch.sums_a.data());
    const double new_b = magnitudes_.top(scratch.sums_b.data());
    // Rounding of the sums must not look like a gain.
    if (new_a + new_b <= (value_a + value_b) * (1.0 + 1e-6)) return;
    std::copy(scratch.sums_a.begin(), scratch.sums_a.end(), sums_a);
    std::copy(scratch.sums_b.begin(), scratch.sums_b.end(), sums_b);
    value_a = new_a;
    value_b = new_b;
    std::swap(row_a, row_b);
  }

  const GroupedMagnitudes& magnitudes_;
  CellRows rows_;
  std::vector<float> sums_;     // [cells, size of a row]
  std::vector<double> values_;  // [cells]
};

}  // namespace

template <typename T>
std::vector<T> in_row_order(const T* rows, const WeightShape& shape,
                            std::span<const int64_t> order) {
  require_row_order(order, shape.outs, "row order");
  const auto cols = static_cast<size_t>(shape.cols());
  std::vector<T> moved(order.size() * cols);
  parallel_for(static_cast<int64_t>(order.size()), [&](int64_t p) {
    std::memcpy(moved.data() + static_cast<size_t>(p) * cols,
                rows + order[static_cast<size_t>(p)] * shape.cols(), cols * sizeof(T));
  });
  return moved;
}

Mask in_row_order(const Mask& mask, std::span<const int64_t> order) {
  if (order.empty()) return mask;
  require_row_order(order, mask.rows(), "row order");
  Mask moved(mask.rows(), mask.cols());
  for (int64_t p = 0; p < mask.rows(); ++p) {
    const uint64_t* from = mask.row_words(order[static_cast<size_t>(p)]);
    std::copy_n(from, ceil_div(mask.cols(), 64), moved.row_words(p));
  }
  return moved;
}

Mask undo_row_order(const Mask& mask, std::span<const int64_t> order) {
  if (order.empty()) return mask;
  require_row_order(order, mask.rows(), "row order");
  Mask moved(mask.rows(), mask.cols());
  for (int64_t p = 0; p < mask.rows(); ++p) {
    std::copy_n(mask.row_words(p), ceil_div(mask.cols(), 64),
                moved.row_words(order[static_cast<size_t>(p)]));
  }
  return moved;
}

template <typename T>
Mask find_mask(const Solver& solver, const T* weights, const WeightShape& shape,
               const Pattern& pattern, std::span<const int64_t> order) {
  if (order.empty()) return find_mask(solver, weights, shape, pattern);
  shape.check();
  const std::vector<T> moved = in_row_order(weights, shape, order);
  try {
    return undo_row_order(find_mask(solver, moved.data(), shape, pattern), order);
  } catch (const UnusableWeightError&) {  // which names it by its place
    require_usable(MatrixView<const T>(weights, shape.outs, shape.cols()), 0);
    throw;
  }
}

std::vector<int64_t> find_row_order(const float* weights, const WeightShape& shape,
                                    const Pattern& pattern, bool transposable,
                                    const RowOrderOptions& options) {
  shape.check();
  require_row_order(options.start, shape.outs, "row order to begin with");
  WEFT_CHECK(options.rounds >= 0, "{} rounds: accepted are 0 and more", options.rounds);
  const std::vector<int64_t> start =
      options.start.empty() ? identity_order(shape.outs)
                            : std::vector<int64_t>(options.start.begin(), options.start.end());
  if (pattern.share() == 1 || shape.outs < 2 || shape.cols() == 0) return start;
  require_usable(MatrixView<const float>(weights, shape.outs, shape.cols()), 0);

  const std::vector<CellPlaces> cells = cells_of(shape.outs, pattern);
  const GroupedMagnitudes magnitudes(weights, shape, pattern, transposable);
  CellSearch search(magnitudes, rows_of_cells(start, cells));
  if (options.start.empty()) {
    CellSearch clusters(magnitudes, Clusters(weights, shape, pattern).find(cells, shape.outs));
    if (clusters.value() > search.value()) search.take(std::move(clusters));
  }
  for (int round = 0; round < options.rounds; ++round) {
    search.round(Rng(options.rng.bits(static_cast<uint64_t>(round))));
  }
  std::vector<int64_t> found = order_of_cells(search.rows(), cells, shape.outs);
  const Solver& solver = default_solver(transposable);
  const auto kept = [&](const std::vector<int64_t>& order) {
    return retained(weights, shape, find_mask(solver, weights, shape, pattern, order)).kept;
  };
  return kept(found) > kept(start) ? found : start;
}

template std::vector<float> in_row_order(const float*, const WeightShape&,
                                         std::span<const int64_t>);
template std::vector<double> in_row_order(const double*, const WeightShape&,
                                          std::span<const int64_t>);
template Mask find_mask(const Solver&, const float*, const WeightShape&, const Pattern&,
                        std::span<const int64_t>);
template Mask find_mask(const Solver&, const double*, const WeightShape&, const Pattern&,
                        std::span<const int64_t>);

}  // namespace weft
