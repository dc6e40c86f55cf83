// StopSignal: while it lives, the first SIGINT, SIGTERM, SIGHUP or SIGPIPE asks long work to save
// its state and end; the second ends the program at once (program.cpp).
//
// It is for work that has something to save. All other work is ended at once: it leaves no file
// half-written. One at a time.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <string>

namespace weft::cli {

// What asks a program to end: a key, a supervisor, a terminal that is gone, and a reader of its
// output that is gone, as after `weft ... | head`.
inline constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
const char* stop_signal_name(int signal);  // "SIGTERM"
// Holds them back, or lets them come, those that came meanwhile first. A program that becomes
// another holds them back until that one can answer them.
void hold_stop_signals(bool hold);

class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  const std::atomic<int>& signal() const;  // 0: none came
  // Prints a line that says so (on standard error if nobody reads the output) and ends the program
  // by the signal that came, so that the caller of the program sees it.
  [[noreturn]] void end_program(const std::string& message) const;
};

}  // namespace weft::cli
