#include "cli/stop_signal.h"

#include <signal.h>

#include <cstdio>
#include <cstdlib>

namespace weft::cli {
namespace {

std::atomic<int> came{0};
std::array<void (*)(int), kStopSignals.size()> before;

void restore() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) std::signal(kStopSignals[i], before[i]);
}

void note_signal(int signal) {
  came = signal;
  restore();
  // There is more to print before the end, and it fails likewise.
  if (signal == SIGPIPE) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

const char* stop_signal_name(int signal) {
  switch (signal) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    default: return "SIGPIPE";
  }
}

void hold_stop_signals(bool hold) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kStopSignals) sigaddset(&signals, signal);
  ::sigprocmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &signals, nullptr);
}

StopSignal::StopSignal() {
  came = 0;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    before[i] = std::signal(kStopSignals[i], note_signal);
    if (before[i] == SIG_IGN) std::signal(kStopSignals[i], SIG_IGN);  // nohup
  }
}

StopSignal::~StopSignal() {
  if (came == 0) restore();
}

const std::atomic<int>& StopSignal::signal() const { return came; }

void StopSignal::end_program(const std::string& message) const {
  if (came == SIGPIPE) {
    std::fputs(("weft: " + message + "\n").c_str(), stderr);
  } else {
    std::fputs((message + "\n").c_str(), stdout);  // its terminal may be gone
    std::fflush(stdout);
  }
  std::signal(came, SIG_DFL);
  std::raise(came);
  std::abort();  // not reached
}

}  // namespace weft::cli
