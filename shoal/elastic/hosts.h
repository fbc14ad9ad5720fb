// SPDX-License-Identifier: Apache-2.0
// The launchers of a job's hosts among each other, through the job's store (keys of epoch 0):
//
//   host/H        who is there, with how many ranks; found twice or not the same numbers: an error
//   beat/H        grows while the launcher lives: host 0 looks at all, who stands still is lost
//   end/A         attempt A has failed somewhere: all end their ranks
//   done/A        hosts all of whose ranks are through
//   report/A/H    what a host knows of its ranks then
//   bye/H         has seen that all are through
//   next/A        what host 0 decides: again, or the exit code and who failed first
//
// With one host there is a store for its ranks, and nothing of this.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/elastic/job_file.h"
#include "shoal/elastic/launcher.h"
#include "shoal/rendezvous/key.h"
#include "shoal/rendezvous/tcp_server.h"
#include "shoal/rendezvous/tcp_store.h"

namespace shoal::elastic {

class Hosts {
 public:
  // Returns when all hosts are there. Throws Timeout naming those that are not.
  explicit Hosts(const Launch& launch);
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;
  ~Hosts();

  const rendezvous::Key& key() const { return key_; }
  int world_size() const { return world_size_; }
  int first_rank() const { return first_rank_; }  // of this host's
  const std::string& store_address() const { return store_address_; }
  const std::string& master_address() const { return master_address_; }
  int master_port() const { return master_port_; }  // for the programs
  RunningJob running_job() const;
  const std::string& interface() const { return interface_; }
  const std::string& name() const { return names_.at(static_cast<std::size_t>(host_)); }

  // Ready to be read when there is word from other hosts.
  int event() const { return event_; }
  void begin_attempt(int attempt);
  void announce_end(const std::string& why);  // this attempt has failed here; to hosts that are not lost
  void announce_server_failure(const std::string& why);  // which is what the job ends for
  std::string server_failure() const;                    // of any host; empty: none
  void announce_done();                                  // all ranks of this host are through
  // Empty while all goes well; else why this attempt has ended elsewhere.
  std::string ended_elsewhere();
  bool all_done();
  void leave();  // after that: host 0 keeps the store until all have seen it

  struct Next {
    bool again = false;
    int code = 1;
    std::string why = {};  // what the first host says of it, or why that could not be heard
  };
  struct Reports {
    std::vector<std::string> texts;  // host 0's first
    std::string lost;                // which hosts said nothing; empty where all did
  };
  Reports gather(const std::string& own_report);  // on host 0
  void tell(const Next& next);
  Next hear(const std::string& own_report);  // on the others

 private:
  void meet(const Launch& launch);
  std::unique_ptr<rendezvous::TcpStore> connected(rendezvous::TcpStoreOptions options,
                                                  std::chrono::nanoseconds limit) const;
  std::string word_of(int host, std::chrono::steady_clock::time_point deadline);
  void watch();
  void look(std::vector<std::pair<std::int64_t, std::chrono::steady_clock::time_point>>& beats);

  int num_hosts_ = 1, host_ = 0;
  rendezvous::Key key_;
  std::unique_ptr<rendezvous::TcpServer> server_;  // on host 0
  std::unique_ptr<rendezvous::TcpStore> store_;
  int world_size_ = 0, first_rank_ = 0, master_port_ = 0;
  std::string store_address_, master_address_, interface_ = "lo";
  std::vector<std::string> names_;

  int event_ = -1, stop_ = -1;
  std::atomic<int> attempt_ = 0;
  std::mutex mutex_;  // guards what the watching thread has seen
  std::string ended_;
  bool all_done_ = false;
  std::thread watcher_;
};

// What programs get of what the launcher was started with, and of the job; `key`: its descriptor.
std::map<std::string, std::string> variables_of_job(const std::vector<std::string>& environment,
                                                    const Hosts& hosts, int key, int attempt,
                                                    std::chrono::seconds limit);

}  // namespace shoal::elastic
