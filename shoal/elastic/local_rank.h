// SPDX-License-Identifier: Apache-2.0
// A rank of this host: what it prints, and what is known of it when the job fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "shoal/elastic/culprit.h"
#include "shoal/elastic/flight.h"
#include "shoal/elastic/output.h"
#include "shoal/elastic/process.h"
#include "shoal/rendezvous/deadline.h"

namespace shoal::elastic {

struct Rank {
  int rank = 0;
  std::unique_ptr<Flight> flight;
  Started started;
  Lines out{""}, err{""};
  int log = -1;
  std::optional<int> status;  // as waitpid has it
  RankReport report;
  rendezvous::Clock::time_point begun;
  bool noted = false;  // the report is what it was when the job failed
};

// A log of what it prints, in this folder. Throws InvalidInput where it cannot be written.
void open_log(Rank& rank, const std::filesystem::path& folder);
// Writes what its recorder says there.
void dump_flight(const Rank& rank, const std::filesystem::path& folder);
// Prints and logs the lines that it has printed so far.
void take_output(Rank& rank);
// What is still in its pipes, when it has ended: what others hold open is not waited for.
void take_rest(Rank& rank);
// What its recorder says.
RankReport seen_of(const Rank& rank);
// Writes down how far it is. `killed_before`: what num_killed_for_memory() was when it was started.
void note(Rank& rank, std::int64_t killed_before);

}  // namespace shoal::elastic
