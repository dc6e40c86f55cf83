// A figure that was taken several times.
#pragma once

#include <vector>

#include "weft/core/median.h"

namespace weft::bench {

struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
};

Spread spread_of(std::vector<double> values);  // at least one

}  // namespace weft::bench
