#include "weft/core/median.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft {

double median(std::vector<double> values) {
  WEFT_CHECK(!values.empty(), "the median of nothing");
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace weft
