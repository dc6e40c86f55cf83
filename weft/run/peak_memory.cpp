#include "weft/run/peak_memory.h"

#include <fstream>
#include <string>

namespace weft {

// Not getrusage: its figure survives exec, and so would be the parent's.
uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    uint64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace weft
