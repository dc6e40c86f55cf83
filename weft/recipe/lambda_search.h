// LambdaSearch: the λ of a decay, by the rule of T-SR-STE (Hu et al. 2024).
//
//   μ(λ) = flip rate with λ / flip rate of the same masks on weights that train dense
//
// measured in short trials. Wanted is 0.60 <= μ <= 0.95: without enough decay masks flip back and
// forth more than those of dense weights, with too much they freeze. μ falls as λ grows, so the
// search bisects a grid of two values per decade, from 1e-6 to 10, and ends at the first λ in the
// band: four trials at most. If none is, the one that came closest (in the logarithm) is taken.
//
//   LambdaSearch search;
//   while (std::optional<double> lambda = search.next()) search.tried(flips(*lambda) / dense);
//   search.found()
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace weft {

class LambdaSearch {
 public:
  static constexpr double kLow = 0.60, kHigh = 0.95;

  LambdaSearch();
  // The λ to try next; nothing: the search is over.
  std::optional<double> next() const;
  // The ratio that it had. Throws Error if that is not a number, or no trial was open.
  void tried(double ratio);

  struct Trial {
    double lambda = 0.0;
    double ratio = 0.0;
  };
  const std::vector<Trial>& trials() const { return trials_; }
  // The best so far. Throws Error if nothing was tried.
  Trial found() const;

 private:
  size_t begin_ = 0, end_ = 0;  // of the grid, what is left to look at
  std::vector<Trial> trials_;
};

}  // namespace weft
