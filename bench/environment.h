// What a measurement was taken on: goes into every record, so that figures can be told apart.
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
