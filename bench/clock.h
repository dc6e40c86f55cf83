// Milliseconds of a body.
#pragma once

#include <chrono>

namespace weft::bench {

inline double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Of one run, over at least a millisecond of runs.
template <typename Body>
double time_ms(Body body) {
  const double begun = now_ms();
  int runs = 0;
  do {
    body();
    ++runs;
  } while (now_ms() - begun < 1.0);
  return (now_ms() - begun) / runs;
}

}  // namespace weft::bench
