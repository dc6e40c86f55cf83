#include "weft/recipe/lambda_search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "weft/core/error.h"

namespace weft {
namespace {

constexpr std::array kLambdas = {1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3,
                                 1e-2, 3e-2, 1e-1, 3e-1, 1.0,  3.0,  10.0};

// 0 in the band; otherwise how far from it, as a factor.
double distance(double ratio) {
  if (ratio < LambdaSearch::kLow) return std::log(LambdaSearch::kLow / std::max(ratio, 1e-12));
  return std::max(0.0, std::log(ratio / LambdaSearch::kHigh));
}

}  // namespace

LambdaSearch::LambdaSearch() : end_(kLambdas.size()) {}

std::optional<double> LambdaSearch::next() const {
  if (begin_ >= end_) return std::nullopt;
  return kLambdas[(begin_ + end_) / 2];
}

void LambdaSearch::tried(double ratio) {
  const std::optional<double> lambda = next();
  WEFT_CHECK(lambda, "the search for lambda is over");
  WEFT_CHECK(std::isfinite(ratio) && ratio >= 0.0, "a ratio of flip rates is {}", ratio);
  trials_.push_back({*lambda, ratio});
  const size_t at = (begin_ + end_) / 2;
  if (ratio > kHigh) {
    begin_ = at + 1;
  } else if (ratio < kLow) {
    end_ = at;
  } else {
    begin_ = end_;
  }
}

LambdaSearch::Trial LambdaSearch::found() const {
  WEFT_CHECK(!trials_.empty(), "no lambda was tried");
  return *std::ranges::min_element(trials_, {},
                                   [](const Trial& trial) { return distance(trial.ratio); });
}

}  // namespace weft
