// SPDX-License-Identifier: Apache-2.0
// How a job that runs is found by who looks into its folder: a file of mode 0600 that says where its store is, with the
// job's key. And what may be asked of its launcher there: more servers.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "shoal/rendezvous/key.h"
#include "shoal/rendezvous/tcp_store.h"

namespace shoal::elastic {

struct RunningJob {
  pid_t launcher = 0;
  std::string address;  // of its store
  std::uint16_t port = 0;
  std::uint64_t epoch = 1;  // of its ranks and servers now
  rendezvous::Key key;
};

std::filesystem::path job_file_in(const std::filesystem::path& folder);
// In place of what is there. Throws InvalidInput where it cannot.
void write_job_file(const std::filesystem::path& folder, const RunningJob& job);
void remove_job_file(const std::filesystem::path& folder);  // where there is one
// Throws InvalidInput where there is none, others may read it, or it is none.
RunningJob read_job_file(const std::filesystem::path& folder);
// Its store, of that epoch. Throws InvalidInput, naming the process, where that has gone.
std::unique_ptr<rendezvous::TcpStore> store_of(const RunningJob& job, std::uint64_t epoch);

// Asks the launcher for one more, and waits until it has started it; its number. Throws Timeout.
int ask_for_server(const RunningJob& job);

// The launcher's side. A thread waits at the store, so that nobody has to look.
class MoreServers {
 public:
  explicit MoreServers(const RunningJob& job);
  MoreServers(const MoreServers&) = delete;
  MoreServers& operator=(const MoreServers&) = delete;
  ~MoreServers();

  int event() const { return event_; }  // ready to be read when more are wanted
  bool take();                          // whether one was; to be told() then
  void told(int server);                // that it is started

 private:
  std::unique_ptr<rendezvous::TcpStore> waits_, tells_;
  int event_ = -1;
  std::atomic<std::int64_t> wanted_ = 0;
  std::int64_t taken_ = 0;
  std::thread waiter_;
};

}  // namespace shoal::elastic
