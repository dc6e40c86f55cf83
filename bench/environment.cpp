#include "bench/environment.h"

#include "weft/core/cpu_name.h"
#include "weft/core/isa.h"
#include "weft/core/parallel.h"
#include "weft/run/build_commit.h"

namespace weft::bench {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = __VERSION__;  // begins with the name
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

}  // namespace

Environment environment() {
  return {cpu_name(), current_isa(), threads(), kCompiler, build_commit()};
}

}  // namespace weft::bench
