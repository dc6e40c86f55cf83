// The most memory that this process has had resident so far, in bytes; 0 if the system does not
// say.
#pragma once

#include <cstdint>

namespace weft {

uint64_t peak_resident_bytes();

}  // namespace weft
