// SPDX-License-Identifier: Apache-2.0
// Starting and ending processes so that none is left, whoever dies.
//
//   guardian            waits, passes signals on; when the keeper has ended, ends all that is left below
//     └─ keeper         the launcher: starts ranks, reads their output
//          └─ rank …    each a process group of its own; killed when the keeper dies
//               └─ …    what ranks started: comes to the keeper, or to the guardian, when its parent dies
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace shoal::elastic {

// What is handed to exec.
struct Command {
  std::vector<std::string> words;
  std::vector<std::string> environment;  // NAME=value
  std::vector<int> inherited;            // descriptors that stay open; all others are closed
  std::vector<int> cores;                // to run on; none: all
};

struct Started {
  pid_t process = -1;
  int out = -1, err = -1;  // what it writes, to be read without blocking; for the caller to close
};

// Throws InvalidInput where there is no such program, Infeasible where the machine starts no more.
Started start(const Command& command);

// What ended is in `status` as waitpid has it.
std::string how_it_ended(int status);  // "exit code 3", "killed by signal 9 (Killed)"

bool is_stopped(pid_t process);  // by SIGSTOP or a debugger

// Kills everything below this process, and reaps it; gives the number of processes.
int end_descendants() noexcept;

// Runs `launch` in a keeper of its own, and returns its exit code (128 + the signal, where one ended it).
// While it runs SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 of this process are passed on to it. Only from a
// process without other threads.
int run_guarded(const std::function<int()>& launch);

// Those signals and SIGCHLD, which a keeper waits for; they are blocked in it.
sigset_t blocked_signals();

}  // namespace shoal::elastic
