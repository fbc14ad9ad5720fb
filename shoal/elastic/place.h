// SPDX-License-Identifier: Apache-2.0
// Which rank this process is: said by the environment that shoal run, torchrun, mpirun or Slurm gave it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace shoal::elastic {

using Environment = std::map<std::string, std::string, std::less<>>;

// Of `environ` as unistd.h has it.
Environment environment_of(const char* const* variables);

struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among those of this host
  int local_size = 1;
  std::string_view starter = "alone";
  friend bool operator==(const Place&, const Place&) = default;
};

// Throws InvalidInput where variables are missing, no numbers, or contradict each other.
Place place_of(const Environment& environment);

// A variable as a number. Throws InvalidInput, naming it.
std::int64_t number_in(const Environment& environment, std::string_view name);
// Empty where it is not set.
std::string value_in(const Environment& environment, std::string_view name);

std::string host_name();  // this machine's

}  // namespace shoal::elastic
