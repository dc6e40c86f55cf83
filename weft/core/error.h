// The one exception and the one check of weft.
//
//   WEFT_CHECK(condition, "what was wrong, with the values, and what would be accepted", values...)
//
// throws weft::Error. The message is one line that a user can act on: it names the file, the
// tensor, the flag, and says what would be accepted.
#pragma once

#include <fmt/format.h>

#include <stdexcept>

namespace weft {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Long work was asked to stop and did, before it had anything to save. No mistake of anybody's.
class Stopped : public Error {
 public:
  Stopped() : Error("stopped") {}
};

}  // namespace weft

#define WEFT_CHECK(condition, ...)                                   \
  do {                                                               \
    if (!(condition)) throw ::weft::Error(fmt::format(__VA_ARGS__)); \
  } while (false)
