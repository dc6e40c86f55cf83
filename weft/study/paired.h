// Paired differences: two variants measured with the same seeds, compared seed by seed, so that
// what a seed does to both does not count.
//
//   d_i = a_i − b_i,   mean ± t_{0.975, n−1} · sd / √n      the interval of 95 %
#pragma once

#include <span>
#include <string>

namespace weft {

struct PairedDifference {
  int seeds = 0;
  double mean = 0.0;
  double sd = 0.0;               // of the sample; 0 for one seed
  double low = 0.0, high = 0.0;  // infinite for one seed

  // Whether the seeds tell the two apart: the interval leaves 0 out.
  bool separates() const { return low > 0.0 || high < 0.0; }
  std::string str() const;  // "+0.0015 (+0.0009 to +0.0021)"
};

// Of as many values each; at least one.
PairedDifference paired_difference(std::span<const double> a, std::span<const double> b);

}  // namespace weft
