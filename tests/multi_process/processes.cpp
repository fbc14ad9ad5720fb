// SPDX-License-Identifier: Apache-2.0
#include "tests/multi_process/processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>

namespace shoal::tests {

static pid_t start(const std::function<void(int)>& body, int rank) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int status = 1;
  try {
    if (::getppid() == parent) body(rank);
    status = 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  }
  ::_exit(status);
}

std::vector<int> run_processes(int size, const std::function<void(int rank)>& body) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) processes.push_back(start(body, rank));
  std::vector<int> codes;
  for (const pid_t process : processes) {
    int status = 0;
    if (process < 0 || ::waitpid(process, &status, 0) != process)
      codes.push_back(-1);
    else
      codes.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return codes;
}

}  // namespace shoal::tests
