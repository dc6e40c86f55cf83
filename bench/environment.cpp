#include "bench/environment.h"

#include <fstream>

#include "bench/commit.h"
#include "weft/core/isa.h"
#include "weft/core/parallel.h"

namespace weft::bench {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = __VERSION__;  // begins with the name
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

Environment environment() { return {cpu_name(), current_isa(), threads(), kCompiler, kCommit}; }

}  // namespace weft::bench
