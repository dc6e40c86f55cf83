// The claims that `weft study` can test (docs/claims.md).
#pragma once

#include <span>
#include <string_view>

#include "weft/study/claim.h"

namespace weft {

std::span<const Claim> claims();
const Claim& claim(std::string_view name);  // throws Error and names the known ones

// The rows, each in the file of its name.
Claim diversity_claim();
Claim approximation_claim();

}  // namespace weft
