// SPDX-License-Identifier: Apache-2.0
// A rank for bench/hosts.py, which starts it: all-reduces between ranks of several hosts, by Gloo alone and by
// what is chosen for hosts.
//
//   bench/links BYTES      a line in is "flat N" or "hosts N", N calls; out goes JSON, the seconds of each
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/comm_c10d/of_hosts.h"
#include "shoal/elastic/join.h"

namespace {

using Clock = std::chrono::steady_clock;

void run(std::int64_t bytes) {
  using namespace shoal;
  const auto job = elastic::join(elastic::environment_of(environ));
  const auto& place = job->place();
  const auto flat = comm_c10d::make_gloo(
      job->store(), {.name = "flat", .rank = place.rank, .size = place.size, .interface = job->interface()});
  const auto hosts = comm_c10d::make_of_hosts(
      job->store(), {.rank = place.rank, .first_ranks = job->first_ranks(), .interface = job->interface()});
  std::cout << nlohmann::json{{"is", comm_c10d::describe_of_hosts(job->first_ranks())}} << std::endl;
  const auto memory = hosts->allocate(bytes);
  const comm::Buffer buffer{memory->data(), bytes / 4, DType::Float32};
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string which;
    int calls = 0;
    words >> which >> calls;
    comm::Communicator& ranks = which == "flat" ? *flat : *hosts;
    std::vector<double> seconds;
    for (int i = 0; i < calls; ++i) {
      ranks.barrier()->wait(job->limit());
      const auto begin = Clock::now();
      ranks.all_reduce(buffer, comm::ReduceOp::Sum)->wait(job->limit());
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::cout << nlohmann::json{{"seconds", seconds}} << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    SHOAL_CHECK(argc == 2, InvalidInput, "bench: wanted a number of bytes; start bench/hosts.py");
    run(std::stoll(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
