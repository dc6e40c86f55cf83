// Memory of this process and of this machine, in bytes; 0 if the system does not report it.
#pragma once

#include <cstdint>

namespace weft {

uint64_t peak_resident_bytes();  // of this process so far
uint64_t memory_bytes();         // what all processes may use: the machine's, or its container's

}  // namespace weft
