// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/interrupt.h"

namespace shoal::cli {

// Written by the signal handler, which may do no more than this.
static volatile std::sig_atomic_t came = 0;

int interrupted() { return came; }

void interrupt(int signal) { came = signal; }

InterruptGuard::InterruptGuard() {
  came = 0;
  struct sigaction action = {};
  action.sa_handler = interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, &before_);
  ::sigaction(SIGTERM, &action, &before_termination_);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &before_, nullptr);
  ::sigaction(SIGTERM, &before_termination_, nullptr);
}

}  // namespace shoal::cli
