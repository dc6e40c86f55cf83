#include "weft/run/build_commit.h"

#include "weft/run/commit.h"  // made by cmake/commit.cmake

namespace weft {

std::string build_commit() { return kCommit; }

}  // namespace weft
