#include "bench/spread.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace weft::bench {

Spread spread_of(std::vector<double> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {median(values), *low, *high};
}

void GeometricMean::add(double value) {
  log_sum_ += std::log(value);
  ++count_;
}

std::string GeometricMean::str() const {
  return count_ == 0 ? "-" : fmt::format("{:.2f}", std::exp(log_sum_ / count_));
}

}  // namespace weft::bench
