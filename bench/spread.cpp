#include "bench/spread.h"

#include <algorithm>

namespace weft::bench {

Spread spread_of(std::vector<double> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {median(values), *low, *high};
}

}  // namespace weft::bench
