// SPDX-License-Identifier: Apache-2.0
// A job that runs, by the folder in which its launcher says where it is (elastic/job_file.h), for who looks at its
// servers or changes them from outside.
#pragma once

#include <csignal>
#include <memory>
#include <string>

#include "shoal/elastic/job_file.h"
#include "shoal/ps/client.h"
#include "shoal/ps/map_keeper.h"

namespace shoal::cli {

// SIGINT and SIGTERM are taken here from its begin on.
class Running {
 public:
  // Throws InvalidInput where there is none.
  explicit Running(const std::string& folder);

  const elastic::RunningJob& job() const { return job_; }
  const ps::MapKeeper& maps() const { return maps_; }
  ps::ShardMap map() const;  // as soon as there is one; throws Timeout
  ps::Client client() const;
  int interrupted_within(long milliseconds) const;  // the signal, or 0

 private:
  const elastic::RunningJob job_;
  const std::unique_ptr<rendezvous::TcpStore> store_;
  const ps::MapKeeper maps_;
  sigset_t ends_;
};

}  // namespace shoal::cli
