// The median: of an even number of values, the mean of the two in the middle.
#pragma once

#include <vector>

namespace weft {

double median(std::vector<double> values);  // at least one

}  // namespace weft
