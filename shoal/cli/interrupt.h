// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM, which end a loop after the step that is running.
#pragma once

#include <csignal>

namespace shoal::cli {

// The signal that came, or 0.
int interrupted();
// As though it had come: it came to another rank.
void interrupt(int signal);

// Takes Ctrl-C and SIGTERM once each; the second one ends the process as ever.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_ = {};
  struct sigaction before_termination_ = {};
};

}  // namespace shoal::cli
