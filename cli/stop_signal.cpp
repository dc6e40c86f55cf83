#include "cli/stop_signal.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace weft::cli {
namespace {

std::atomic<int> came{0};
void (*before_interrupt)(int) = SIG_DFL;
void (*before_terminate)(int) = SIG_DFL;

void restore() {
  std::signal(SIGINT, before_interrupt);
  std::signal(SIGTERM, before_terminate);
}

void note_signal(int signal) {
  came = signal;
  restore();
}

}  // namespace

StopSignal::StopSignal() {
  came = 0;
  before_interrupt = std::signal(SIGINT, note_signal);
  before_terminate = std::signal(SIGTERM, note_signal);
  if (before_interrupt == SIG_IGN) std::signal(SIGINT, SIG_IGN);
  if (before_terminate == SIG_IGN) std::signal(SIGTERM, SIG_IGN);
}

StopSignal::~StopSignal() {
  if (came == 0) restore();
}

const std::atomic<int>& StopSignal::signal() const { return came; }

void StopSignal::end_program() const {
  std::fflush(stdout);
  std::signal(came, SIG_DFL);
  std::raise(came);
  std::abort();  // not reached
}

}  // namespace weft::cli
