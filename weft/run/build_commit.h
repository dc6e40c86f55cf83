// The commit that weft was built from: "710b2b1809d4", with "-dirty" if files had changed; "unknown"
// outside of a git checkout.
#pragma once

#include <string>

namespace weft {

std::string build_commit();

}  // namespace weft
