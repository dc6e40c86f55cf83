// Medians and other quantiles of a few values.
#pragma once

#include <vector>

namespace weft {

// Of an even number of values, the mean of the two in the middle.
double median(std::vector<double> values);  // at least one
// Linear between neighbours: 0 is the least value, 1 the largest, 0.5 the median.
double quantile(std::vector<double> values, double share);  // at least one

}  // namespace weft
