// SPDX-License-Identifier: Apache-2.0
// The launcher: starts the ranks of this host, and with those of other hosts sees them through to the end.
//
// Its loop waits for output, for the end of a process, for a signal, and for word from other hosts. When a
// rank fails everywhere all ranks are ended within seconds, the reports of all hosts go to the first one,
// and that says who failed first and whether all start again.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace shoal::elastic {

struct Launch {
  std::vector<std::string> command;
  int ranks = 1;  // on this host
  int num_hosts = 1;
  int host = 0;  // its number; 0 is the first one, which serves the store
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // with several hosts: where the store is; else what programs get as MASTER_PORT
  int max_restarts = 0;
  std::filesystem::path log_folder;  // none where empty
  std::string interface;             // that hosts reach each other by; empty: the one of the master's address
  std::filesystem::path key_file;    // the same on all hosts; only one host needs none
  std::chrono::seconds limit{300};   // of a wait in the programs
  std::chrono::seconds arrival{60};  // for all hosts to come
  bool pin_cores = false;            // each rank to its share of them
  // Processes beside the ranks that serve them: parameter servers, of all hosts together; number k is on host k modulo
  // hosts. They end with the ranks, and one that ends before is a failure, unless with exit code 0: it has left. Each
  // is told its number, SHOAL_SERVER, and all processes how many there are at first, SHOAL_SERVERS.
  int servers = 0;
  std::vector<std::string> server_command;
  // What one of them has another one has too: it is no failure if a signal ends one of several.
  bool servers_have_copies = false;
  // Where the job is to be found while it runs, for who asks for more servers (job_file.h). Empty: nowhere.
  std::filesystem::path job_folder;
};

// Throws InvalidInput where something is out of range or missing.
void check(const Launch& launch);

// The exit code: 0 where all ranks ended with 0; that of the rank that failed first (128 + a signal); 128 +
// the signal that ended the launcher. `environment` is what programs get besides what says their rank. Ranks'
// output goes to standard output and error. Called in a keeper (process.h).
int run(const Launch& launch, const std::vector<std::string>& environment);

}  // namespace shoal::elastic
