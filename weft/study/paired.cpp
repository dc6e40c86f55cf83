#include "weft/study/paired.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "weft/core/error.h"

namespace weft {
namespace {

// The quantile 0.975 of Student's t by degrees of freedom, from 1 on; beyond the table that of the
// last, which is larger than the right one: intervals are then a little too wide.
double student_t(int degrees) {
  constexpr std::array kQuantiles = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                     2.306,  2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                                     2.131,  2.120, 2.110, 2.101, 2.093, 2.086};
  return kQuantiles[std::min<size_t>(static_cast<size_t>(degrees), kQuantiles.size()) - 1];
}

}  // namespace

std::string PairedDifference::str() const {
  return fmt::format("{:+.4f} ({:+.4f} to {:+.4f})", mean, low, high);
}

PairedDifference paired_difference(std::span<const double> a, std::span<const double> b) {
  WEFT_CHECK(!a.empty() && a.size() == b.size(), "{} values cannot be paired with {}", a.size(),
             b.size());
  PairedDifference found;
  found.seeds = static_cast<int>(a.size());
  const auto count = static_cast<double>(a.size());
  for (size_t i = 0; i < a.size(); ++i) found.mean += (a[i] - b[i]) / count;
  double squares = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double off = a[i] - b[i] - found.mean;
    squares += off * off;
  }
  double half = std::numeric_limits<double>::infinity();
  if (found.seeds > 1) {
    found.sd = std::sqrt(squares / (count - 1.0));
    half = student_t(found.seeds - 1) * found.sd / std::sqrt(count);
  }
  found.low = found.mean - half;
  found.high = found.mean + half;
  return found;
}

}  // namespace weft
