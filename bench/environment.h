// The machine and build of a measurement: part of every record.
#pragma once

#include <string>

namespace weft::bench {

struct Environment {
  std::string cpu;
  std::string isa;
  int threads;
  std::string compiler;
  std::string commit;
};

Environment environment();

}  // namespace weft::bench
