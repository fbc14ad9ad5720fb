// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/place.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <climits>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::elastic {

namespace {

struct Starter {
  std::string_view name, rank, size, local_rank, local_size;
};

// The first whose rank is set. torchrun's come first: what shoal run starts inside a Slurm job is not what
// Slurm started.
constexpr Starter kStarters[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

}  // namespace

Environment environment_of(const char* const* variables) {
  Environment environment;
  for (; variables && *variables; ++variables) {
    const std::string_view variable = *variables;
    if (const std::size_t equals = variable.find('='); equals != std::string_view::npos)
      environment.emplace(variable.substr(0, equals), variable.substr(equals + 1));
  }
  return environment;
}

std::string value_in(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

std::int64_t number_in(const Environment& environment, std::string_view name) {
  const std::string text = value_in(environment, name);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  SHOAL_CHECK(!text.empty() && error == std::errc() && end == text.data() + text.size(), InvalidInput,
              "elastic: the environment variable ", name, " is ", text.empty() ? "not set" : in_quotes(text),
              ", wanted a number; start the program with shoal run, torchrun or mpirun, or alone");
  return number;
}

int servers_in(const Environment& environment) {
  const bool has_job = environment.contains("SHOAL_STORE") && environment.contains("SHOAL_SERVERS");
  return has_job ? static_cast<int>(number_in(environment, "SHOAL_SERVERS")) : 0;
}

Place place_of(const Environment& environment) {
  for (const Starter& starter : kStarters) {
    if (!environment.contains(starter.rank)) continue;
    const auto number = [&](std::string_view name) { return static_cast<int>(number_in(environment, name)); };
    Place place = {.rank = number(starter.rank), .size = number(starter.size), .starter = starter.name};
    if (environment.contains("SHOAL_STORE")) place.starter = "shoal run";
    SHOAL_CHECK(place.size >= 1 && place.rank >= 0 && place.rank < place.size, InvalidInput,
                "elastic: ", starter.rank, " is ", place.rank, " and ", starter.size, " is ", place.size,
                ": wanted a rank from 0 to the number of ranks - 1");
    place.local_rank = environment.contains(starter.local_rank) ? number(starter.local_rank) : place.rank;
    place.local_size = environment.contains(starter.local_size) ? number(starter.local_size) : place.size;
    SHOAL_CHECK(place.local_rank >= 0 && place.local_rank < place.local_size, InvalidInput,
                "elastic: ", starter.local_rank, " is ", place.local_rank, " and ", starter.local_size,
                " is ", place.local_size, ": wanted a rank from 0 to the number of local ranks - 1");
    return place;
  }
  return {};
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace shoal::elastic
