// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::elastic {

static constexpr std::array kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

sigset_t blocked_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kPassedOn) sigaddset(&signals, signal);
  sigaddset(&signals, SIGCHLD);
  return signals;
}

// --- Starting.

namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2] = {-1, -1};
    SHOAL_CHECK(pipe2(ends, O_CLOEXEC) == 0, Infeasible, "run: no more pipes: ", std::strerror(errno),
                "; start fewer ranks on this host, or raise ulimit -n");
    read = ends[0];
    write = ends[1];
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    if (read >= 0) close(read);
    if (write >= 0) close(write);
  }
  int take_read() { return std::exchange(read, -1); }
  void close_write() { close(std::exchange(write, -1)); }
};

// Pointers for exec, made before the fork: after it nothing may be allocated.
std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

struct Child {
  const std::vector<char*>& words;
  const std::vector<char*>& environment;
  const Command& command;
  const cpu_set_t* cores;
  int out, err, failure;
  pid_t parent;

  [[noreturn]] void become() const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    setpgid(0, 0);
    if (cores) sched_setaffinity(0, sizeof *cores, cores);
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    for (const int descriptor : command.inherited) fcntl(descriptor, F_SETFD, 0);
    // A shell starts what runs in its background with SIGINT and SIGQUIT ignored; ranks are to end by them.
    for (const int number : {SIGPIPE, SIGINT, SIGQUIT}) std::signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvpe(words[0], words.data(), environment.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t wrote = write(failure, &error, sizeof error);
    _exit(127);
  }
};

}  // namespace

Started start(const Command& command) {
  const std::vector<char*> words = pointers_to(command.words), environment = pointers_to(command.environment);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : command.cores) CPU_SET(static_cast<unsigned>(core), &cores);
  Pipe out, err, failure;
  const Child child = {words,     environment, command,       command.cores.empty() ? nullptr : &cores,
                       out.write, err.write,   failure.write, getpid()};
  const pid_t process = fork();
  if (process == 0) child.become();
  SHOAL_CHECK(process > 0, Infeasible, "run: cannot start ", command.words[0], ": ", std::strerror(errno),
              "; this host runs no more processes: start fewer ranks on it");
  setpgid(process, process);
  failure.close_write();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(failure.read, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof error)) {
    waitpid(process, nullptr, 0);
    fail(ErrorKind::InvalidInput, "run: cannot start ", command.words[0], ": ", std::strerror(error),
         "; is it a program, and in PATH?");
  }
  fcntl(out.read, F_SETFL, O_NONBLOCK);
  fcntl(err.read, F_SETFL, O_NONBLOCK);
  return {.process = process, .out = out.take_read(), .err = err.take_read()};
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status))
    return concat("killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  return concat("exit code ", WEXITSTATUS(status));
}

// --- What /proc says.

namespace {

struct Stat {
  pid_t parent = 0;
  char state = '?';
};

std::optional<Stat> stat_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > line.size()) return std::nullopt;
  Stat stat = {.state = line[name_end + 2]};
  const char* parent = line.c_str() + name_end + 4;
  std::from_chars(parent, line.c_str() + line.size(), stat.parent);
  return stat;
}

}  // namespace

bool is_stopped(pid_t process) {
  const std::optional<Stat> stat = stat_of(std::to_string(process));
  return stat && (stat->state == 'T' || stat->state == 't');
}

static std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t process = 0;
    const auto [end, why] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (why != std::errc() || end != name.data() + name.size()) continue;
    if (const auto stat = stat_of(name)) children.emplace(stat->parent, process);
  }
  std::vector<pid_t> all = {getpid()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto [first, last] = children.equal_range(all[i]);
    for (auto child = first; child != last; ++child) all.push_back(child->second);
  }
  all.erase(all.begin());
  return all;
}

// Until there are none: one that is killed may just have started another.
int end_descendants() noexcept {
  int num = 0;
  try {
    for (std::vector<pid_t> left = descendants(); !left.empty(); left = descendants()) {
      for (const pid_t process : left) kill(process, SIGKILL);
      if (waitpid(-1, nullptr, 0) > 0) ++num;
      while (waitpid(-1, nullptr, WNOHANG) > 0) ++num;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shoal: cannot look for processes to end: %s\n", error.what());
  }
  return num;
}

// --- The guardian.

int run_guarded(const std::function<int()>& launch) {
  const sigset_t signals = blocked_signals();
  sigset_t before;
  sigprocmask(SIG_BLOCK, &signals, &before);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t guardian = getpid();
  std::fflush(nullptr);
  const pid_t keeper = fork();
  if (keeper == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    std::signal(SIGPIPE, SIG_IGN);
    setpgid(0, 0);
    if (getppid() != guardian) _exit(1);
    int code = 1;
    try {
      code = launch();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "shoal: %s\n", error.what());
    }
    std::fflush(nullptr);
    end_descendants();
    _exit(code);
  }
  SHOAL_CHECK(keeper > 0, Infeasible, "run: cannot start a process: ", std::strerror(errno));
  setpgid(keeper, keeper);
  int status = 0;
  for (;;) {
    siginfo_t received = {};
    if (sigwaitinfo(&signals, &received) < 0) continue;
    if (received.si_signo != SIGCHLD) {
      kill(keeper, received.si_signo);
      continue;
    }
    bool ended = false;
    int any = 0;
    for (pid_t process; (process = waitpid(-1, &any, WNOHANG)) > 0;)
      if (process == keeper) {
        status = any;
        ended = true;
      }
    if (ended) break;
  }
  end_descendants();
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace shoal::elastic
