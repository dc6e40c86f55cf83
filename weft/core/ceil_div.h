// a / b, rounded up; for a >= 0 and b > 0, and never beyond what fits.
#pragma once

#include <cstdint>

namespace weft {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

}  // namespace weft
