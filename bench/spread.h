// A figure that was taken several times.
#pragma once

#include <string>
#include <vector>

#include "weft/core/median.h"

namespace weft::bench {

struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
};

Spread spread_of(std::vector<double> values);  // at least one

class GeometricMean {
 public:
  void add(double value);   // positive
  std::string str() const;  // "1.46", or "-" without values

 private:
  double log_sum_ = 0;
  int count_ = 0;
};

}  // namespace weft::bench
