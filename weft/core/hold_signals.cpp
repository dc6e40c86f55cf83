#include "weft/core/hold_signals.h"

#include <initializer_list>

namespace weft {

HoldSignals::HoldSignals() {
  sigset_t held;
  sigfillset(&held);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
    sigdelset(&held, fault);
  }
  ::pthread_sigmask(SIG_BLOCK, &held, &before_);
}

HoldSignals::~HoldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace weft
