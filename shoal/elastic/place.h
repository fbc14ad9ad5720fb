// SPDX-License-Identifier: Apache-2.0
// Which rank this process is: said by the environment that shoal run, torchrun, mpirun or Slurm gave it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace shoal::elastic {

// Variables by name.
using Environment = std::map<std::string, std::string, std::less<>>;

// Of `environ` as unistd.h has it.
Environment environment_of(const char* const* variables);

struct Place {                         // of a process in its job
  int rank = 0;                        // from 0
  int size = 1;                        // how many ranks there are
  int local_rank = 0;                  // among those of this host
  int local_size = 1;                  // how many this host has
  std::string_view starter = "alone";  // or "shoal run", "torchrun", "mpirun", "mpiexec", "srun"
  friend bool operator==(const Place&, const Place&) = default;
};

// As the variables say, the first of these starters that has set any; rank 0 of 1 where none has. Throws
// InvalidInput where variables are missing, no numbers, or contradict each other.
Place place_of(const Environment& environment);

// Processes beside the ranks that serve tables (shoal run --servers): as many as there were at first.
int servers_in(const Environment& environment);

// A variable as a number. Throws InvalidInput naming it where it is not set or no number.
std::int64_t number_in(const Environment& environment, std::string_view name);
// Empty where it is not set.
std::string value_in(const Environment& environment, std::string_view name);

std::string host_name();  // this machine's

}  // namespace shoal::elastic
