// The peak resident memory of this process so far, in bytes; 0 if the system does not report it.
#pragma once

#include <cstdint>

namespace weft {

uint64_t peak_resident_bytes();

}  // namespace weft
