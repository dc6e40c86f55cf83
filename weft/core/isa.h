// The instruction sets that Highway compiled weft's SIMD code for, and which one runs.
//
// By default the best that the CPU has. WEFT_ISA (sse2, ssse3, sse4, avx2, avx3, avx3_dl, ...)
// forces one; a set that this CPU or this build lacks is an error, not a silent fallback.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

std::vector<std::string> available_isas();  // best first
std::string current_isa();

void force_isa(std::string_view name);  // throws Error and names what is available
void restore_isa();                     // back to the best one

// Obeys the environment variable WEFT_ISA, if it is set.
void force_isa_from_environment();

}  // namespace weft
