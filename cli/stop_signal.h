// StopSignal: while it lives, the first SIGINT or SIGTERM asks long work to come to a good end; the
// second ends the program at once, as it would have without.
#pragma once

#include <atomic>

namespace weft::cli {

class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  const std::atomic<int>& signal() const;  // 0: none came
  // Ends the program by the signal that came, so that the caller of the program sees it.
  [[noreturn]] void end_program() const;
};

}  // namespace weft::cli
