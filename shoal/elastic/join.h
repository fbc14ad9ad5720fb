// SPDX-License-Identifier: Apache-2.0
// How a program becomes a rank, whatever started it:
//
//   int main() {
//     auto job = elastic::join(elastic::environment_of(environ));
//     auto ranks = job->recorded(comm::shm_communicator(job->store(), job->place().rank, job->place().size));
//
// Where the store and the job's key come from:
//
//   shoal run                  both inherited
//   torchrun, mpirun, …        rank 0 serves the store; it hands key and port over a socket of this host that
//                              has no file, to processes of the same user with the same parent
//   the same on several hosts  SHOAL_KEY_FILE names the key's file on each host, MASTER_ADDR where rank 0
//                              is; it serves on SHOAL_PORT, or else on the port after MASTER_PORT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/comm/communicator.h"
#include "shoal/elastic/flight.h"
#include "shoal/elastic/place.h"
#include "shoal/rendezvous/key.h"
#include "shoal/rendezvous/store.h"
#include "shoal/rendezvous/tcp_server.h"

namespace shoal::elastic {

// What a rank has of its job. One thread at a time, but for the store.
class Job {
 public:
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const Place& place() const { return place_; }   // which rank this is
  rendezvous::Store& store() { return *store_; }  // of all ranks; any thread
  Flight& flight() { return *flight_; }           // this rank's recorder
  // For each rank the first one of its host, where ranks see one memory: the kernel's word, not the
  // environment's.
  const std::vector<int>& first_ranks() const { return first_ranks_; }
  bool is_one_host() const { return std::ranges::count(first_ranks_, 0) == std::ssize(first_ranks_); }
  const std::vector<std::string>& hosts() const { return hosts_; }  // of each rank, its name
  // The interface that ranks of several hosts reach each other by; "lo" on one host.
  const std::string& interface() const { return interface_; }
  int attempt() const { return attempt_; }                   // how often the ranks have been started before
  std::chrono::nanoseconds limit() const { return limit_; }  // of a wait
  // The job's, where it has one: not where this process is all of it.
  const std::optional<rendezvous::Key>& key() const { return key_; }
  // The number of the start, from 1, that the store answers to.
  std::uint64_t epoch() const { return epoch_; }

  // The communicator with its calls in the flight recorder, and its waits bounded by limit(). It is a
  // comm::Located, and this job outlives it.
  std::unique_ptr<comm::Communicator> recorded(std::unique_ptr<comm::Communicator> communicator);

 private:
  friend std::unique_ptr<Job> join(const Environment& environment, std::chrono::nanoseconds limit);
  Job() = default;

  Place place_;
  std::unique_ptr<rendezvous::TcpServer> server_;  // of rank 0, where no launcher serves
  std::unique_ptr<rendezvous::Store> store_;
  std::unique_ptr<Flight> flight_;
  std::optional<rendezvous::Key> key_;
  std::uint64_t epoch_ = 1;
  std::vector<int> first_ranks_;
  std::vector<std::string> hosts_;
  std::string interface_ = "lo";
  int attempt_ = 0;
  std::chrono::nanoseconds limit_ = std::chrono::seconds{300};
};

// Returns when all ranks are there. Throws Timeout naming those that are not after `limit`, or what the
// environment bounds waits to (SHOAL_LIMIT, seconds); InvalidInput where variables contradict each other,
// ranks do not agree on how many they are, or two say that they are the same.
std::unique_ptr<Job> join(const Environment& environment,
                          std::chrono::nanoseconds limit = std::chrono::seconds{60});

// What a process has that belongs to a job and is no rank of it: a server that the launcher started.
struct Member {
  rendezvous::Key key;                       // the job's
  std::unique_ptr<rendezvous::Store> store;  // likewise
  std::string address;                       // of this host, that the others reach
  std::uint64_t epoch = 1;                   // as Job::epoch
};
// Of the process of this environment. Throws InvalidInput where that is of no job, Timeout where the store is
// not there within `limit`.
Member member_of(const Environment& environment, std::chrono::nanoseconds limit = std::chrono::seconds{60});

// What all ranks have said of their hosts, by rank: `identities` are equal where memory is shared, `hosts`
// are names.
struct Attendance {
  std::vector<std::string> identities, hosts;
};
struct Attendant {             // what a rank says of itself
  Place place;                 // which one it is
  std::string identity, host;  // as in Attendance
  int process = 0;             // its id
};
// All ranks say who they are, and wait for each other; join() does it. Throws as it does.
Attendance meet(rendezvous::Store& store, const Attendant& self, std::chrono::nanoseconds limit);

}  // namespace shoal::elastic
