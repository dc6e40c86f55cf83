// Which CPU this is, as the system calls it: "AMD EPYC 9B14".
#pragma once

#include <string>

namespace weft {

std::string cpu_name();  // "unknown" where the system does not say

}  // namespace weft
