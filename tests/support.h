// What tests of every kind need: the seed, and the message of an Error.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "weft/core/error.h"

extern "C" void __asan_init() __attribute__((weak));  // there if what is tested is sanitized

namespace weft::test {

inline bool sanitized() { return __asan_init != nullptr; }

// Fixed, so that a failure repeats; WEFT_TEST_SEED tries another.
inline uint64_t test_seed() {
  const char* text = std::getenv("WEFT_TEST_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

template <typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no Error)";
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace weft::test
