// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, forked by the test.
#include <dirent.h>
#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/sanitized.h"
#include "shoal/comm/conformance.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/rendezvous/deadline.h"
#include "shoal/rendezvous/host_store.h"

using namespace shoal;
using namespace shoal::comm;
using namespace std::chrono_literals;

using RankFunction = std::function<void(rendezvous::Store&, Communicator&)>;

static pid_t start_rank(rendezvous::HostStore& store, int rank, int size, const RankFunction& function) {
  const pid_t child = fork();
  if (child != 0) return child;
  std::string end = "ok";
  try {
    const auto communicator = shm_communicator(store, rank, size, {.job = "processes", .limit = 20s});
    function(store, *communicator);
  } catch (const std::exception& error) {
    end = error.what();
  }
  store.set("end/" + std::to_string(rank), end);
  _exit(0);
}

static std::vector<pid_t> start_ranks(rendezvous::HostStore& store, int size, const RankFunction& function) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) children.push_back(start_rank(store, rank, size, function));
  return children;
}

// What each rank ended with: "ok", its error, or "killed".
static std::vector<std::string> ends_of(rendezvous::HostStore& store, const std::vector<pid_t>& children) {
  std::vector<std::string> ends;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ends.push_back(store.find("end/" + std::to_string(ends.size())).value_or("killed"));
  }
  return ends;
}

static std::int64_t nanoseconds_now() {
  return std::chrono::nanoseconds(rendezvous::Clock::now().time_since_epoch()).count();
}

TEST_CASE("shm conforms, ranks as processes") {
  for (int size = 1; size <= 9; size += kIsSanitized ? 3 : 1) {
    CAPTURE(size);
    rendezvous::HostStore store;
    const auto children = start_ranks(store, size, [&](rendezvous::Store&, Communicator& rank) {
      Conformance options;
      if (size > 4) options.dtypes = {DType::Float32, DType::BFloat16, DType::UInt8};
      conform(rank, options);
      random_calls(rank, static_cast<std::uint64_t>(size), 200);
    });
    CHECK(ends_of(store, children) == std::vector<std::string>(static_cast<std::size_t>(size), "ok"));
    CHECK(store.num_keys() == size);  // nothing of the meeting is left
  }
}

TEST_CASE("a killed rank is noticed by all others at once, which name it") {
  rendezvous::HostStore store;
  const auto children = start_ranks(store, 3, [](rendezvous::Store& shared, Communicator& rank) {
    if (rank.rank() == 1) {
      shared.set("here", "1");
      for (;;) pause();
    }
    float x = 1;
    try {
      rank.all_reduce({&x, 1, DType::Float32}, ReduceOp::Sum)->wait(20s);
    } catch (const Error& error) {
      shared.set("noticed/" + std::to_string(rank.rank()), std::to_string(nanoseconds_now()));
      throw;
    }
  });
  store.get("here", 20s);
  const std::int64_t killed = nanoseconds_now();
  kill(children[1], SIGKILL);
  const std::string end = "comm: rank 1 (process " + std::to_string(children[1]) + ") has ended";
  CHECK(ends_of(store, children) == std::vector<std::string>{end, "killed", end});
  for (const char* key : {"noticed/0", "noticed/2"}) {
    const double seconds = 1e-9 * static_cast<double>(std::stoll(store.get(key, 0s)) - killed);
    CAPTURE(seconds);
    CHECK(seconds < 0.5);  // some 10 ms, unless the machine is busy
  }
}

TEST_CASE("a rank that is killed in the middle of large calls leaves the others an error, not a hang") {
  for (int trial = 0; trial < 5; ++trial) {
    rendezvous::HostStore store;
    const auto children = start_ranks(store, 3, [](rendezvous::Store& shared, Communicator& rank) {
      const auto memory = rank.allocate(1 << 20);
      std::vector<float> plain(100000);
      for (std::int64_t i = 0;; ++i) {
        rank.all_reduce({memory->data(), 1 << 18, DType::Float32}, ReduceOp::Max)->wait(20s);
        rank.all_reduce({plain.data(), 100000, DType::Float32}, ReduceOp::Max)->wait(20s);
        if (rank.rank() == 0) shared.add("calls", 1);
      }
    });
    while (std::stoll(store.find("calls").value_or("0")) < 5 + 3 * trial) sched_yield();
    kill(children[2], SIGKILL);
    const auto ends = ends_of(store, children);
    const std::string end = "comm: rank 2 (process " + std::to_string(children[2]) + ") has ended";
    CHECK(ends == std::vector<std::string>{end, end, "killed"});
  }
}

TEST_CASE("segments have no name in any folder, are this user's alone, and are named by job in the process") {
  const auto num_files = [] {
    int files = 0;
    DIR* folder = opendir("/dev/shm");
    while (folder && readdir(folder)) ++files;
    if (folder) closedir(folder);
    return files;
  };
  const int before = num_files();
  rendezvous::HostStore store;
  const auto children = start_ranks(store, 2, [&](rendezvous::Store&, Communicator& rank) {
    const auto memory = rank.allocate(1 << 20);
    SHOAL_CHECK(num_files() == before, Internal, "there is a file in /dev/shm");
    std::ifstream maps("/proc/self/maps");
    std::string line, all;
    while (std::getline(maps, line)) all += line + "\n";
    const std::string name = "memfd:shoal-processes-r" + std::to_string(rank.rank()) + " (deleted)";
    SHOAL_CHECK(all.find(name) != std::string::npos, Internal, "no ", name, " in\n", all);
    for (int descriptor = 0; descriptor < 64; ++descriptor) {
      char target[256] = {};
      const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
      if (readlink(link.c_str(), target, sizeof target - 1) < 0) continue;
      if (std::string(target).find("memfd:shoal-processes") == std::string::npos) continue;
      struct stat status = {};
      fstat(descriptor, &status);
      SHOAL_CHECK((status.st_mode & 0777) == 0600, Internal, target, " has mode ", status.st_mode & 0777);
      SHOAL_CHECK(ftruncate(descriptor, 0) != 0, Internal, target, " can be cut");
    }
    rank.barrier()->wait(20s);
  });
  CHECK(ends_of(store, children) == std::vector<std::string>{"ok", "ok"});
}
