#include "weft/core/median.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft {

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

double quantile(std::vector<double> values, double share) {
  WEFT_CHECK(!values.empty() && share >= 0.0 && share <= 1.0,
             "quantile {} of {} values: accepted are 0 to 1 of at least one value", share,
             values.size());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<int64_t>(place);
  std::nth_element(values.begin(), values.begin() + below, values.end());
  const double low = values[static_cast<size_t>(below)];
  const double part = place - static_cast<double>(below);
  if (part == 0.0) return low;
  return (1.0 - part) * low + part * *std::min_element(values.begin() + below + 1, values.end());
}

}  // namespace weft
