#include "weft/mask/diversity.h"

#include <gmpxx.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <unordered_map>
#include <vector>

#include "weft/core/error.h"
#include "weft/mask/sharing.h"

namespace weft {
namespace {

// Beyond this many states counting takes longer than anybody waits; below it, a few seconds.
constexpr double kMaxStates = 1e6;

double log2_choose(double from, double take) {
  return static_cast<double>((std::lgamma(static_cast<long double>(from) + 1) -
                              std::lgamma(static_cast<long double>(take) + 1) -
                              std::lgamma(static_cast<long double>(from - take) + 1)) /
                             std::numbers::ln2_v<long double>);
}

double log2_of(const mpz_class& number) {
  long exponent = 0;
  const double fraction = mpz_get_d_2exp(&exponent, number.get_mpz_t());
  return std::log2(fraction) + static_cast<double>(exponent);
}

unsigned long choose(int from, int take) {
  mpz_class result;
  mpz_bin_uiui(result.get_mpz_t(), static_cast<unsigned long>(from),
               static_cast<unsigned long>(take));
  return result.get_ui();
}

// Counts rows x cols 0/1 matrices with every row sum `row_keep` and no column sum above `col_keep`,
// row by row. The state is how many columns can still take k ones, for every k.
class MatrixCounter {
 public:
  MatrixCounter(int cols, int row_keep, int col_keep) : cols_(cols), row_keep_(row_keep) {
    Capacity capacity(static_cast<size_t>(col_keep) + 1, '\0');
    capacity.back() = static_cast<char>(cols);
    for (int n = 0; n <= cols; ++n) {
      for (int k = 0; k <= n; ++k) choose_.push_back(choose(n, k));
    }
    ways_[capacity] = 1;
  }

  void add_row() {
    std::unordered_map<Capacity, mpz_class> before;
    before.swap(ways_);
    for (const auto& [capacity, ways] : before) {
      Capacity after = capacity;
      spread(capacity, after, 1, cols_ - capacity[0], row_keep_, ways);
    }
  }

  mpz_class total() const {
    mpz_class sum = 0;
    for (const auto& [capacity, ways] : ways_) sum += ways;
    return sum;
  }

  // The matrices with twice these rows and every column full. The lower half must use exactly what
  // the upper half left: as many columns have used k as have k left above, so its state is the
  // upper one read backwards, and of its ways only those count that have the same column for each.
  mpz_class total_doubled() const {
    mpz_class sum = 0;
    for (const auto& [capacity, ways] : ways_) {
      const auto below = ways_.find(Capacity(capacity.rbegin(), capacity.rend()));
      if (below != ways_.end()) sum += ways * below->second / arrangements(capacity);
    }
    return sum;
  }

 private:
  using Capacity = std::string;  // capacity[k]: columns that can still take k ones

  // Takes `left` columns out of the classes from `k` on, which have `open`, in every way; a taken
  // column moves one class down.
  void spread(const Capacity& capacity, Capacity& after, size_t k, int open, int left,
              const mpz_class& ways) {
    if (left == 0) {
      ways_[after] += ways;
      return;
    }
    const int available = capacity[k];
    mpz_class multiplied;
    for (int take = std::max(0, left - (open - available)); take <= std::min(available, left);
         ++take) {
      multiplied = ways * choose_[static_cast<size_t>(available * (available + 1) / 2 + take)];
      after[k] = static_cast<char>(after[k] - take);
      after[k - 1] = static_cast<char>(after[k - 1] + take);
      spread(capacity, after, k + 1, open - available, left - take, multiplied);
      after[k] = static_cast<char>(after[k] + take);
      after[k - 1] = static_cast<char>(after[k - 1] - take);
    }
  }

  // Ways to say which columns have which capacity.
  mpz_class arrangements(const Capacity& capacity) const {
    mpz_class product = 1;
    int left = cols_;
    for (const char count : capacity) {
      product *= choose_[static_cast<size_t>(left * (left + 1) / 2 + count)];
      left -= count;
    }
    return product;
  }

  int cols_;
  int row_keep_;
  std::vector<unsigned long> choose_;  // C(n, k) at n (n + 1) / 2 + k
  std::unordered_map<Capacity, mpz_class> ways_;
};

struct TileShape {
  int rows, cols, keep;
  auto operator<=>(const TileShape&) const = default;

  int row_keep() const { return std::min(keep, cols); }
  int col_keep() const { return std::min(keep, rows); }
  bool square() const { return rows == cols; }
};

std::optional<mpz_class> count_full_masks(TileShape tile) {
  // The side that is full takes the rows; zeros and ones of a square may change places.
  if (tile.rows * tile.row_keep() > tile.cols * tile.col_keep()) std::swap(tile.rows, tile.cols);
  int row_keep = tile.row_keep(), col_keep = tile.col_keep();
  if (tile.square()) row_keep = col_keep = std::min(row_keep, tile.cols - row_keep);
  if (std::exp2(log2_choose(tile.cols + col_keep, col_keep)) > kMaxStates) return std::nullopt;

  MatrixCounter counter(tile.cols, row_keep, col_keep);
  const bool halves = tile.square() && tile.rows % 2 == 0;
  for (int r = 0; r < (halves ? tile.rows / 2 : tile.rows); ++r) counter.add_row();
  return halves ? counter.total_doubled() : counter.total();
}

// log2 of the coefficient of x^total in (sum over k <= most of C(length, k) x^k)^count: the 0/1
// matrices of `count` columns of `length` with `total` ones and at most `most` in each column.
double log2_limited_columns(int count, int length, int most, int total) {
  std::vector<long double> ways(static_cast<size_t>(total) + 1);
  ways[0] = 1;
  for (int column = 0; column < count; ++column) {
    for (int t = total; t >= 0; --t) {
      long double sum = 0;
      for (int k = 0; k <= std::min(most, t); ++k) {
        sum += ways[static_cast<size_t>(t - k)] * static_cast<long double>(choose(length, k));
      }
      ways[static_cast<size_t>(t)] = sum;
    }
  }
  return static_cast<double>(std::log2(ways[static_cast<size_t>(total)]));
}

// Rows that are right and columns that are right, as if one said nothing of the other; where both
// are full, they say e^(-1/2) of each other (Canfield, Greenhill and McKay).
double estimate_full_masks(TileShape tile) {
  if (tile.rows * tile.row_keep() > tile.cols * tile.col_keep()) std::swap(tile.rows, tile.cols);
  const int size = tile.rows * tile.row_keep();
  const bool balanced = size == tile.cols * tile.col_keep();
  return tile.rows * log2_choose(tile.cols, tile.row_keep()) +
         log2_limited_columns(tile.cols, tile.rows, tile.col_keep(), size) -
         log2_choose(double(tile.rows) * tile.cols, size) -
         (balanced ? 0.5 / std::numbers::ln2 : 0);
}

struct Log2Count {
  double log2 = 0;
  bool exact = true;
};

Log2Count log2_full_masks(const TileShape& tile) {
  // A model has few tile shapes and many tiles.
  static std::mutex mutex;
  static std::map<TileShape, Log2Count> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(tile);
  if (found != known.end()) return found->second;

  const std::optional<mpz_class> counted = count_full_masks(tile);
  return known[tile] = counted ? Log2Count{log2_of(*counted), true}
                               : Log2Count{estimate_full_masks(tile), false};
}

// How often a length splits into whole groups, and what is left.
struct Split {
  double whole;
  int left;
};
Split split(int64_t length, int group) {
  return {static_cast<double>(length / group), static_cast<int>(length % group)};
}

double log2_paper(const Pattern& pattern, double tiles) {
  double nats = 0;
  for (int n = 0; n < pattern.keep(); ++n) nats += std::lgamma(pattern.group() - n + 1.0);
  return tiles * nats / std::numbers::ln2;
}

}  // namespace

Diversity& Diversity::operator+=(const Diversity& other) {
  log2_unstructured += other.log2_unstructured;
  log2_nm += other.log2_nm;
  log2_transposable += other.log2_transposable;
  log2_transposable_paper += other.log2_transposable_paper;
  transposable_exact &= other.transposable_exact;
  weights += other.weights;
  return *this;
}

Diversity::Formula Diversity::paper_formula() const {
  const double excess = log2_transposable_paper - log2_transposable;
  if (std::abs(excess) < 1e-6 * std::abs(log2_transposable)) return Formula::kRight;
  return excess > 0 ? Formula::kOverCount : Formula::kUnderCount;
}

std::vector<PaperBlock> paper_blocks() {
  std::vector<PaperBlock> blocks;
  for (const char* text : {"1:4", "2:4", "2:8", "4:8", "5:10", "6:12", "8:16"}) {
    const Pattern pattern = Pattern::parse(text);
    const int64_t side = 8 % pattern.group() == 0 ? 8 : pattern.group();
    blocks.push_back({pattern, side, diversity({side, side, 1}, pattern)});
  }
  return blocks;
}

Diversity diversity(const WeightShape& shape, const Pattern& pattern) {
  shape.check();
  const int group = pattern.group(), keep = pattern.keep();
  const auto taps = static_cast<double>(shape.taps), outs = static_cast<double>(shape.outs);
  Diversity result;
  result.weights = shape.outs * shape.cols();

  const Split ins = split(shape.ins, group);
  const int left_keep = std::min(keep, ins.left);
  const double kept = outs * taps * (ins.whole * keep + left_keep);
  result.log2_unstructured = log2_choose(static_cast<double>(result.weights), kept);

  const auto sharing_outs = static_cast<double>(shared_length(shape.outs, pattern));
  result.log2_nm = sharing_outs * taps *
                   (ins.whole * log2_choose(group, keep) + log2_choose(ins.left, left_keep));

  const Split rows = split(shared_length(shape.outs, pattern), group);
  const Split cols = split(shared_length(shape.ins, pattern), group);
  const auto add_tiles = [&](double tiles, int tile_rows, int tile_cols) {
    if (tiles == 0 || tile_rows == 0 || tile_cols == 0) return;
    const Log2Count count = log2_full_masks({tile_rows, tile_cols, keep});
    result.log2_transposable += taps * tiles * count.log2;
    result.transposable_exact &= count.exact;
  };
  add_tiles(rows.whole * cols.whole, group, group);
  add_tiles(rows.whole, group, cols.left);
  add_tiles(cols.whole, rows.left, group);
  add_tiles(1, rows.left, cols.left);

  const double area = static_cast<double>(shared_length(shape.outs, pattern)) *
                      static_cast<double>(shared_length(shape.ins, pattern));
  result.log2_transposable_paper = log2_paper(pattern, taps * area / (double(group) * group));
  return result;
}

std::optional<std::string> count_transposable(int group, int keep) {
  const Pattern valid(keep, group);
  const auto counted = count_full_masks({valid.group(), valid.group(), valid.keep()});
  if (!counted) return std::nullopt;
  return counted->get_str();
}

double log2_transposable_estimate(int group, int keep) {
  const Pattern valid(keep, group);
  if (valid.keep() == valid.group()) return 0;
  return estimate_full_masks({valid.group(), valid.group(), valid.keep()});
}

}  // namespace weft
